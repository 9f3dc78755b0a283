//! What the node offers.

pub mod cri;
pub mod dirs;
pub mod effects;
pub mod fault;
pub mod mounts;
