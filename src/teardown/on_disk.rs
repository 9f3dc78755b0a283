//! Work on one pod's directory: what was done and what failed are collected while it goes on.

use std::{ffi::OsStr, path::Path, sync::Arc};

use rustix::io::Errno;

use crate::node::{
    dirs::Dir,
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
    mounts::{Mounts, unmount},
    pod_dir::PodDir,
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
pub(super) struct Work<'a> {
    pub dir: &'a Dir,
    pub effects: &'a Effects,
    pub report: DiskReport,
    pub faults: Vec<Fault>,
}

/// Runs `work` where it may block: an unmount can take long, and can hang on a server that is gone.
pub(super) async fn blocking(
    pod: &PodDir,
    mounts: &Arc<Mounts>,
    effects: &Effects,
    work: fn(&PodDir, &Mounts, &Effects) -> Result<DiskReport, Vec<Fault>>,
) -> Result<DiskReport, Vec<Fault>> {
    let (pod, mounts) = (pod.clone(), mounts.clone());
    let path = pod.path().to_owned();
    let result = effects.work(move |effects| work(&pod, &mounts, effects)).await;
    result.unwrap_or_else(|why| Err(vec![Fault::new("work on", path, why)]))
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

    /// Unmounts `path`; a failure does not count yet.
    pub fn try_unmount(&mut self, path: &Path) {
        if let Ok(outcome) = unmount(path, self.effects) {
            match outcome {
                Outcome::Done => self.report.unmounted += 1,
                Outcome::Withheld => self.report.withheld += 1,
                Outcome::Nothing => {}
            }
        }
    }

    /// Removes `place/name` with all that it holds.
    pub fn remove_tree(&mut self, place: impl AsRef<Path>, name: &OsStr) {
        match self.dir.below(place) {
            Ok(Some(place)) => match place.remove_tree(name, self.effects) {
                Ok(outcome) => self.count(outcome),
                Err(faults) => self.faults.extend(faults),
            },
            Ok(None) => {}
            Err(fault) => self.faults.push(fault),
        }
    }

    /// Removes the entry `name` of `dir` if it is an empty directory; one that holds something stays.
    pub fn remove_if_empty(&mut self, dir: &Dir, name: &OsStr) {
        match dir.remove_empty(name, self.effects) {
            Ok(outcome) => self.count(outcome),
            Err(Fault {
                cause: Cause::Errno(Errno::NOTEMPTY | Errno::EXIST),
                ..
            }) => {}
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

    pub fn done(self) -> Result<DiskReport, Vec<Fault>> {
        if self.faults.is_empty() {
            Ok(self.report)
        } else {
            Err(self.faults)
        }
    }
}
