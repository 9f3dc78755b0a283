//! Client of the API server. Errors distinguish what an answer proves.

mod answer;
mod client;
mod cluster;
mod connection;
mod connection_pool;
mod credentials;
mod dial;
mod durations;
mod error;
pub mod escape;
mod event;
pub mod expiry;
mod http2;
mod identity;
mod items;
pub mod kubeconfig;
mod lines;
mod metadata;
mod node_proof;
mod review;

/// User-Agent header.
const USER_AGENT: http::HeaderValue =
    http::HeaderValue::from_static(concat!("pod-teardown/", env!("CARGO_PKG_VERSION")));

pub(crate) use self::error::with_causes;
pub use self::{
    answer::{read, with_timeout},
    client::{ApiClient, DeleteAnswer, WatchLine, WatchStream},
    dial::{Dial, Duplex},
    durations::{RequestCode, RequestLabels},
    error::{About, ApiError},
    escape::escape,
    event::EventWrite,
    http2::LastReceived,
    metadata::{AnswerStream, Document, Lane, MetadataClient},
    node_proof::Proof,
};
