//! Testbed.

pub mod scripted_cri;
