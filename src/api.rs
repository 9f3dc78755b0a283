//! The API server as this agent uses it: a handful of requests, each answer sorted by what it proves.

mod client;
mod cluster;
mod connection;
mod credentials;
mod error;
mod lanes;
mod metadata;
mod proven;

pub use self::{
    client::{ApiClient, DeleteAnswer, PodPage, WatchLine, WatchStream, escape},
    error::{About, ApiError},
    metadata::{Document, Lane, MetadataClient, Pieces, Written},
    proven::Proof,
};
