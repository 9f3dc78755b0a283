//! The node's files, mounts and cgroups for real: needs root, and touches nothing but what it makes itself.
//!
//! Mounts are made in a mount namespace of each test's own, cgroups under a name of each test's own.

#![allow(
    clippy::disallowed_methods,
    reason = "tests work in places of their own, and remove what they made"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod cgroups;
mod crowd;
mod csi;
mod csi_users;
mod data;
mod dirs;
mod drivers;
mod fuse;
mod hidden;
mod holders;
mod kubelet;
mod mounts;
mod node;
mod pod;
mod servers;
mod space;
mod subvolumes;
mod table;
mod volumes;
