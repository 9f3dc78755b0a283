//! Testbed.

pub mod apiserver;
