//! What a kind of volume is, seen from the pod's directory.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    path::Path,
    sync::Arc,
};

use futures::future::BoxFuture;

use super::{
    super::on_disk::{DiskReport, Work},
    kinds::{DEVICES, KINDS},
    storage::Storage,
};
use crate::node::{
    fault::Fault,
    pod_dir::{PodDir, VolumeDir, names},
};

/// How volumes of one plugin are taken away. Of each, whatever is mounted on its directory or below is unmounted first, and
/// its subPath targets before that; [`Self::remove`] comes only when nothing is.
pub(crate) trait VolumeKind: Sync {
    /// Name of the plugin's directory below `volumes`, as the kubelet escapes it.
    fn plugin(&self) -> &'static str;

    /// Whether a controller may have attached such a volume to this node, and waits for its end to detach it.
    fn may_be_attached(&self) -> bool {
        false
    }

    /// Name of the directory below `plugins/kubernetes.io~empty-dir` with the marker that says that the volume is set up.
    fn marker(&self, _volume: &OsStr) -> Option<OsString> {
        None
    }

    /// Removes the volume's directory, in which nothing is mounted any more. What still lies in it may be somebody's data:
    /// only where it lived and ends with its pod does it go, too.
    fn remove(&self, work: &mut Work<'_>, volume: &VolumeDir) {
        work.remove_empty(Path::new(names::VOLUMES).join(&volume.plugin), &volume.name);
    }

    /// How such volumes are taken away, if that concerns others than their pod.
    fn one_by_one(&self) -> Option<&'static dyn OneByOne> {
        None
    }
}

/// How raw block volumes of one plugin are taken away.
pub(crate) trait DeviceKind: OneByOne {
    /// Name of the plugin's directory below `volumeDevices`.
    fn plugin(&self) -> &'static str;

    /// Volumes of which something is left for this pod outside of its directory: a link there is made last, and whoever was
    /// cut short has made none. Blocks.
    fn mapped_for(&self, storage: &Storage, uid: &str) -> Result<Vec<OsString>, Fault>;

    /// UIDs of the pods for which a device is mounted outside of their directories, which may be gone. Blocks.
    fn mapped_pods(&self, storage: &Storage) -> Result<Vec<String>, Fault>;
}

/// Volumes that an operator has approved to count as taken away without their drivers, as [`Cause::DriverFailed`] names them.
///
/// [`Cause::DriverFailed`]: crate::node::fault::Cause::DriverFailed
pub type Approved = Arc<BTreeSet<String>>;

/// What comes of taking one volume away.
pub(crate) type Taken = BoxFuture<'static, Result<DiskReport, Vec<Fault>>>;

/// Volumes that pods of a node share, or that a driver has mounted: each is taken away by itself, in its turn, and nothing
/// of what [`VolumeKind`] says of mounts and directories is done to it before.
pub(crate) trait OneByOne: Sync {
    /// Takes the volume away. A second call has nothing to do.
    fn take_away(&self, storage: Arc<Storage>, pod: PodDir, volume: VolumeDir, approved: Approved) -> Taken;
}

/// The kind of volumes of this plugin, if it is one that is handled here.
pub(crate) fn of(plugin: &OsStr) -> Option<&'static dyn VolumeKind> {
    KINDS.iter().copied().find(|kind| plugin == kind.plugin())
}

/// The kind of raw block volumes of this plugin, if it is one that is handled here.
pub(crate) fn of_device(plugin: &OsStr) -> Option<&'static dyn DeviceKind> {
    DEVICES.iter().copied().find(|kind| plugin == kind.plugin())
}

/// All kinds of raw block volumes that are handled here.
pub(crate) fn devices() -> impl Iterator<Item = &'static dyn DeviceKind> {
    DEVICES.iter().copied()
}

/// UIDs of the pods for which a device is mounted outside of their directories, which may be gone. Blocks.
pub fn mapped_pods(storage: &Storage) -> Result<Vec<String>, Fault> {
    let mut pods = Vec::new();
    for kind in devices() {
        pods.extend(kind.mapped_pods(storage)?);
    }
    Ok(pods)
}
