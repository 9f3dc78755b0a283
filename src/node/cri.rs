//! The container runtime: a client in the agent's own types. CRI protobuf stays behind this module.
//!
//! `endpoint → client {reads} | effects → convert → types`

mod cancel;
pub mod client;
mod convert;
mod effects;
pub mod endpoint;
mod greeting;
mod info;
mod lists;
pub mod types;

pub use client::{Cri, CriService, CriServiceError};
pub use endpoint::CriEndpoint;
pub use lists::PodUids;
