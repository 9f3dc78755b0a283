//! CSI volumes, as file systems and as raw block devices. The driver unpublishes them for the pod, and unstages them when no pod
//! of this node uses them. The mount table counts, not the driver's response.
//!
//! `identity → loop device of a raw block device → publication (NodeUnpublishVolume) → users → unstage (NodeUnstageVolume) →
//! volumesInUse → the pod's directory or link`

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::FileType;

use super::{
    super::{
        storage::{Approved, Storage},
        volume::{Calls, Shape, Volume},
    },
    device,
};
use crate::{
    node::{
        csi_files::{self, Lifecycle, TARGET, VolumeDataFile},
        fault::Fault,
        pod_dir::names,
    },
    teardown::{on_disk::Work, plan::PlannedAction},
    why::Why,
};

mod identity;
mod other_mounts;
mod publication;
mod staging;
mod unstage;
mod unused;
mod users;

use identity::Identity;
use publication::CsiVolume;
use staging::StagingPath;
pub use staging::{BLOCK_VOLUMES, MAPS, PUBLISHED_DEVICES};
pub use unused::{IsDue, unstage_unused_volumes};
pub use users::{csi_users, is_csi_volume_used};

/// What tearing the volume down would call.
pub fn planned(storage: &Storage, volume: &Volume) -> Result<Calls, Fault> {
    let target = &target(storage, volume);
    let (identity, is_staged) = read_files(storage, volume)?;
    let identity = identity.ok();
    let staging = staging_path(storage, volume, identity.as_ref()).filter(|_| is_staged);
    let table = storage.all_mounts.read()?;
    let mut mounts = table.mounts_at_or_below(&[target]);
    if let Some((identity, staging)) = identity.as_ref().zip(staging.as_ref()) {
        let staged = table.mounts_at_or_below(&[staging.global()]);
        if !staged.is_empty() && users::find_user(storage, identity, Some(volume))?.is_none() {
            mounts.extend(staged);
        }
    }
    let (driver, handle) = identity.map(|it| (it.driver, it.handle)).unzip();
    let given = |path: &Path| storage.root.as_given(path).display().to_string();
    let unpublish = PlannedAction::UnpublishVolume {
        driver: driver.clone(),
        handle: handle.clone(),
        target: given(target),
    };
    let unstage = staging.map(|staging| PlannedAction::UnstageVolume {
        driver: driver.clone(),
        handle,
        path: given(&staging.global()),
    });
    let mounted = mounts.into_iter().map(|mount| mount.path.display().to_string());
    Ok(Calls {
        driver,
        target: Some(target.display().to_string()),
        mounted: mounted.collect(),
        actions: [unpublish].into_iter().chain(unstage).collect(),
    })
}

/// Tears down the volume. It may be repeated.
pub async fn tear_down(storage: &Arc<Storage>, volume: &Volume, approved: &Approved) -> Result<(), Vec<Fault>> {
    let target = &target(storage, volume);
    let (identity, staging) = identify(storage, volume).await?;
    let name = identity.as_ref().map(Identity::unique_name);
    let name = name.unwrap_or_else(|| target.display().to_string());
    let _lock = storage.locks.lock(&name).await;
    let csi = identity.as_ref().map(|identity| CsiVolume {
        storage,
        identity,
        approved,
    });
    let staged = csi.zip(staging);

    if volume.shape == Shape::Block {
        let (maps, uid) = (staging::mapped(storage, &volume.dir.name), volume.pod.uid().to_owned());
        let device = [target.clone(), volume.path.clone()];
        let unmap = move |storage: &Storage| maps.unmap(storage, &uid, &device);
        storage.run_blocking("unmap", target, unmap).await?;
    }
    let published = match &staged {
        Some((csi, staging)) => csi.record_published(target, staging).await?,
        None => Vec::new(),
    };
    if let Err(faults) = publication::unpublish(storage, csi, target).await {
        return Err(match &staged {
            Some((csi, staging)) => csi.with_staging_mounts(volume, vec![staging.clone()], faults).await,
            None => faults,
        });
    }
    if volume.shape == Shape::Block {
        remove_published(storage, volume).await?;
    }
    if let Some((csi, staging)) = staged {
        csi.unstage_unless_used(Some(volume), vec![staging], &published).await?;
    }
    let volume = volume.clone();
    let remove = move |storage: &Storage| match volume.shape {
        Shape::FileSystem => remove_volume_dir(storage, &volume),
        Shape::Block => device::remove_link(storage, &volume),
    };
    storage.run_blocking("remove", target, remove).await
}

/// Where the driver publishes the volume for the pod.
fn target(storage: &Storage, volume: &Volume) -> PathBuf {
    match volume.shape {
        Shape::FileSystem => volume.path.join(TARGET),
        Shape::Block => staging::published(storage, &volume.dir.name).0.join(volume.pod.uid()),
    }
}

/// The volume in the kubelet's files, and whether it may be staged. Blocks.
fn read_files(storage: &Storage, volume: &Volume) -> Result<(Result<Identity, Why>, bool), Fault> {
    if volume.shape == Shape::Block {
        return Ok((StagingPath::block(storage, &volume.dir.name).read_identity()?, true));
    }
    let dir = match volume.pod.open()? {
        Some(dir) => dir.open_below(volume.dir.relative())?,
        None => None,
    };
    let data = dir.map_or(Ok(VolumeDataFile::Missing), |dir| csi_files::read(&dir))?;
    // An ephemeral volume of one pod is neither staged nor attached.
    let is_ephemeral = matches!(&data, VolumeDataFile::Read(data) if data.lifecycle == Lifecycle::Ephemeral);
    Ok((Identity::read(data, &volume.path), !is_ephemeral))
}

fn staging_path(storage: &Storage, volume: &Volume, identity: Option<&Identity>) -> Option<StagingPath> {
    match volume.shape {
        Shape::FileSystem => StagingPath::file_system(storage, identity?),
        Shape::Block => Some(StagingPath::block(storage, &volume.dir.name)),
    }
}

/// The volume, by the kubelet's files, else by its PersistentVolume, and where it is staged, unless it never is.
async fn identify(
    storage: &Arc<Storage>,
    volume: &Volume,
) -> Result<(Option<Identity>, Option<StagingPath>), Vec<Fault>> {
    let (uid, read) = (volume.pod.uid(), volume.clone());
    let read = storage.read_blocking(volume.pod.path(), move |storage| read_files(storage, &read));
    let (identity, is_staged) = read.await?;
    let identity = match identity {
        Ok(identity) => Some(identity),
        Err(why) => {
            tracing::warn!(pod.uid = uid, %why, "Volume is not identified by its file");
            Identity::of_persistent_volume(storage, &volume.dir.name, &target(storage, volume)).await?
        }
    };
    let staging = staging_path(storage, volume, identity.as_ref()).filter(|_| is_staged);
    Ok((identity, staging))
}

/// Removes what the driver should have removed where it published a raw block device. It does not block the pod, and is removed with
/// the volume's directories.
async fn remove_published(storage: &Arc<Storage>, Volume { pod, dir, .. }: &Volume) -> Result<(), Vec<Fault>> {
    let (maps, uid) = (staging::published(storage, &dir.name), pod.uid().to_owned());
    let what = maps.0.clone();
    let remove = move |storage: &Storage| maps.remove_leftovers(&storage.effects, Some(&uid));
    match storage.run_blocking("remove", what, remove).await {
        Err(faults) if !faults.iter().any(Fault::is_blocked) => {
            tracing::warn!(
                pod.uid = pod.uid(),
                fault = faults.first().map(ToString::to_string),
                "Driver has unpublished a raw block volume and left its mount point"
            );
            Ok(())
        }
        done => done,
    }
}

/// Removes the volume's directory: the mount point, the kubelet's file and itself, but no other content.
fn remove_volume_dir(storage: &Storage, Volume { pod, dir: volume, .. }: &Volume) -> Result<(), Vec<Fault>> {
    let Some(dir) = pod.open()? else {
        return Ok(());
    };
    let mut work = Work::on(&dir, &storage.effects);
    let subdir = Path::new(names::VOLUMES).join(&volume.plugin);
    // Some drivers publish with a symlink, and leave it. It is never followed.
    let target = dir.open_below(subdir.join(&volume.name))?;
    let seen = target.map(|target| target.stat(TARGET.as_ref())).transpose();
    match seen?.flatten() {
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
