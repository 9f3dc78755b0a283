//! What the node offers.

pub mod cgroups;
pub mod cri;
pub mod dirs;
pub mod effects;
pub mod fault;
pub mod kubelet_root;
pub mod mounts;
pub mod pod_dir;
