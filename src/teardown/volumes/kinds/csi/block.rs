//! A CSI volume as a raw block device.
//!
//! `loop device → bind mount of the device → NodeUnpublishVolume → NodeUnstageVolume → volumesInUse → link in the pod`

use std::{ffi::OsString, sync::Arc};

use futures::future::FutureExt as _;

use super::{
    super::{
        super::{
            kind::{Approved, DeviceKind, OneByOne, TeardownResult},
            planned_teardown::PlannedTeardown,
            storage::Storage,
        },
        device::{self, Maps},
    },
    block_paths::{BlockVolumePaths, MAPS, PUBLISHED, all_in},
    identity::Identity,
    publication,
    staging_path::StagingPath,
    unstage,
    users::{Shape, Use},
};
use crate::{
    node::{
        fault::Fault,
        pod_dir::{PodDir, VolumeDir, names},
    },
    teardown::on_disk::DiskReport,
};

pub struct Block;

// === impl Block ===

impl DeviceKind for Block {
    fn plugin(&self) -> &'static str {
        names::CSI
    }

    fn mapped_for(&self, storage: &Storage, uid: &str) -> Result<Vec<OsString>, Fault> {
        let all = all_in(storage);
        let mut found = device::mapped_for(&all, MAPS, uid)?;
        found.extend(device::mapped_for(&all.join(PUBLISHED), "", uid)?);
        found.sort();
        found.dedup();
        Ok(found)
    }

    fn mapped_pods(&self, storage: &Storage) -> Result<Vec<String>, Fault> {
        let all = all_in(storage);
        let mut pods = device::mapped_pods(storage, &all, MAPS)?;
        pods.extend(device::mapped_pods(storage, &all.join(PUBLISHED), "")?);
        Ok(pods)
    }
}

impl OneByOne for Block {
    fn planned(&self, storage: &Storage, pod: &PodDir, volume: &VolumeDir) -> Result<PlannedTeardown, Fault> {
        let paths = BlockVolumePaths::for_volume(storage, &volume.name);
        let identity = paths.read_identity()?.ok();
        let target = paths.published().join(pod.uid());
        let (own, staging) = (Use::new(pod, Shape::Block, volume), StagingPath::Block(paths));
        super::planned_calls(storage, identity, &own, &target, Some(&staging))
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
    let paths = BlockVolumePaths::for_volume(&storage, &volume.name);
    let what = paths.data();
    let identity = paths.identity(&storage).await?;
    let name = identity
        .as_ref()
        .map_or_else(|| what.display().to_string(), Identity::unique_name);
    let _lock = storage.locks.lock(&name).await;

    let (maps, uid, published_paths) = (paths.maps(), pod.uid().to_owned(), Maps(paths.published()));
    let target = published_paths.0.join(pod.uid());
    let device = [target.clone(), device::link(&pod, &volume)];
    let mut report = storage
        .run_blocking("unmap", &what, move |storage| maps.unmap(storage, &uid, &device))
        .await?;
    let own = Use::new(&pod, Shape::Block, &volume);
    let staging = StagingPath::Block(paths);
    let published = match &identity {
        Some(identity) => unstage::record_published(&storage, identity, &target, &staging).await?,
        None => Vec::new(),
    };
    report += match publication::unpublish(&storage, identity.as_ref(), &target, &approved).await {
        Ok(done) => done,
        Err(faults) => {
            let Some(identity) = &identity else { return Err(faults) };
            let staged = vec![staging];
            return Err(unstage::with_staging_mounts(&storage, identity, &own, staged, faults).await);
        }
    };
    let uid = pod.uid().to_owned();
    // The driver should have removed it. It does not block the pod, and is removed with the volume's directories.
    match storage
        .run_blocking("remove", &what, move |storage| {
            published_paths.remove_leftovers_of(storage, &uid)
        })
        .await
    {
        Ok(done) => report += done,
        Err(faults) if faults.iter().any(Fault::is_blocked) => return Err(faults),
        Err(faults) => {
            tracing::warn!(
                pod.uid = pod.uid(),
                fault = faults.first().map(ToString::to_string),
                "Driver has unpublished a raw block volume and left its mount point"
            );
        }
    }
    if let Some(identity) = &identity {
        let staged = vec![staging];
        report += unstage::unstage_unless_used(&storage, identity, Some(own), staged, &published, &approved).await?;
    }
    report += storage
        .run_blocking("remove", &what, move |storage| {
            device::remove_link(storage, &pod, &volume)
        })
        .await?;
    storage.unpublished.remove(&target);
    Ok(report)
}
