//! Removes a pod's directory when no volume is left in it.

use std::{ffi::OsStr, sync::Arc};

use super::on_disk::{DiskReport, Work, blocking};
use crate::node::{
    dirs::Dir,
    effects::Effects,
    fault::{Cause, Fault},
    mounts::{Mounts, TableRequest},
    pod_dir::{PodDir, names},
};

/// Removes the pod's directory, after its object is deleted.
///
/// # Errors
/// If a volume is left, anything is mounted below, or a removal fails.
pub async fn remove_pod_dir(pod: &PodDir, mounts: &Arc<Mounts>, effects: &Effects) -> Result<DiskReport, Vec<Fault>> {
    // Asked before the work waits for a thread: pods that terminate together share a mount table.
    let (mounts, question) = (Arc::clone(mounts), mounts.request());
    blocking(pod, effects, move |pod, effects| {
        remove(pod, &mounts, question, effects)
    })
    .await
}

fn remove(pod: &PodDir, mounts: &Mounts, request: TableRequest, effects: &Effects) -> Result<DiskReport, Vec<Fault>> {
    let one = |fault| vec![fault];
    let left = pod.leftovers_in(mounts, request).map_err(one)?;
    if !left.is_empty() {
        return Err(left
            .into_iter()
            .map(|path| Fault::new("remove", path, Cause::StillThere))
            .collect());
    }
    let Some(parent) = pod.open_parent().map_err(one)? else {
        return Ok(DiskReport::default());
    };
    let Some(dir) = parent.open_below(pod.uid()).map_err(one)? else {
        return Ok(DiskReport::default());
    };

    let mut work = Work::on(&dir, effects);
    for name in dir.names().map_err(one)? {
        match name.to_str() {
            // Directories of data must be empty: a volume that appears meanwhile stops the removal.
            Some(names::VOLUMES | names::DEVICES | names::SUBPATHS) => {
                if let Err(fault) = remove_empty_levels(&mut work, &dir, &name) {
                    work.faults.push(fault);
                }
            }
            _ => match dir.remove_tree(&name, effects) {
                Ok(outcome) => work.count(outcome),
                Err(faults) => work.faults.extend(faults),
            },
        }
    }
    if work.faults.is_empty() {
        work.record(parent.remove_empty(pod.uid().as_ref(), effects));
    }
    work.done()
}

/// Removes `name` and the directories directly in it. All must be empty.
fn remove_empty_levels(work: &mut Work<'_>, dir: &Dir, name: &OsStr) -> Result<(), Fault> {
    if let Some(dir) = dir.open_below(name)? {
        for plugin in dir.names()? {
            work.count(dir.remove_empty(&plugin, work.effects)?);
        }
    }
    work.count(dir.remove_empty(name, work.effects)?);
    Ok(())
}
