//! What the node offers.

pub mod cri;
