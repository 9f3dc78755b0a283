//! Real files, mounts and cgroups of the node. Needs root, and changes only what the tests create.
//!
//! Each test has its own mount namespace, and its own names of cgroups.

#![allow(
    clippy::disallowed_methods,
    reason = "tests work in places of their own, and remove what they made"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod cgroups;
mod crowd;
mod csi;
mod csi_detached;
mod csi_users;
mod csi_views;
mod data;
mod dirs;
mod frozen;
mod fuse;
mod hidden;
mod holders;
mod images;
mod kubelet;
mod kubelet_start;
mod mounts;
mod node;
mod pod;
mod process_events;
mod servers;
mod space;
mod subvolumes;
mod table;
mod volumes;
