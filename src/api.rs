//! The API server as this agent uses it: a handful of requests, each answer sorted by what it proves.

mod answer;
mod client;
mod cluster;
mod connection;
mod credentials;
mod dial;
mod error;
mod escape;
mod event;
pub mod expiry;
mod http2;
mod identity;
mod items;
pub mod kubeconfig;
mod lanes;
mod metadata;
mod proven;
mod review;

/// How this program calls itself in requests.
const USER_AGENT: http::HeaderValue =
    http::HeaderValue::from_static(concat!("pod-teardown/", env!("CARGO_PKG_VERSION")));

pub use self::{
    answer::{in_time, read},
    client::{ApiClient, DeleteAnswer, WatchLine, WatchStream},
    dial::{Dial, Duplex},
    error::{About, ApiError},
    escape::escape,
    event::EventWrite,
    metadata::{Document, Lane, MetadataClient, Pieces, Written},
    proven::Proof,
};
