//! Work on one pod's directory: what was done and what failed are collected while it goes on.

use std::{ffi::OsStr, ops::AddAssign, path::Path, sync::Arc};

use nix::errno::Errno;

use crate::node::{
    dirs::Dir,
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
    mounts::{MountTable, Mounts, StillMounted, UnmountReport},
    pod_dir::{PodDir, VolumeDir, names},
};

/// What was done on the disk. Everything asked for is gone, unless a dry run withheld something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use = "a dry run may have withheld everything"]
pub struct DiskReport {
    /// Unmounts by hand; propagation may have taken other mounts along.
    pub unmounted: usize,
    /// Trees, files and directories that were removed.
    pub removed: usize,
    /// Effects that a dry run decided and did not carry out.
    pub withheld: usize,
}

/// A pod's directory and what becomes of it.
pub(crate) struct Work<'a> {
    pub dir: &'a Dir,
    pub effects: &'a Effects,
    pub report: DiskReport,
    pub faults: Vec<Fault>,
}

/// Runs `work` where it may block: an unmount can take long, and can hang on a server that is gone.
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
        self.withheld += more.withheld;
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

    /// Unmounts all that is mounted on `places` and below them. Says what is mounted after that; nothing where it cannot be
    /// told, and then a fault says so.
    pub fn unmount_all(&mut self, mounts: &Mounts, places: &[&Path]) -> Option<Arc<MountTable>> {
        let done = mounts.unmount_all_at(places, self.effects);
        self.unmounted(mounts, done)
    }

    /// As [`Self::unmount_all`] where that has come to its end.
    pub fn unmounted(&mut self, mounts: &Mounts, done: Result<UnmountReport, StillMounted>) -> Option<Arc<MountTable>> {
        match done {
            Ok(done) => {
                self.report.unmounted += done.unmounted;
                self.report.withheld += done.withheld;
                Some(done.table)
            }
            Err(still) => {
                self.report.unmounted += still.report.unmounted;
                self.faults.extend(still.faults);
                mounts.read().ok()
            }
        }
    }

    /// Removes the volume's directory with all that it holds.
    pub fn remove_volume(&mut self, volume: &VolumeDir) {
        self.remove_tree(Path::new(names::VOLUMES).join(&volume.plugin), &volume.name);
    }

    /// Removes `place/name` with all that it holds.
    pub fn remove_tree(&mut self, place: impl AsRef<Path>, name: &OsStr) {
        self.remove_trees(place, [name]);
    }

    /// Removes all of these in `place` with all that they hold.
    pub fn remove_trees<N: AsRef<OsStr>>(&mut self, place: impl AsRef<Path>, names: impl IntoIterator<Item = N>) {
        let Some(place) = self.below(place) else { return };
        for name in names {
            match place.remove_tree(name.as_ref(), self.effects) {
                Ok(outcome) => self.count(outcome),
                Err(faults) => self.faults.extend(faults),
            }
        }
    }

    /// Removes `place/name`, which must not be a directory.
    pub fn remove_file(&mut self, place: impl AsRef<Path>, name: &OsStr) {
        if let Some(place) = self.below(place) {
            self.keep(place.remove_file(name, self.effects));
        }
    }

    /// Removes `place/name`, which must be an empty directory.
    pub fn remove_empty(&mut self, place: impl AsRef<Path>, name: &OsStr) {
        if let Some(place) = self.below(place) {
            self.keep(place.remove_empty(name, self.effects));
        }
    }

    /// Removes the entry `name` of `dir` if it is an empty directory; one that holds something stays.
    pub fn remove_if_empty(&mut self, dir: &Dir, name: &OsStr) {
        match dir.remove_empty(name, self.effects) {
            Err(Fault {
                cause: Cause::Errno(Errno::ENOTEMPTY | Errno::EEXIST),
                ..
            }) => {}
            done => self.keep(done),
        }
    }

    /// Counts what was done, and collects what failed.
    pub fn keep(&mut self, done: Result<Outcome, Fault>) {
        match done {
            Ok(outcome) => self.count(outcome),
            Err(fault) => self.faults.push(fault),
        }
    }

    pub fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.report.removed += 1,
            Outcome::Withheld => self.report.withheld += 1,
            Outcome::Nothing => {}
        }
    }

    /// A directory in it, if it is there.
    fn below(&mut self, place: impl AsRef<Path>) -> Option<Dir> {
        let opened = self.dir.open_below(place);
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
