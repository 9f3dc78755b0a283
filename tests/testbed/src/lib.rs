//! Testbed.

pub mod scripted_cri;
pub mod steady;
