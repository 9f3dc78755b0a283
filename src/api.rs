//! Client of the API server. Errors distinguish what an answer proves.

mod client;
mod cluster;
mod connection_pool;
mod credentials;
mod dial;
mod error;
pub mod escape;
pub mod expiry;
mod http2;
pub mod kubeconfig;
mod metadata;
mod requests;

/// User-Agent header.
const USER_AGENT: http::HeaderValue =
    http::HeaderValue::from_static(concat!("pod-teardown/", env!("CARGO_PKG_VERSION")));

pub(crate) use self::error::with_causes;
pub use self::{
    client::{ApiClient, RawMetadata, WatchLine, WatchStream},
    connection_pool::Proof,
    dial::{Dial, Duplex},
    error::{ApiError, ErrorKind, read},
    escape::escape,
    http2::LastReceived,
    metadata::{AnswerStream, Lane, MetadataClient},
    requests::{EventWrite, REQUEST_DURATIONS, with_timeout},
};
