//! The API server as this agent uses it: a handful of requests, each answer sorted by what it proves.

mod client;
mod connection;
mod error;
mod proven;

pub use self::{
    client::{ApiClient, DeleteAnswer, PodPage, WatchLine, WatchStream},
    error::ApiError,
    proven::Proof,
};
