//! Work on one pod's directory, with its results and failures.

use std::{ffi::OsStr, ops::AddAssign, path::Path, sync::Arc};

use nix::errno::Errno;

use crate::node::{
    dirs::Dir,
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
    mounts::{MountTable, Mounts, StillMounted, UnmountReport},
    pod_dir::{PodDir, VolumeDir, names},
};

/// Results of work on the disk: everything was removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskReport {
    /// Own unmounts. Propagation may have removed other mounts.
    pub unmounted: usize,
    /// Removed trees, files and directories.
    pub removed: usize,
}

/// Work on one directory.
pub(crate) struct Work<'a> {
    pub dir: &'a Dir,
    pub effects: &'a Effects,
    pub report: DiskReport,
    pub faults: Vec<Fault>,
}

/// Runs `work` on a thread: an unmount may hang on a server that does not answer.
pub(super) async fn blocking<T: Send + 'static>(
    pod: &PodDir,
    effects: &Effects,
    work: impl FnOnce(&PodDir, &Effects) -> Result<T, Vec<Fault>> + Send + 'static,
) -> Result<T, Vec<Fault>> {
    let pod = pod.clone();
    let path = pod.path().to_owned();
    let result = effects.run_blocking(move |effects| work(&pod, effects)).await;
    result.unwrap_or_else(|why| Err(vec![Fault::new("work on", path, why)]))
}

// === impl DiskReport ===

impl AddAssign for DiskReport {
    fn add_assign(&mut self, more: Self) {
        self.unmounted += more.unmounted;
        self.removed += more.removed;
    }
}

// === impl Work ===

impl<'a> Work<'a> {
    pub fn on(dir: &'a Dir, effects: &'a Effects) -> Self {
        Self {
            dir,
            effects,
            report: DiskReport::default(),
            faults: Vec::new(),
        }
    }

    /// Unmounts everything mounted at or below these paths. Returns the mount table after that; `None` with a fault if it cannot
    /// be read.
    pub fn unmount_all(&mut self, mounts: &Mounts, paths: &[&Path]) -> Option<Arc<MountTable>> {
        let done = mounts.unmount_all_at(paths, self.effects);
        self.unmounted(mounts, done)
    }

    /// As [`Self::unmount_all`], for finished unmounts.
    pub fn unmounted(&mut self, mounts: &Mounts, done: Result<UnmountReport, StillMounted>) -> Option<Arc<MountTable>> {
        match done {
            Ok(done) => {
                self.report.unmounted += done.unmounted;
                Some(done.table)
            }
            Err(still) => {
                self.report.unmounted += still.report.unmounted;
                self.faults.extend(still.faults);
                mounts.read().ok()
            }
        }
    }

    /// Removes the volume's directory with its content.
    pub fn remove_volume(&mut self, volume: &VolumeDir) {
        self.remove_tree(Path::new(names::VOLUMES).join(&volume.plugin), &volume.name);
    }

    /// Removes `dir/name` with its content.
    pub fn remove_tree(&mut self, dir: impl AsRef<Path>, name: &OsStr) {
        self.remove_trees(dir, [name]);
    }

    /// Removes these entries of `dir` with their content.
    pub fn remove_trees<N: AsRef<OsStr>>(&mut self, dir: impl AsRef<Path>, names: impl IntoIterator<Item = N>) {
        let Some(dir) = self.below(dir) else { return };
        for name in names {
            match dir.remove_tree(name.as_ref(), self.effects) {
                Ok(outcome) => self.count(outcome),
                Err(faults) => self.faults.extend(faults),
            }
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

    /// Counts the result of a removal.
    pub fn record(&mut self, done: Result<Outcome, Fault>) {
        match done {
            Ok(outcome) => self.count(outcome),
            Err(fault) => self.faults.push(fault),
        }
    }

    pub fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.report.removed += 1,
            Outcome::Nothing => {}
        }
    }

    /// A subdirectory; `None` if it does not exist or cannot be opened.
    fn below(&mut self, dir: impl AsRef<Path>) -> Option<Dir> {
        let opened = self.dir.open_below(dir);
        opened.unwrap_or_else(|fault| {
            self.faults.push(fault);
            None
        })
    }

    pub fn done(self) -> Result<DiskReport, Vec<Fault>> {
        if self.faults.is_empty() {
            Ok(self.report)
        } else {
            Err(self.faults)
        }
    }
}
