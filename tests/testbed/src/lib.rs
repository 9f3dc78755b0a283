//! Testbed.

pub mod cgroups;
pub mod containerd;
pub mod ground;
pub mod leftovers;
pub mod mounts;
pub mod node_object;
pub mod pods;
pub mod straight;
