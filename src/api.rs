//! The API server as this agent uses it: a handful of requests, each answer sorted by what it proves.

mod client;
mod connection;
mod error;

pub use self::{
    client::{ApiClient, DeleteAnswer, PodPage, Verify, WatchLine, WatchStream},
    error::ApiError,
};
