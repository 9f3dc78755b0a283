//! A kind of volumes.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    path::Path,
    sync::Arc,
};

use futures::future::BoxFuture;

use super::{
    super::on_disk::{DiskReport, Work},
    planned_teardown::PlannedTeardown,
    storage::Storage,
};
use crate::node::{
    fault::Fault,
    pod_dir::{PodDir, VolumeDir, names},
};

/// Volumes of one plugin. Mounts at and below the volume's directory are unmounted first, after its subPath targets.
/// [`Self::remove`] is called when nothing is mounted.
pub(crate) trait VolumeKind: Sync {
    /// Name of the plugin's directory below `volumes`, escaped like the kubelet's.
    fn plugin(&self) -> &'static str;

    /// Whether a controller may have attached such a volume to this node, and waits for its unmount.
    fn may_be_attached(&self) -> bool {
        false
    }

    /// Name of the directory below `plugins/kubernetes.io~empty-dir` with the marker of a complete volume.
    fn marker(&self, _volume: &OsStr) -> Option<OsString> {
        None
    }

    /// Removes the volume's directory, which has no mounts. Its content may be data, and is removed only if it belongs to the pod
    /// alone.
    fn remove(&self, work: &mut Work<'_>, volume: &VolumeDir) {
        work.remove_empty(Path::new(names::VOLUMES).join(&volume.plugin), &volume.name);
    }

    /// How such volumes are torn down, if that affects more than their pod.
    fn one_by_one(&self) -> Option<&'static dyn OneByOne> {
        None
    }
}

/// Raw block volumes of one plugin.
pub(crate) trait DeviceKind: OneByOne {
    /// Name of the plugin's directory below `volumeDevices`.
    fn plugin(&self) -> &'static str;

    /// Volumes with files for this pod outside of its directory. The kubelet creates the link there last, so a crash may have
    /// left none. Blocks.
    fn mapped_for(&self, storage: &Storage, uid: &str) -> Result<Vec<OsString>, Fault>;

    /// UIDs of pods with a device mounted outside of their directories, including removed pods. Blocks.
    fn mapped_pods(&self, storage: &Storage) -> Result<Vec<String>, Fault>;
}

/// Volumes that a user has approved to count as unpublished without their drivers. Each is the `volume` of a
/// [`Cause::DriverFailed`].
///
/// [`Cause::DriverFailed`]: crate::node::fault::Cause::DriverFailed
pub type Approved = Arc<BTreeSet<String>>;

/// Result of the teardown of one volume.
pub(crate) type TeardownResult = BoxFuture<'static, Result<DiskReport, Vec<Fault>>>;

/// Volumes that pods of a node share, or that a driver has mounted. Each is torn down by itself, and not unmounted before.
pub(crate) trait OneByOne: Sync {
    /// What [`Self::tear_down`] would call. Reads files of the kubelet only. Blocks.
    fn planned(&self, storage: &Storage, pod: &PodDir, volume: &VolumeDir) -> Result<PlannedTeardown, Fault>;

    /// Tears down the volume. It may be repeated.
    fn tear_down(&self, storage: Arc<Storage>, pod: PodDir, volume: VolumeDir, approved: Approved) -> TeardownResult;
}
