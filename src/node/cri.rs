//! Client of the container runtime. Sandboxes and containers have the agent's own types; their protobuf is not visible outside
//! this module.
//!
//! `endpoint → client {reads} | effects → convert → types`

pub mod client;
mod convert;
mod durations;
mod effects;
pub mod endpoint;
mod greeting;
pub mod types;

pub use client::{Cri, CriService, CriServiceError};
pub use durations::CallDurations;
pub use endpoint::CriEndpoint;
