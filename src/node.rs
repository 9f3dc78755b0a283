//! What the node offers.

pub mod cgroups;
pub mod checkpoint;
pub mod cri;
pub mod csi_files;
pub mod dirs;
pub mod dra_checkpoint;
pub mod effects;
pub mod fault;
pub mod holders;
pub mod identity;
pub mod kubelet_process;
pub mod kubelet_root;
pub mod lock;
pub mod logs;
pub mod loops;
pub mod mount_namespace;
pub mod mounts;
pub mod namespaces;
pub mod plugins;
pub mod pod_dir;
pub mod processes;
pub mod runtime;
pub mod superblock;
pub mod systemd;
pub mod threads;
pub mod unmounts;
