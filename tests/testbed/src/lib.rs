//! Testbed.

pub mod api;
pub mod apiserver;
pub mod contract;
pub mod control_plane;
pub mod rest;
