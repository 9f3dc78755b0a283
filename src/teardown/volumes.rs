//! Volumes of a pod: unmounted, removed, and looked at again.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

pub use super::on_disk::DiskReport as VolumesReport;
use super::on_disk::{Work, blocking};
use crate::node::{
    effects::Effects,
    fault::{Cause, Fault},
    mounts::{MountTable, Mounts},
    pod_dir::{PodDir, names, two_levels},
};

mod found;

use found::{Found, Known};

/// Takes the pod's volumes away and looks whether they are gone.
///
/// Volumes of kinds that are not handled are left alone, and are errors: such a pod has to wait. A second call has
/// nothing to do.
pub async fn tear_down_volumes(
    pod: &PodDir,
    mounts: &Arc<Mounts>,
    effects: &Effects,
) -> Result<VolumesReport, Vec<Fault>> {
    blocking(pod, mounts, effects, take_away).await
}

fn take_away(pod: &PodDir, mounts: &Mounts, effects: &Effects) -> Result<VolumesReport, Vec<Fault>> {
    let one = |fault| vec![fault];
    let Some(dir) = pod.open().map_err(one)? else {
        let elsewhere = mounted_elsewhere(pod, &*mounts.read().map_err(one)?);
        return if elsewhere.is_empty() {
            Ok(VolumesReport::default())
        } else {
            Err(elsewhere)
        };
    };
    let found = Found::in_dir(&dir).map_err(one)?;
    let mut work = Work::on(&dir, effects);
    work.faults.extend(found.left_alone.iter().cloned());

    for known in &found.known {
        unmount_plain(&mut work, known);
    }
    let table = unmount_all(&mut work, mounts, &found)?;

    // A dry run has unmounted nothing, and says what it would remove if it had.
    let busy = |places: &[&Path]| !effects.dry_run() && !table.at_or_below(places).is_empty();
    for subpaths in found.subpaths().filter(|path| !busy(&[path])) {
        work.remove_tree(names::SUBPATHS, subpaths.file_name().unwrap_or_default());
    }
    for known in found.known.iter().filter(|known| !busy(&known.places())) {
        work.remove_tree(Path::new(names::VOLUMES).join(&known.volume.plugin), &known.volume.name);
    }
    work.remove_if_empty(&dir, names::SUBPATHS.as_ref());

    if work.report.withheld == 0 {
        let explained: Vec<&Path> = work
            .faults
            .iter()
            .map(|fault| &fault.path)
            .chain(&found.kept)
            .map(PathBuf::as_path)
            .collect();
        let more = unexplained(pod, &table, &explained).map_err(one)?;
        work.faults.extend(more);
    }
    work.done()
}

/// The mounts that every such volume has, straight away and without the mount table, which is dear to read.
///
/// Failures do not count yet: the kernel refuses to unmount what has something mounted inside, and the rounds over the
/// table that follow find whatever is left, in the right order.
fn unmount_plain(work: &mut Work<'_>, known: &Known) {
    if let Some(subpaths) = known.subpaths.as_ref().filter(|_| !work.effects.dry_run()) {
        let targets = two_levels(work.dir, Path::new(names::SUBPATHS).join(&known.volume.name)).unwrap_or_default();
        for (container, index) in targets {
            work.try_unmount(&subpaths.join(container).join(index));
        }
    }
    // The marker goes before the volume, so that nobody takes a half of it for a volume that is set up.
    if let Some(marker) = known.volume.marker() {
        work.remove_tree(Path::new(names::PLUGINS).join(names::EMPTY_DIR), &marker);
    }
    if !work.effects.dry_run() {
        work.try_unmount(&known.path);
    }
}

/// Unmounts all that is left on the places of the volumes and below them, and says what is mounted after that.
fn unmount_all(work: &mut Work<'_>, mounts: &Mounts, found: &Found) -> Result<Arc<MountTable>, Vec<Fault>> {
    let mut places: Vec<&Path> = found.subpaths().collect();
    places.extend(found.known.iter().map(|known| known.path.as_path()));
    match mounts.unmount_all_at(&places, work.effects) {
        Ok(done) => {
            work.report.unmounted += done.unmounted;
            work.report.withheld += done.withheld;
            Ok(done.table)
        }
        Err(still) => {
            work.report.unmounted += still.report.unmounted;
            work.faults.extend(still.faults);
            // Without a table nothing is known to be unmounted, so nothing is removed.
            mounts.read().map_err(|_told_already| std::mem::take(&mut work.faults))
        }
    }
}

/// What is there although no fault says why, by the disk as it is now and by the mount table.
///
/// The table may be the one that the removals rested on: a directory that was removed has nothing mounted in it.
fn unexplained(pod: &PodDir, table: &MountTable, explained: &[&Path]) -> Result<Vec<Fault>, Fault> {
    let explained = |path: &Path| explained.iter().any(|it| it.starts_with(path) || path.starts_with(it));
    let on_disk = pod
        .leftovers_on_disk()?
        .into_iter()
        .map(|path| Fault::new("remove", path, Cause::StillThere));
    let mounted = pod
        .mounted(table)
        .into_iter()
        .map(|path| Fault::new("unmount", path, Cause::StillMounted));
    let here = on_disk.chain(mounted).filter(|fault| !explained(&fault.path));
    Ok(here.chain(mounted_elsewhere(pod, table)).collect())
}

fn mounted_elsewhere(pod: &PodDir, table: &MountTable) -> Vec<Fault> {
    let elsewhere = table.elsewhere(pod.uid());
    elsewhere
        .map(|path| Fault::new("unmount", path, Cause::MountedElsewhere))
        .collect()
}
