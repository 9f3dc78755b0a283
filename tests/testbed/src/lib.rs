//! What pod-teardown is tested, shown and measured on.

pub mod api;
pub mod contract;
pub mod control_plane;
pub mod rest;
pub mod scripted_cri;
