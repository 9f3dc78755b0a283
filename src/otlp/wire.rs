//! Generated from `proto/otlp.proto`.

#![allow(missing_docs, reason = "documented in the protocol")]
#![allow(dead_code, reason = "only what traces need is used")]
#![allow(clippy::all, clippy::pedantic, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/otlp.rs"));
pub use opentelemetry::proto::collector::trace::v1::*;
