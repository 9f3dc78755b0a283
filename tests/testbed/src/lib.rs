//! Testbed.

pub mod containerd;
pub mod ground;
