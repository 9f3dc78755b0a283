//! All supported kinds of volumes. A new one is a file beside these and a line in the table.

use super::kind::{DeviceKind, VolumeKind};

pub mod csi;
mod device;
mod empty_dir;
mod local;
mod network;
mod wrapped;

/// The table. Volumes of any other plugin stay unchanged, are reported, and block their pod.
pub(super) const KINDS: &[&dyn VolumeKind] = &[
    &empty_dir::EmptyDir,
    &wrapped::PROJECTED,
    &wrapped::SECRET,
    &wrapped::CONFIG_MAP,
    &wrapped::DOWNWARD_API,
    &wrapped::GIT_REPO,
    &local::Local,
    &network::NFS,
    &network::CEPH_FS,
    &network::GLUSTER_FS,
    &network::AZURE_FILE,
    &network::QUOBYTE,
    &csi::Csi,
];

/// The table of raw block volumes.
pub(super) const DEVICES: &[&dyn DeviceKind] = &[&local::block::Block, &csi::block::Block];
