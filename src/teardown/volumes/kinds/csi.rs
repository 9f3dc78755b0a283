//! CSI volumes, as file systems and as raw block devices. The driver unpublishes them for the pod, and unstages them when no pod
//! of this node uses them. The mount table counts, not the driver's response.
//!
//! `identity → publication (NodeUnpublishVolume) → users → unstage (NodeUnstageVolume) → volumesInUse → the pod's directory`

use std::{path::Path, sync::Arc};

use futures::future::FutureExt as _;
use rustix::fs::FileType;

use super::super::{
    kind::{Approved, OneByOne, TeardownResult, VolumeKind},
    planned_teardown::PlannedTeardown,
    storage::Storage,
};
use crate::{
    node::{
        csi_files::{self, Lifecycle, TARGET, VolumeDataFile},
        fault::Fault,
        pod_dir::{PodDir, VolumeDir, names},
    },
    teardown::on_disk::{DiskReport, Work},
};

pub mod block;
mod block_paths;
mod identity;
mod lookup;
mod other_mounts;
mod publication;
mod staged;
mod staging_path;
mod unstage;
mod unused;
mod users;

use identity::Identity;
use staged::Staged;
use staging_path::StagingPath;
pub use unused::{IsDue, UnstageResults, unstage_unused_volumes};
pub use users::is_csi_volume_used;
use users::{Shape, Use};

pub struct Csi;

// === impl Csi ===

impl VolumeKind for Csi {
    fn plugin(&self) -> &'static str {
        names::CSI
    }

    fn may_be_attached(&self) -> bool {
        true
    }

    fn one_by_one(&self) -> Option<&'static dyn OneByOne> {
        Some(&Self)
    }
}

impl OneByOne for Csi {
    fn planned(&self, storage: &Storage, pod: &PodDir, volume: &VolumeDir) -> Result<PlannedTeardown, Fault> {
        let path = pod.path().join(volume.relative());
        let data = pod_copy(pod, volume)?;
        let identity = Identity::read(&data, &path).ok();
        let staging = identity.as_ref().filter(|_| !is_ephemeral(&data));
        let staging = staging.and_then(|identity| Staged::for_volume(storage, identity).map(StagingPath::FileSystem));
        let own = Use::new(pod, Shape::FileSystem, volume);
        planned_calls(storage, identity, &own, &path.join(TARGET), staging.as_ref())
    }

    fn tear_down(&self, storage: Arc<Storage>, pod: PodDir, volume: VolumeDir, approved: Approved) -> TeardownResult {
        tear_down(storage, pod, volume, approved).boxed()
    }
}

async fn tear_down(
    storage: Arc<Storage>,
    pod: PodDir,
    volume: VolumeDir,
    approved: Approved,
) -> Result<DiskReport, Vec<Fault>> {
    let path = pod.path().join(volume.relative());
    let target = path.join(TARGET);
    let data = {
        let (pod, volume) = (pod.clone(), volume.clone());
        storage.read_blocking(&path, move |_| pod_copy(&pod, &volume)).await?
    };
    let identity = lookup::identify_volume(&storage, &pod, &volume, &data, &target).await?;
    let name = identity
        .as_ref()
        .map_or_else(|| path.display().to_string(), |it| it.unique_name());
    let _lock = storage.locks.lock(&name).await;

    let own = Use::new(&pod, Shape::FileSystem, &volume);
    let staged = |identity: &Identity| Staged::for_volume(&storage, identity).map(StagingPath::FileSystem);
    let staged_as = identity.as_ref().filter(|_| !is_ephemeral(&data));
    let published = match staged_as.and_then(|identity| Some((identity, staged(identity)?))) {
        Some((identity, staged)) => unstage::record_published(&storage, identity, &target, &staged).await?,
        None => Vec::new(),
    };
    let mut report = match publication::unpublish(&storage, identity.as_ref(), &target, &approved).await {
        Ok(report) => report,
        Err(faults) => {
            let Some(identity) = staged_as else { return Err(faults) };
            let staged = staged(identity).into_iter().collect();
            return Err(unstage::with_staging_mounts(&storage, identity, &own, staged, faults).await);
        }
    };
    if let Some(identity) = staged_as {
        let staged = staged(identity).into_iter().collect();
        report += unstage::unstage_unless_used(&storage, identity, Some(own), staged, &published, &approved).await?;
    }
    report += storage
        .run_blocking("remove", &path, move |storage| {
            remove_volume_dir(storage, &pod, &volume)
        })
        .await?;
    storage.unpublished.remove(&target);
    Ok(report)
}

/// An ephemeral volume of one pod is neither staged nor attached.
fn is_ephemeral(data: &VolumeDataFile) -> bool {
    matches!(data, VolumeDataFile::Read(data) if data.lifecycle == Lifecycle::Ephemeral)
}

fn planned_calls(
    storage: &Storage,
    identity: Option<Identity>,
    own: &Use,
    target: &Path,
    staging: Option<&StagingPath>,
) -> Result<PlannedTeardown, Fault> {
    let table = storage.all_mounts.read()?;
    let mut mounts = table.mounts_at_or_below(&[target]);
    if let Some((identity, staging)) = identity.as_ref().zip(staging) {
        let staged = table.mounts_at_or_below(&[staging.global()]);
        if !staged.is_empty() && users::find_user(storage, identity, Some(own))?.is_none() {
            mounts.extend(staged);
        }
    }
    let (driver, handle) = identity.map(|it| (it.driver, it.handle)).unzip();
    let text = |path: &Path| storage.root.as_given(path).display().to_string();
    Ok(PlannedTeardown::Csi {
        driver,
        handle,
        target: text(target),
        staging: staging.map(|staging| text(&staging.global())),
        mounted: mounts
            .into_iter()
            .map(|mount| mount.path.display().to_string())
            .collect(),
    })
}

/// The kubelet's file in the volume's directory.
fn pod_copy(pod: &PodDir, volume: &VolumeDir) -> Result<VolumeDataFile, Fault> {
    let dir = match pod.open()? {
        Some(dir) => dir.open_below(volume.relative())?,
        None => None,
    };
    dir.map_or(Ok(VolumeDataFile::Missing), |dir| csi_files::read(&dir))
}

/// Removes the volume's directory: the mount point, the kubelet's file and itself, but no other content.
fn remove_volume_dir(storage: &Storage, pod: &PodDir, volume: &VolumeDir) -> Result<DiskReport, Vec<Fault>> {
    let Some(dir) = pod.open().map_err(|fault| vec![fault])? else {
        return Ok(DiskReport::default());
    };
    let mut work = Work::on(&dir, &storage.effects);
    let subdir = Path::new(names::VOLUMES).join(&volume.plugin);
    // Some drivers publish with a symlink, and leave it. It is never followed.
    let target = dir.open_below(subdir.join(&volume.name)).map_err(|fault| vec![fault])?;
    let seen = target.map(|target| target.stat(TARGET.as_ref())).transpose();
    match seen.map_err(|fault| vec![fault])?.flatten() {
        Some(seen) if seen.kind == FileType::Symlink => {
            work.remove_file(subdir.join(&volume.name), TARGET.as_ref());
        }
        _ => work.remove_empty(subdir.join(&volume.name), TARGET.as_ref()),
    }
    // As long as the mount point exists, this file identifies the volume.
    if work.faults.is_empty() {
        work.remove_file(subdir.join(&volume.name), csi_files::FILE.as_ref());
        work.remove_empty(subdir, &volume.name);
    }
    work.done()
}
