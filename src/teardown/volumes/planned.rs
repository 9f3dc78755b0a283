//! How the volumes of a pod would be torn down. Only reads directories and the kubelet's files; never a mounted file system.

use std::path::Path;

use super::{kinds, pod_volumes::PodVolumes, storage::Storage, volume::Calls};
use crate::{
    node::{fault::Fault, mounts::MountTable, pod_dir::PodDir},
    teardown::plan::PlannedAction,
};

/// A volume, or mounts and a directory without one, and how it would be torn down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedVolume {
    /// Name of its directory.
    pub name: String,
    /// What is called for it.
    pub calls: Calls,
    /// All actions, in their order.
    pub actions: Vec<PlannedAction>,
}

/// The pod's volumes, in the order of their teardown. Blocks.
pub fn planned(pod: &PodDir, storage: &Storage, table: &MountTable) -> Result<Vec<PlannedVolume>, Fault> {
    let mapped = kinds::mapped_for(storage, pod.uid())?;
    let found = match pod.open()? {
        Some(dir) => PodVolumes::in_dir(pod, &dir, mapped)?,
        None => PodVolumes::without_dir(pod, mapped),
    };
    let own = found.own.iter().map(|(_, volume)| volume.paths());
    let simple = own.chain(found.stray.iter().map(|path| vec![path.as_path()]));
    let simple = simple.map(|paths| planned_at(&paths, table, Calls::default()));
    let mut all: Vec<_> = simple.collect();
    for (kind, volume) in &found.shared {
        all.push(planned_at(&volume.paths(), table, kind.planned(storage, volume)?));
    }
    let unsupported = found.skipped.iter().map(|fault| PlannedVolume {
        name: String::new(),
        calls: Calls::default(),
        actions: vec![PlannedAction::LeaveVolume {
            path: fault.path.display().to_string(),
            why: fault.cause.to_string(),
        }],
    });
    all.extend(unsupported);
    Ok(all)
}

/// `paths` are all directories of the volume, in the order of their removal, with its own last. Mounts at or below these are unmounted
/// first.
fn planned_at(paths: &[&Path], table: &MountTable, calls: Calls) -> PlannedVolume {
    let is_by_driver = |path: &Path| calls.target.as_ref().is_some_and(|target| path == Path::new(target));
    let mounts = table.mounts_at_or_below(paths).into_iter();
    let unmounts = mounts
        .filter(|mount| !is_by_driver(&mount.path))
        .map(|mount| PlannedAction::Unmount {
            path: mount.path.display().to_string(),
            fs_type: mount.fs_type.to_string_lossy().into_owned(),
        });
    let removals = paths.iter().map(|path| PlannedAction::RemoveDirectory {
        path: path.display().to_string(),
    });
    let name = paths.last().and_then(|path| path.file_name());
    PlannedVolume {
        name: name.unwrap_or_default().to_string_lossy().into_owned(),
        actions: unmounts.chain(calls.actions.iter().cloned()).chain(removals).collect(),
        calls,
    }
}
