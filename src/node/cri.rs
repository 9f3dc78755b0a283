//! The container runtime: a client in the agent's own types.

pub mod types;
