//! Volumes of a pod: unmounted, removed, and looked at again.
//!
//! `found → {kinds of the agent's own: unmount → mount table → remove} → {one by one: driver, shared mounts} → look again`

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
    mounts::{MountTable, Mounts, TableRequest, UnmountRounds, UnmountScope, hanging},
    pod_dir::{PodDir, VolumeDir, entries_by_plugin, names, volumes_in},
};

mod found;
mod kind;
mod kinds;
pub mod storage;

use found::Found;
pub use kind::{Approved, mapped_pods};
use kind::{OneByOne, VolumeKind};
pub use kinds::csi::{IsDue, Released, release_unused};
use storage::Storage;

/// Takes the pod's volumes away and looks whether they are gone.
///
/// Volumes of kinds that are not handled are left alone, and are errors: such a pod has to wait. A second call has
/// nothing to do.
pub async fn tear_down_volumes(pod: &PodDir, storage: &Arc<Storage>) -> Result<VolumesReport, Vec<Fault>> {
    tear_down_approved(pod, storage, Approved::default()).await
}

/// The same, where some volumes go without their drivers.
pub async fn tear_down_approved(
    pod: &PodDir,
    storage: &Arc<Storage>,
    approved: Approved,
) -> Result<VolumesReport, Vec<Fault>> {
    let Done {
        mut report,
        mut faults,
        one_by_one,
    } = take_away(pod, storage).await?;
    if !one_by_one.is_empty() {
        let volumes = one_by_one.into_iter().map(|(volume, way)| {
            let (storage, pod) = (Arc::clone(storage), pod.clone());
            way.take_away(storage, pod, volume, Arc::clone(&approved))
        });
        for done in join_all(volumes).await {
            match done {
                Ok(done) => report += done,
                Err(more) => faults.extend(more),
            }
        }
        if report.withheld == 0 && faults.is_empty() {
            let (again, request) = (Arc::clone(storage), storage.mounts.request());
            blocking(pod, &storage.effects, move |pod, _| is_gone(pod, &again, request)).await?;
        }
    }
    if faults.is_empty() { Ok(report) } else { Err(faults) }
}

/// Whether a volume is here that a controller may have attached to this node. What cannot be looked at may be one, and so may
/// what is mounted for a pod whose directory is not there. Blocks.
pub fn may_hold_attached(pod: &PodDir, mounts: &Mounts) -> bool {
    let may_be = |volume: &VolumeDir| kind::of(&volume.plugin).is_none_or(VolumeKind::may_be_attached);
    let look = |dir: &Dir| -> Result<bool, Fault> {
        Ok(volumes_in(dir)?.iter().any(may_be) || !entries_by_plugin(dir, names::DEVICES)?.is_empty())
    };
    match pod.open() {
        Ok(Some(dir)) => look(&dir).unwrap_or(true),
        Ok(None) => mounts.read().map_or(true, |table| is_anything_mounted(pod, &table)),
        Err(_) => true,
    }
}

/// What became of the volumes that the agent takes away all at once, and which are left for the second step.
struct Done {
    report: VolumesReport,
    faults: Vec<Fault>,
    one_by_one: Vec<(VolumeDir, &'static dyn OneByOne)>,
}

/// The volumes of a pod while they are being taken away. Without descriptors: very many pods may wait at a time.
struct Taking {
    found: Found,
    report: VolumesReport,
    faults: Vec<Fault>,
    unmounting: UnmountRounds,
}

/// In pieces of work between which all that end together wait for the same mount table: each has asked for it by the time
/// that the first of them has its turn to read it, and all of them are unmounted by then.
async fn take_away(pod: &PodDir, storage: &Arc<Storage>) -> Result<Done, Vec<Fault>> {
    let own = Arc::clone(storage);
    let mut next = blocking(pod, &storage.effects, move |pod, _| Taking::begin(pod, &own)).await?;
    loop {
        let taking = match next {
            ControlFlow::Continue(taking) => taking,
            ControlFlow::Break(done) => return Ok(done),
        };
        let (own, request) = (Arc::clone(storage), storage.mounts.request());
        let go_on = move |pod: &PodDir, _: &Effects| taking.go_on(pod, &own, request);
        next = blocking(pod, &storage.effects, go_on).await?;
    }
}

// === impl Taking ===

impl Taking {
    fn begin(pod: &PodDir, storage: &Storage) -> Result<ControlFlow<Done, Self>, Vec<Fault>> {
        let one = |fault| vec![fault];
        let (mounts, effects) = (&storage.mounts, &storage.effects);
        let mapped = mapped(storage, pod.uid()).map_err(one)?;
        let Some(dir) = pod.open().map_err(one)? else {
            // A directory that is renamed or covered shows nothing of what is mounted in it.
            let one_by_one = found::one_by_one(mapped);
            let table = mounts.read().map_err(one)?;
            let mut faults = mounted_without_directory(pod, &table, one_by_one.is_empty());
            faults.extend(hanging(effects, |path| path.starts_with(pod.path())));
            return Ok(ControlFlow::Break(Done {
                report: VolumesReport::default(),
                faults,
                one_by_one,
            }));
        };
        let found = Found::in_dir(&dir, mapped).map_err(one)?;
        let mut work = Work::on(&dir, effects);
        work.faults.extend(found.left_alone.iter().cloned());
        // The markers go before the volumes, so that nobody takes a half of one for a volume that is set up.
        let markers = found.known.iter().filter_map(|it| it.kind.marker(&it.volume.name));
        work.remove_trees(Path::new(names::PLUGINS).join(names::EMPTY_DIR), markers);
        let Work { report, faults, .. } = work;
        let known = found.known.iter().map(|known| known.path.as_path());
        let places = found.subpaths().chain(known).map(Path::to_owned).collect();
        let unmounting = mounts.start_unmount(UnmountScope::AtOrBelow(places), effects);
        Ok(ControlFlow::Continue(Self {
            found,
            report,
            faults,
            unmounting,
        }))
    }

    fn go_on(
        self,
        pod: &PodDir,
        storage: &Storage,
        request: TableRequest,
    ) -> Result<ControlFlow<Done, Self>, Vec<Fault>> {
        let (mounts, effects) = (&storage.mounts, &storage.effects);
        match self.unmounting.run_next(mounts.read_since(request), effects) {
            ControlFlow::Continue(unmounting) => Ok(ControlFlow::Continue(Self { unmounting, ..self })),
            ControlFlow::Break(unmounted) => {
                let Some(dir) = pod.open().map_err(|fault| vec![fault])? else {
                    // Somebody has removed it meanwhile.
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
                    // Without a table nothing is known to be unmounted, so nothing is removed.
                    None => Err(work.faults),
                }
            }
        }
    }
}

/// Removes all of which nothing is mounted any more.
fn remove(mut work: Work<'_>, pod: &PodDir, found: Found, table: &MountTable) -> Result<Done, Vec<Fault>> {
    let effects = work.effects;
    // A dry run has unmounted nothing, and says what it would remove if it had.
    // An unmount that has not come back holds its place: what was written is still on its way.
    let mut left = pod.mounted(table);
    left.extend(work.faults.iter().map(|fault| fault.path.clone()));
    let holds_any = |place: &&Path| left.iter().any(|path| path.starts_with(place));
    let busy = |places: &[&Path]| !effects.is_dry_run() && places.iter().any(holds_any);
    for subpaths in found.subpaths().filter(|path| !busy(&[path])) {
        work.remove_tree(names::SUBPATHS, subpaths.file_name().unwrap_or_default());
    }
    for known in found.known.iter().filter(|known| !busy(&known.places())) {
        known.kind.remove(&mut work, &known.volume);
    }
    work.remove_if_empty(work.dir, names::SUBPATHS.as_ref());

    let Found { one_by_one, kept, .. } = found;
    let (ready, busy): (Vec<_>, Vec<_>) = one_by_one
        .into_iter()
        .partition(|it| it.subpaths.as_ref().is_none_or(|subpaths| !busy(&[subpaths])));
    if work.report.withheld == 0 {
        let explained = work.faults.iter().map(|fault| &fault.path).chain(&kept);
        let explained = explained.chain(ready.iter().chain(&busy).map(|it| &it.path));
        let explained: Vec<&Path> = explained.map(PathBuf::as_path).collect();
        let more = unexplained(pod, table, &explained, effects).map_err(|fault| vec![fault])?;
        work.faults.extend(more);
        if ready.is_empty() && busy.is_empty() {
            work.faults.extend(devices(pod, table));
        }
    }
    Ok(Done {
        report: work.report,
        faults: work.faults,
        one_by_one: ready.into_iter().map(|it| (it.volume, it.way)).collect(),
    })
}

/// Raw block volumes of which something is left for this pod outside of its directory.
fn mapped(storage: &Storage, uid: &str) -> Result<Vec<VolumeDir>, Fault> {
    let mut mapped = Vec::new();
    for kind in kind::devices() {
        let volumes = kind.mapped_for(storage, uid)?;
        mapped.extend(volumes.into_iter().map(|name| VolumeDir {
            plugin: kind.plugin().into(),
            name,
        }));
    }
    Ok(mapped)
}

fn is_gone(pod: &PodDir, storage: &Storage, request: TableRequest) -> Result<(), Vec<Fault>> {
    let one = |fault| vec![fault];
    let table = storage.mounts.read_since(request).map_err(one)?;
    let mut more = unexplained(pod, &table, &[], &storage.effects).map_err(one)?;
    more.extend(devices(pod, &table));
    if more.is_empty() { Ok(()) } else { Err(more) }
}

/// What is there although no fault says why, by the disk as it is now and by the mount table.
///
/// The table may be the one that the removals rested on: a directory that was removed has nothing mounted in it.
fn unexplained(pod: &PodDir, table: &MountTable, explained: &[&Path], effects: &Effects) -> Result<Vec<Fault>, Fault> {
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
    Ok(here.chain(mounted_elsewhere(pod, table)).collect())
}

fn mounted_below(pod: &PodDir, table: &MountTable) -> impl Iterator<Item = Fault> {
    let mounted = pod.mounted(table).into_iter();
    mounted.map(|path| Fault::new("unmount", path, Cause::StillMounted))
}

fn mounted_elsewhere(pod: &PodDir, table: &MountTable) -> impl Iterator<Item = Fault> {
    let elsewhere = table.stray_mounts(pod.uid());
    elsewhere.map(|path| Fault::new("unmount", path, Cause::MountedElsewhere))
}

/// Raw block devices that are mapped for the pod, by the mount table alone: whoever takes them away looks for directories.
fn devices(pod: &PodDir, table: &MountTable) -> impl Iterator<Item = Fault> {
    let devices = table.mapped_devices(pod.uid()).iter();
    devices.map(|path| Fault::new("unmount", path, Cause::StillMounted))
}

/// What is mounted for a pod that has no directory. A volume in a path that tells no UID may be its own, too.
fn mounted_without_directory(pod: &PodDir, table: &MountTable, with_devices: bool) -> Vec<Fault> {
    let nameless = table.volumes_without_uid().iter();
    let nameless = nameless.map(|path| Fault::new("unmount", path, Cause::MountedForUnknownPod));
    let known = mounted_below(pod, table)
        .chain(mounted_elsewhere(pod, table))
        .chain(nameless);
    known.chain(devices(pod, table).filter(|_| with_devices)).collect()
}

/// Whether anything is mounted for the pod, or may be, whatever its directory shows.
pub fn is_anything_mounted(pod: &PodDir, table: &MountTable) -> bool {
    !mounted_without_directory(pod, table, true).is_empty()
}
