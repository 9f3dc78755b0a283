//! Whether this node's kubelet lives, and so whose turn it is to take pods down.
//!
//! `lookout` looks, `signs` knows for how long each look has shown the same, and `judge` decides.

mod fence;
pub mod healthz;
pub mod judge;
pub mod lookout;
pub mod report;
pub mod signs;
