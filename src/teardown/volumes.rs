//! Volumes of a pod: unmounted, removed, and checked on disk.
//!
//! `found → {the agent's own kinds: unmount → mount table → remove} → {one by one: driver, shared mounts} → check`

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures::future::join_all;

pub use super::on_disk::DiskReport as VolumesReport;
use super::on_disk::{Work, blocking};
use crate::node::{
    dirs::Dir,
    effects::Effects,
    fault::{Cause, Fault},
    mounts::{Cover, MountTable, Mounts, TableRequest, UnmountRounds, UnmountScope, hanging},
    pod_dir::{PodDir, VolumeDir, entries_by_plugin, names, volumes_in},
};

mod kind;
mod kinds;
mod planned;
mod planned_teardown;
mod pod_volumes;
pub mod storage;

pub use kind::Approved;
use kind::{OneByOne, VolumeKind};
pub use kinds::csi::{IsDue, UnstageResults, is_csi_volume_used, unstage_unused_volumes};
pub use kinds::mapped_pods;
pub use planned::{PlannedMount, PlannedVolume, planned};
pub use planned_teardown::PlannedTeardown;
use pod_volumes::PodVolumes;
use storage::Storage;

/// Tears down the pod's volumes and checks that they are removed. It may be repeated.
///
/// # Errors
/// All failures. Volumes of unsupported kinds stay unchanged and are failures.
pub async fn tear_down_volumes(pod: &PodDir, storage: &Arc<Storage>) -> Result<VolumesReport, Vec<Fault>> {
    tear_down_approved(pod, storage, Approved::default()).await
}

/// As [`tear_down_volumes`]. The approved volumes count as unpublished without their drivers.
pub async fn tear_down_approved(
    pod: &PodDir,
    storage: &Arc<Storage>,
    approved: Approved,
) -> Result<VolumesReport, Vec<Fault>> {
    let done = tear_down_all(pod, storage, approved).await;
    let Err(mut faults) = done else { return done };
    if faults.iter().any(|fault| fault.cause == Cause::StillMounted)
        && let Ok(table) = storage
            .read_blocking(pod.path(), |storage| storage.all_mounts.read())
            .await
    {
        for fault in faults.iter_mut().filter(|fault| fault.cause == Cause::StillMounted) {
            if let Some(cover) = table.cover_of(&fault.path) {
                fault.cause = Cause::Hidden(Box::new(Cover::new(cover, &table)));
            }
        }
    }
    Err(faults)
}

async fn tear_down_all(pod: &PodDir, storage: &Arc<Storage>, approved: Approved) -> Result<VolumesReport, Vec<Fault>> {
    let GroupResult {
        mut report,
        mut faults,
        one_by_one,
    } = tear_down(pod, storage).await?;
    if !one_by_one.is_empty() {
        let volumes = one_by_one.into_iter().map(|(volume, kind)| {
            let (storage, pod) = (Arc::clone(storage), pod.clone());
            kind.tear_down(storage, pod, volume, Arc::clone(&approved))
        });
        for done in join_all(volumes).await {
            match done {
                Ok(done) => report += done,
                Err(more) => faults.extend(more),
            }
        }
        if faults.is_empty() {
            let (again, request) = (Arc::clone(storage), storage.mounts.request());
            blocking(pod, &storage.effects, move |pod, _| check_removed(pod, &again, request)).await?;
        }
    }
    if faults.is_empty() { Ok(report) } else { Err(faults) }
}

/// Whether a volume is left that a controller may have attached to this node. An unreadable volume may be one, and so may a mount
/// of a pod without directory. Blocks.
pub fn may_hold_attached(pod: &PodDir, mounts: &Mounts) -> bool {
    let may_be = |volume: &VolumeDir| kinds::for_plugin(&volume.plugin).is_none_or(VolumeKind::may_be_attached);
    let check = |dir: &Dir| -> Result<bool, Fault> {
        Ok(volumes_in(dir)?.iter().any(may_be) || !entries_by_plugin(dir, names::DEVICES)?.is_empty())
    };
    match pod.open() {
        Ok(Some(dir)) => check(&dir).unwrap_or(true),
        Ok(None) => mounts.read().map_or(true, |table| is_anything_mounted(pod, &table)),
        Err(_) => true,
    }
}

/// Result for the volumes that are torn down together, and the volumes for the second step.
struct GroupResult {
    report: VolumesReport,
    faults: Vec<Fault>,
    one_by_one: Vec<(VolumeDir, &'static dyn OneByOne)>,
}

/// The volumes of a pod during their teardown. It has no descriptors: very many pods may wait at a time.
struct Teardown {
    found: PodVolumes,
    report: VolumesReport,
    faults: Vec<Fault>,
    unmounting: UnmountRounds,
}

/// Tears down the volumes that need no driver. The work is split: pods that terminate together wait for the same mount table in
/// between. Each requests it before the first one gets a thread to read it, and all have unmounted by then.
async fn tear_down(pod: &PodDir, storage: &Arc<Storage>) -> Result<GroupResult, Vec<Fault>> {
    let own = Arc::clone(storage);
    let mut next = blocking(pod, &storage.effects, move |pod, _| Teardown::begin(pod, &own)).await?;
    loop {
        let teardown = match next {
            ControlFlow::Continue(teardown) => teardown,
            ControlFlow::Break(done) => return Ok(done),
        };
        let (own, request) = (Arc::clone(storage), storage.mounts.request());
        let resume = move |pod: &PodDir, _: &Effects| teardown.resume(pod, &own, request);
        next = blocking(pod, &storage.effects, resume).await?;
    }
}

// === impl Teardown ===

impl Teardown {
    fn begin(pod: &PodDir, storage: &Storage) -> Result<ControlFlow<GroupResult, Self>, Vec<Fault>> {
        let one = |fault| vec![fault];
        let (mounts, effects) = (&storage.mounts, &storage.effects);
        let mapped = find_mapped_volumes(storage, pod.uid()).map_err(one)?;
        let Some(dir) = pod.open().map_err(one)? else {
            // The content of a renamed or covered directory does not show its mounts.
            let one_by_one = pod_volumes::one_by_one(mapped);
            let table = mounts.read().map_err(one)?;
            let mut faults = mounted_without_directory(pod, &table, one_by_one.is_empty());
            faults.extend(hanging(effects, |path| path.starts_with(pod.path())));
            return Ok(ControlFlow::Break(GroupResult {
                report: VolumesReport::default(),
                faults,
                one_by_one,
            }));
        };
        let found = PodVolumes::in_dir(&dir, mapped).map_err(one)?;
        let mut work = Work::on(&dir, effects);
        work.faults.extend(found.skipped.iter().cloned());
        // Markers are removed first, so that no kubelet takes a half-removed volume for a complete one.
        let markers = found.known.iter().filter_map(|it| it.kind.marker(&it.volume.name));
        work.remove_trees(Path::new(names::PLUGINS).join(names::EMPTY_DIR), markers);
        let Work { report, faults, .. } = work;
        let known = found.known.iter().map(|known| known.path.as_path());
        let paths = found.subpaths().chain(known).map(Path::to_owned).collect();
        let unmounting = mounts.start_unmount(UnmountScope::AtOrBelow(paths), effects);
        Ok(ControlFlow::Continue(Self {
            found,
            report,
            faults,
            unmounting,
        }))
    }

    fn resume(
        self,
        pod: &PodDir,
        storage: &Storage,
        request: TableRequest,
    ) -> Result<ControlFlow<GroupResult, Self>, Vec<Fault>> {
        let (mounts, effects) = (&storage.mounts, &storage.effects);
        match self.unmounting.run_next(mounts.read_since(request), effects) {
            ControlFlow::Continue(unmounting) => Ok(ControlFlow::Continue(Self { unmounting, ..self })),
            ControlFlow::Break(unmounted) => {
                let Some(dir) = pod.open().map_err(|fault| vec![fault])? else {
                    // It was removed meanwhile.
                    return Self::begin(pod, storage);
                };
                let mut work = Work {
                    dir: &dir,
                    effects,
                    report: self.report,
                    faults: self.faults,
                };
                match work.unmounted(mounts, unmounted) {
                    Some(table) => remove(work, pod, self.found, &table).map(ControlFlow::Break),
                    // Without a mount table nothing is known to be unmounted, and nothing is removed.
                    None => Err(work.faults),
                }
            }
        }
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
        work.remove_tree(names::SUBPATHS, subpaths.file_name().unwrap_or_default());
    }
    for known in found.known.iter().filter(|known| !busy(&known.paths())) {
        known.kind.remove(&mut work, &known.volume);
    }
    work.remove_if_empty(work.dir, names::SUBPATHS.as_ref());

    let PodVolumes { one_by_one, kept, .. } = found;
    let (ready, busy): (Vec<_>, Vec<_>) = one_by_one
        .into_iter()
        .partition(|it| it.subpaths.as_ref().is_none_or(|subpaths| !busy(&[subpaths])));
    let explained = work.faults.iter().map(|fault| &fault.path).chain(&kept);
    let explained = explained.chain(ready.iter().chain(&busy).map(|it| &it.path));
    let explained: Vec<&Path> = explained.map(PathBuf::as_path).collect();
    let more = find_leftovers(pod, table, &explained, effects).map_err(|fault| vec![fault])?;
    work.faults.extend(more);
    // Until drivers have unpublished their volumes, these may be other views of those.
    if ready.is_empty() && busy.is_empty() {
        work.faults.extend(mounted_elsewhere(pod, table));
        work.faults.extend(devices(pod, table));
    }
    Ok(GroupResult {
        report: work.report,
        faults: work.faults,
        one_by_one: ready.into_iter().map(|it| (it.volume, it.kind)).collect(),
    })
}

/// Raw block volumes with files for this pod outside of its directory.
fn find_mapped_volumes(storage: &Storage, uid: &str) -> Result<Vec<VolumeDir>, Fault> {
    let mut mapped = Vec::new();
    for kind in kinds::devices() {
        let volumes = kind.mapped_for(storage, uid)?;
        mapped.extend(volumes.into_iter().map(|name| VolumeDir {
            plugin: kind.plugin().into(),
            name,
        }));
    }
    Ok(mapped)
}

fn check_removed(pod: &PodDir, storage: &Storage, request: TableRequest) -> Result<(), Vec<Fault>> {
    let one = |fault| vec![fault];
    let table = storage.mounts.read_since(request).map_err(one)?;
    let mut more = find_leftovers(pod, &table, &[], &storage.effects).map_err(one)?;
    more.extend(mounted_elsewhere(pod, &table));
    more.extend(devices(pod, &table));
    if more.is_empty() { Ok(()) } else { Err(more) }
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
    let on_disk = pod
        .leftovers_on_disk()?
        .into_iter()
        .map(|path| Fault::new("remove", path, Cause::StillThere));
    let hanging = hanging(effects, |path| path.starts_with(pod.path()));
    let here = on_disk
        .chain(mounted_below(pod, table))
        .chain(hanging)
        .filter(|fault| !explained(&fault.path));
    Ok(here.collect())
}

fn mounted_below(pod: &PodDir, table: &MountTable) -> impl Iterator<Item = Fault> {
    let mounted = pod.mounted(table).into_iter();
    mounted.map(|path| Fault::new("unmount", path, Cause::StillMounted))
}

fn mounted_elsewhere(pod: &PodDir, table: &MountTable) -> impl Iterator<Item = Fault> {
    let elsewhere = table.stray_mounts(pod.uid());
    elsewhere.map(|path| Fault::new("unmount", path, Cause::MountedElsewhere))
}

/// Raw block devices mapped for the pod, by the mount table alone: the teardown searches directories.
fn devices(pod: &PodDir, table: &MountTable) -> impl Iterator<Item = Fault> {
    let devices = table.mapped_devices(pod.uid()).iter();
    devices.map(|path| Fault::new("unmount", path, Cause::StillMounted))
}

/// Mounts of a pod without directory. A volume whose path has no UID may be the pod's.
fn mounted_without_directory(pod: &PodDir, table: &MountTable, with_devices: bool) -> Vec<Fault> {
    let nameless = table.volumes_without_uid().iter();
    let nameless = nameless.map(|path| Fault::new("unmount", path, Cause::MountedForUnknownPod));
    let known = mounted_below(pod, table)
        .chain(mounted_elsewhere(pod, table))
        .chain(nameless);
    known.chain(devices(pod, table).filter(|_| with_devices)).collect()
}

/// Whether anything is or may be mounted for the pod, regardless of its directory.
pub fn is_anything_mounted(pod: &PodDir, table: &MountTable) -> bool {
    !mounted_without_directory(pod, table, true).is_empty()
}
