//! Work on the directories of pods and volumes, which collects its faults.

use std::{ffi::OsStr, path::Path, sync::Arc};

use nix::errno::Errno;

use super::volumes::storage::Storage;
use crate::{
    model::failure::ok_if_empty,
    node::{
        dirs::Dir,
        effects::{Effects, Outcome},
        fault::{Cause, Fault},
        mounts::{MountTable, Mounts},
        pod_dir::{PodDir, names},
    },
};

/// Work on one directory.
pub(crate) struct Work<'a> {
    pub dir: &'a Dir,
    pub effects: &'a Effects,
    pub faults: Vec<Fault>,
}

/// Removes the pod's directory, after its object is deleted.
///
/// # Errors
/// If a volume is left, anything is mounted below, or a removal fails.
pub async fn remove_pod_dir(pod: &PodDir, storage: &Arc<Storage>) -> Result<(), Vec<Fault>> {
    let removed = pod.clone();
    let remove = move |storage: &Storage| remove(&removed, storage);
    storage.run_blocking("remove", pod.path(), remove).await
}

fn remove(pod: &PodDir, storage: &Storage) -> Result<(), Vec<Fault>> {
    let left = pod.leftovers(&storage.mounts)?.into_iter();
    let left: Vec<_> = left.map(|path| Fault::new("remove", path, Cause::StillThere)).collect();
    if !left.is_empty() {
        return Err(left);
    }
    let Some(parent) = pod.open_parent()? else {
        return Ok(());
    };
    let Some(dir) = parent.open_below(pod.uid())? else {
        return Ok(());
    };
    let mut work = Work::on(&dir, &storage.effects);
    for name in dir.names()? {
        match name.to_str() {
            // Directories of data must be empty: a volume that appears meanwhile stops the removal.
            Some(names::VOLUMES | names::DEVICES | names::SUBPATHS) => {
                work.record(remove_empty_levels(&dir, &name, &storage.effects));
            }
            _ => {
                let removed = dir.remove_tree(&name, &storage.effects);
                work.faults.extend(removed.err().into_iter().flatten());
            }
        }
    }
    if work.faults.is_empty() {
        work.record(parent.remove_empty(pod.uid().as_ref(), &storage.effects));
    }
    work.done()
}

/// Removes `name` and the directories directly in it. All must be empty.
fn remove_empty_levels(dir: &Dir, name: &OsStr, effects: &Effects) -> Result<Outcome, Fault> {
    if let Some(dir) = dir.open_below(name)? {
        for plugin in dir.names()? {
            dir.remove_empty(&plugin, effects)?;
        }
    }
    dir.remove_empty(name, effects)
}

// === impl Work ===

impl<'a> Work<'a> {
    pub fn on(dir: &'a Dir, effects: &'a Effects) -> Self {
        Self {
            dir,
            effects,
            faults: Vec::new(),
        }
    }

    /// Unmounts everything mounted at or below these paths. Returns the mount table after that; `None` with a fault if it cannot
    /// be read.
    pub fn unmount_all(&mut self, mounts: &Mounts, paths: &[&Path]) -> Option<Arc<MountTable>> {
        match mounts.unmount_all_at(paths, self.effects) {
            Ok(table) => Some(table),
            Err(still) => {
                self.faults.extend(still);
                mounts.read().ok()
            }
        }
    }

    /// Removes these entries of `dir` with their content.
    pub fn remove_trees<N: AsRef<OsStr>>(&mut self, dir: impl AsRef<Path>, names: impl IntoIterator<Item = N>) {
        let Some(dir) = self.below(dir) else { return };
        for name in names {
            let removed = dir.remove_tree(name.as_ref(), self.effects);
            self.faults.extend(removed.err().into_iter().flatten());
        }
    }

    /// Removes `dir/name`, which must not be a directory.
    pub fn remove_file(&mut self, dir: impl AsRef<Path>, name: &OsStr) {
        if let Some(dir) = self.below(dir) {
            self.record(dir.remove_file(name, self.effects));
        }
    }

    /// Removes `dir/name`, which must be an empty directory. The fault names files in it.
    pub fn remove_empty(&mut self, dir: impl AsRef<Path>, name: &OsStr) {
        if let Some(dir) = self.below(dir) {
            let removed = dir.remove_empty(name, self.effects);
            self.record(removed.map_err(|fault| {
                let is_full = matches!(fault.cause, Cause::Errno(Errno::ENOTEMPTY | Errno::EEXIST));
                let full = is_full.then(|| dir.open_below(name).ok().flatten()).flatten();
                match full.and_then(|full| full.left_files()) {
                    Some(left) => Fault::new(fault.verb, &fault.path, Cause::NotEmpty(left)),
                    None => fault,
                }
            }));
        }
    }

    /// Removes the entry `name` of `dir` if it is an empty directory.
    pub fn remove_if_empty(&mut self, dir: &Dir, name: &OsStr) {
        match dir.remove_empty(name, self.effects) {
            Err(Fault {
                cause: Cause::Errno(Errno::ENOTEMPTY | Errno::EEXIST),
                ..
            }) => {}
            done => self.record(done),
        }
    }

    /// Records the fault of a removal.
    pub fn record(&mut self, done: Result<Outcome, Fault>) {
        self.faults.extend(done.err());
    }

    /// A subdirectory; `None` if it does not exist or cannot be opened.
    fn below(&mut self, dir: impl AsRef<Path>) -> Option<Dir> {
        let opened = self.dir.open_below(dir);
        opened.unwrap_or_else(|fault| {
            self.faults.push(fault);
            None
        })
    }

    pub fn done(self) -> Result<(), Vec<Fault>> {
        ok_if_empty(self.faults)
    }
}
