//! All supported kinds of volumes, by the name of their plugin's directory.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    sync::Arc,
};

use super::{
    storage::{Approved, Storage},
    volume::{Calls, Shape, Volume},
};
use crate::{
    node::{
        fault::Fault,
        pod_dir::{VolumeDir, names},
    },
    teardown::on_disk::Work,
};

pub mod csi;
mod device;
mod local;

/// A kind of volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Own(OwnKind),
    Shared(SharedKind),
}

/// Volumes of one pod. Mounts at and below all their directories are unmounted together, after their subPath targets. Then
/// [`Self::remove`] is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OwnKind {
    /// `emptyDir` on disk, in memory or of huge pages. Its data is removed with its pod.
    EmptyDir,
    /// On an `emptyDir`, with content from the API server, which may be deleted.
    Wrapped,
    /// A network file system. Only the empty mount point is removed.
    Network,
}

/// Volumes that pods of a node share, or that a driver has mounted. Each is torn down by itself, and not unmounted before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedKind {
    Local,
    Csi,
}

/// The table. Volumes of any other plugin stay unchanged, are reported, and block their pod.
const KINDS: &[(&str, Kind)] = &[
    (names::EMPTY_DIR, Kind::Own(OwnKind::EmptyDir)),
    // Such as the token volume of every pod.
    ("kubernetes.io~projected", Kind::Own(OwnKind::Wrapped)),
    ("kubernetes.io~secret", Kind::Own(OwnKind::Wrapped)),
    ("kubernetes.io~configmap", Kind::Own(OwnKind::Wrapped)),
    ("kubernetes.io~downward-api", Kind::Own(OwnKind::Wrapped)),
    ("kubernetes.io~git-repo", Kind::Own(OwnKind::Wrapped)),
    (local::PLUGIN, Kind::Shared(SharedKind::Local)),
    ("kubernetes.io~nfs", Kind::Own(OwnKind::Network)),
    // Of earlier versions of the kubelet.
    ("kubernetes.io~cephfs", Kind::Own(OwnKind::Network)),
    ("kubernetes.io~glusterfs", Kind::Own(OwnKind::Network)),
    ("kubernetes.io~azure-file", Kind::Own(OwnKind::Network)),
    ("kubernetes.io~quobyte", Kind::Own(OwnKind::Network)),
    (names::CSI, Kind::Shared(SharedKind::Csi)),
];

/// Directories below the kubelet's root with one directory for each raw block volume of this plugin, and below that the directory
/// with one file for each pod.
const MAPS: [(&str, &str, &str); 3] = [
    (local::PLUGIN, local::ALL_MAPS, ""),
    (names::CSI, csi::BLOCK_VOLUMES, csi::MAPS),
    (names::CSI, csi::PUBLISHED_DEVICES, ""),
];

/// The kind of volumes of this plugin, if it is supported.
pub(super) fn for_plugin(shape: Shape, plugin: &OsStr) -> Option<Kind> {
    let kind = KINDS.iter().find(|(name, _)| plugin == *name).map(|(_, kind)| *kind);
    kind.filter(|kind| shape == Shape::FileSystem || matches!(kind, Kind::Shared(_)))
}

/// Raw block volumes with files for this pod outside of its directory. The kubelet creates the link there last, so a crash may have
/// left none. Blocks.
pub(super) fn mapped_for(storage: &Storage, uid: &str) -> Result<Vec<VolumeDir>, Fault> {
    let mut found = Vec::new();
    for (plugin, all, maps) in MAPS {
        for volume in device::map_dirs(&storage.root.path().join(all), maps)? {
            let (name, dir) = volume?;
            let plugin = plugin.into();
            let volume = VolumeDir { plugin, name };
            if dir.names()?.iter().any(|name| name == uid) && !found.contains(&volume) {
                found.push(volume);
            }
        }
    }
    Ok(found)
}

/// UIDs of pods with a device mounted outside of their directories, including removed pods. Blocks.
pub fn mapped_pods(storage: &Storage) -> Result<Vec<String>, Fault> {
    let mut pods = Vec::new();
    for (_, all, maps) in MAPS {
        for volume in device::map_dirs(&storage.root.path().join(all), maps)? {
            let (_, dir) = volume?;
            pods.extend(device::Maps(dir.path().to_owned()).holders(storage)?);
        }
    }
    Ok(pods)
}

// === impl OwnKind ===

impl OwnKind {
    /// Name of the directory below `plugins/kubernetes.io~empty-dir` with the marker of a complete volume.
    pub fn marker(self, volume: &OsStr) -> Option<OsString> {
        match self {
            Self::EmptyDir => Some(volume.to_owned()),
            Self::Wrapped => Some([OsStr::new(names::WRAPPED), volume].into_iter().collect()),
            Self::Network => None,
        }
    }

    /// Removes the volume's directory, which has no mounts. Its content may be data, and is removed only if it belongs to the pod
    /// alone.
    pub fn remove(self, work: &mut Work<'_>, volume: &VolumeDir) {
        let plugin = Path::new(names::VOLUMES).join(&volume.plugin);
        match self {
            Self::EmptyDir | Self::Wrapped => work.remove_trees(plugin, [&volume.name]),
            Self::Network => work.remove_empty(plugin, &volume.name),
        }
    }
}

// === impl SharedKind ===

impl SharedKind {
    /// What [`Self::tear_down`] would call. Reads files of the kubelet only. Blocks.
    pub fn planned(self, storage: &Storage, volume: &Volume) -> Result<Calls, Fault> {
        match self {
            Self::Local => local::planned(storage, volume),
            Self::Csi => csi::planned(storage, volume),
        }
    }

    /// Tears down the volume. It may be repeated.
    pub async fn tear_down(
        self,
        storage: &Arc<Storage>,
        volume: &Volume,
        approved: &Approved,
    ) -> Result<(), Vec<Fault>> {
        match self {
            Self::Local => local::tear_down(storage, volume).await,
            Self::Csi => csi::tear_down(storage, volume, approved).await,
        }
    }
}
