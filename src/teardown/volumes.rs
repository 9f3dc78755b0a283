//! Volumes of a pod: unmounted, removed, and checked on disk.
//!
//! `found → {the agent's own kinds: unmount → mount table → remove} → {one by one: driver, shared mounts} → check`

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::future::join_all;

use super::on_disk::Work;
use crate::{
    model::failure::ok_if_empty,
    node::{
        dirs::Dir,
        effects::Effects,
        fault::{Cause, Fault},
        mounts::{Cover, MountTable, Mounts, hanging},
        pod_dir::{PodDir, VolumeDir, entries_by_plugin, names, volumes_in},
    },
};

mod kinds;
mod planned;
mod pod_volumes;
pub mod storage;
mod volume;

pub use kinds::csi::{IsDue, csi_users, is_csi_volume_used, unstage_unused_volumes};
pub use kinds::mapped_pods;
use kinds::{Kind, SharedKind};
pub use planned::{PlannedVolume, planned};
use pod_volumes::PodVolumes;
pub use storage::Approved;
use storage::Storage;
use volume::{Shape, Volume};

/// Tears down the pod's volumes and checks that they are removed. The approved volumes count as unpublished without their drivers.
/// It may be repeated.
///
/// # Errors
/// All failures. Volumes of unsupported kinds stay unchanged and are failures.
pub async fn tear_down_volumes(pod: &PodDir, storage: &Arc<Storage>, approved: &Approved) -> Result<(), Vec<Fault>> {
    let done = tear_down_all(pod, storage, approved).await;
    let Err(mut faults) = done else { return done };
    if faults.iter().any(|fault| fault.cause == Cause::StillMounted)
        && let Ok(table) = storage.table().await
    {
        for fault in faults.iter_mut().filter(|fault| fault.cause == Cause::StillMounted) {
            if let Some(cover) = table.cover_of(&fault.path) {
                fault.cause = Cause::Hidden(Box::new(Cover::new(cover, &table)));
            }
        }
    }
    Err(faults)
}

async fn tear_down_all(pod: &PodDir, storage: &Arc<Storage>, approved: &Approved) -> Result<(), Vec<Fault>> {
    let own = pod.clone();
    let tear_down = move |storage: &Storage| tear_down(&own, storage);
    let (mut faults, shared) = storage.run_blocking("tear down", pod.path(), tear_down).await?;
    if !shared.is_empty() {
        let volumes = shared.iter().map(|(kind, it)| kind.tear_down(storage, it, approved));
        for done in join_all(volumes).await {
            faults.extend(done.err().into_iter().flatten());
        }
        if faults.is_empty() {
            let own = pod.clone();
            let check = move |storage: &Storage| check_removed(&own, storage);
            storage.run_blocking("check", pod.path(), check).await?;
        }
    }
    ok_if_empty(faults)
}

/// Whether a volume is left that a controller may have attached to this node. An unreadable volume may be one, and so may a mount
/// of a pod without directory. Blocks.
pub fn may_hold_attached(pod: &PodDir, mounts: &Mounts) -> bool {
    let is_attachable = |kind| kind == Kind::Shared(SharedKind::Csi);
    let may_be = |it: &VolumeDir| kinds::for_plugin(Shape::FileSystem, &it.plugin).is_none_or(is_attachable);
    let check = |dir: &Dir| -> Result<bool, Fault> {
        Ok(volumes_in(dir)?.iter().any(may_be) || !entries_by_plugin(dir, names::DEVICES)?.is_empty())
    };
    match pod.open() {
        Ok(Some(dir)) => check(&dir).unwrap_or(true),
        Ok(None) => mounts.read().map_or(true, |table| is_anything_mounted(pod, &table)),
        Err(_) => true,
    }
}

/// The faults of the volumes that are torn down together, and the volumes for the second step.
type GroupResult = (Vec<Fault>, Vec<(SharedKind, Volume)>);

/// Tears down the volumes that need no driver. Blocks.
fn tear_down(pod: &PodDir, storage: &Storage) -> Result<GroupResult, Vec<Fault>> {
    let (mounts, effects) = (&storage.mounts, &storage.effects);
    let mapped = kinds::mapped_for(storage, pod.uid())?;
    let Some(dir) = pod.open()? else {
        // The content of a renamed or covered directory does not show its mounts.
        let shared = PodVolumes::without_dir(pod, mapped).shared;
        let table = mounts.read()?;
        let mut faults = mounted_without_directory(pod, &table, shared.is_empty());
        faults.extend(hanging(effects, |path| path.starts_with(pod.path())));
        return Ok((faults, shared));
    };
    let found = PodVolumes::in_dir(pod, &dir, mapped)?;
    let mut work = Work::on(&dir, effects);
    work.faults.extend(found.skipped.iter().cloned());
    // Markers are removed first, so that no kubelet takes a half-removed volume for a complete one.
    let markers = found.own.iter().filter_map(|(kind, it)| kind.marker(&it.dir.name));
    work.remove_trees(Path::new(names::PLUGINS).join(names::EMPTY_DIR), markers);
    let own = found.own.iter().map(|(_, volume)| volume.path.as_path());
    let paths: Vec<&Path> = found.subpaths().chain(own).collect();
    match work.unmount_all(mounts, &paths) {
        Some(table) => remove(work, pod, found, &table),
        // Without a mount table nothing is known to be unmounted, and nothing is removed.
        None => Err(work.faults),
    }
}

/// Removes volumes without mounts.
fn remove(mut work: Work<'_>, pod: &PodDir, found: PodVolumes, table: &MountTable) -> Result<GroupResult, Vec<Fault>> {
    let effects = work.effects;
    // During an unmount that hangs, data may still be written: the volume stays.
    let mut left = pod.mounted(table);
    left.extend(work.faults.iter().map(|fault| fault.path.clone()));
    let holds_any = |dir: &&Path| left.iter().any(|path| path.starts_with(dir));
    let busy = |paths: &[&Path]| paths.iter().any(holds_any);
    for subpaths in found.subpaths().filter(|path| !busy(&[path])) {
        work.remove_trees(names::SUBPATHS, subpaths.file_name());
    }
    for (kind, volume) in found.own.iter().filter(|(_, volume)| !busy(&volume.paths())) {
        kind.remove(&mut work, &volume.dir);
    }
    work.remove_if_empty(work.dir, names::SUBPATHS.as_ref());

    let PodVolumes { shared, kept, .. } = found;
    let is_ready = |it: &Volume| it.subpaths.as_ref().is_none_or(|subpaths| !busy(&[subpaths]));
    let (ready, busy): (Vec<_>, Vec<_>) = shared.into_iter().partition(|(_, it)| is_ready(it));
    let explained = work.faults.iter().map(|fault| &fault.path).chain(&kept);
    let explained = explained.chain(ready.iter().chain(&busy).map(|(_, it)| &it.path));
    let explained: Vec<&Path> = explained.map(PathBuf::as_path).collect();
    let more = find_leftovers(pod, table, &explained, effects)?;
    work.faults.extend(more);
    // Until drivers have unpublished their volumes, these may be other views of those.
    if ready.is_empty() && busy.is_empty() {
        work.faults.extend(mounted_elsewhere(pod, table, true));
    }
    Ok((work.faults, ready))
}

fn check_removed(pod: &PodDir, storage: &Storage) -> Result<(), Vec<Fault>> {
    let table = storage.mounts.read()?;
    let mut more = find_leftovers(pod, &table, &[], &storage.effects)?;
    more.extend(mounted_elsewhere(pod, &table, true));
    ok_if_empty(more)
}

/// Leftovers in the pod's directory that no fault explains, on disk and in the mount table.
///
/// The table may be the one from before the removals: a removed directory had no mounts.
fn find_leftovers(
    pod: &PodDir,
    table: &MountTable,
    explained: &[&Path],
    effects: &Effects,
) -> Result<Vec<Fault>, Fault> {
    let explained = |path: &Path| explained.iter().any(|it| it.starts_with(path) || path.starts_with(it));
    let on_disk = pod.leftovers_on_disk()?.into_iter();
    let on_disk = on_disk.map(|path| Fault::new("remove", path, Cause::StillThere));
    let hanging = hanging(effects, |path| path.starts_with(pod.path()));
    let here = on_disk.chain(mounted_below(pod, table)).chain(hanging);
    Ok(here.filter(|fault| !explained(&fault.path)).collect())
}

fn mounted_below(pod: &PodDir, table: &MountTable) -> impl Iterator<Item = Fault> {
    let mounted = pod.mounted(table).into_iter();
    mounted.map(|path| Fault::new("unmount", path, Cause::StillMounted))
}

/// Mounts for the pod outside of its directory. `with_devices`: also raw block devices mapped for it, by the mount table alone: the
/// teardown searches directories.
fn mounted_elsewhere(pod: &PodDir, table: &MountTable, with_devices: bool) -> impl Iterator<Item = Fault> {
    let elsewhere = table.strays.of_pod(pod.uid());
    let elsewhere = elsewhere.map(|path| Fault::new("unmount", path, Cause::MountedElsewhere));
    let devices = table.strays.devices_of(pod.uid()).iter().filter(move |_| with_devices);
    elsewhere.chain(devices.map(|path| Fault::new("unmount", path, Cause::StillMounted)))
}

/// Mounts of a pod without directory. A volume whose path has no UID may be the pod's.
fn mounted_without_directory(pod: &PodDir, table: &MountTable, with_devices: bool) -> Vec<Fault> {
    let nameless = table.strays.volumes_without_uid().iter();
    let nameless = nameless.map(|path| Fault::new("unmount", path, Cause::MountedForUnknownPod));
    let known = mounted_below(pod, table).chain(mounted_elsewhere(pod, table, with_devices));
    known.chain(nameless).collect()
}

/// Whether anything is or may be mounted for the pod, regardless of its directory.
pub fn is_anything_mounted(pod: &PodDir, table: &MountTable) -> bool {
    !mounted_without_directory(pod, table, true).is_empty()
}
