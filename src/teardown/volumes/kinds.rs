//! All supported kinds of volumes. A new one is a file beside these and a line in the table.

use std::ffi::OsStr;

use super::{
    kind::{DeviceKind, VolumeKind},
    storage::Storage,
};
use crate::node::fault::Fault;

pub mod csi;
mod device;
mod empty_dir;
mod local;
mod network;
mod wrapped;

/// The table. Volumes of any other plugin stay unchanged, are reported, and block their pod.
const KINDS: &[&dyn VolumeKind] = &[
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
const DEVICES: &[&dyn DeviceKind] = &[&local::block::Block, &csi::block::Block];

/// The kind of this plugin, if it is supported.
pub(crate) fn for_plugin(plugin: &OsStr) -> Option<&'static dyn VolumeKind> {
    KINDS.iter().copied().find(|kind| plugin == kind.plugin())
}

/// The kind of raw block volumes of this plugin, if it is supported.
pub(crate) fn for_device_plugin(plugin: &OsStr) -> Option<&'static dyn DeviceKind> {
    DEVICES.iter().copied().find(|kind| plugin == kind.plugin())
}

/// All supported kinds of raw block volumes.
pub(crate) fn devices() -> impl Iterator<Item = &'static dyn DeviceKind> {
    DEVICES.iter().copied()
}

/// UIDs of pods with a device mounted outside of their directories, including removed pods. Blocks.
pub fn mapped_pods(storage: &Storage) -> Result<Vec<String>, Fault> {
    let mut pods = Vec::new();
    for kind in devices() {
        pods.extend(kind.mapped_pods(storage)?);
    }
    Ok(pods)
}
