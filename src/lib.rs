//! Takes pods down the way the kubelet does, straight against the CRI.

pub mod node;
pub mod report;
pub mod teardown;
