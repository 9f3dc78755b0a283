//! Client of the container runtime, in the agent's own types. CRI protobuf is not visible outside this module.
//!
//! `endpoint → client {reads} | effects → convert → types`

mod cancel;
pub mod client;
mod convert;
mod durations;
mod effects;
pub mod endpoint;
mod greeting;
mod lists;
pub mod types;

pub use client::{Cri, CriService, CriServiceError};
pub use durations::CallDurations;
pub use endpoint::CriEndpoint;
