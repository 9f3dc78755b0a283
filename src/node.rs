//! What the node offers.

pub mod cgroups;
pub mod checkpoint;
pub mod cri;
pub mod dirs;
pub mod effects;
pub mod fault;
pub mod identity;
pub mod kubelet_process;
pub mod kubelet_root;
pub mod lock;
pub mod logs;
pub mod mount_namespace;
pub mod mounts;
pub mod pod_dir;
pub mod runtime;
pub mod threads;
pub mod unmounts;
