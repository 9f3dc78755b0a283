//! Thaws cgroups. A frozen process handles no signal; SIGKILL takes effect at once on v2, on v1 after the thaw.

use std::{
    fs,
    path::{Path, PathBuf},
};

use cgroups_rs::{FreezerState, fs::freezer::FreezerController};
use nix::errno::Errno;

use super::{
    HierarchyKind,
    group::{Group, errno_of, is_removed, may_exist},
};
use crate::node::{
    effects::{Effects, Outcome},
    fault::Fault,
};

const THAW: &str = "thaw";

// === impl Group ===

impl Group {
    /// Thaws the cgroup and all cgroups below it. Parents come first, since a frozen parent freezes its children.
    pub fn thaw_all(&self) -> Result<(), Fault> {
        let mut thawed = self.thaw_one(&self.path);
        for dir in self.frozen_cgroups()? {
            thawed = thawed.and(self.thaw_one(&dir));
        }
        thawed
    }

    fn thaw_one(&self, dir: &Path) -> Result<(), Fault> {
        let thawed = self.freezer(dir).map_or(Ok(()), |freezer| freezer.thaw());
        ignore_removed(THAW, dir, thawed.map_err(errno_of))
    }

    /// Thaws all processes in the cgroup, so that they handle signals. A frozen process handles none, except SIGKILL on
    /// v2.
    pub fn thaw(&self, effects: &Effects) -> Result<Outcome, Fault> {
        if self.frozen_cgroups()?.is_empty() {
            return Ok(Outcome::Nothing);
        }
        effects.perform(THAW, &self.path, || self.thaw_all())??;
        Ok(Outcome::Done)
    }

    /// The cgroups at or below this one that are frozen, also by a cgroup above it.
    pub fn frozen(&self) -> Result<Vec<PathBuf>, Fault> {
        let mut frozen = self.frozen_cgroups()?;
        // On v1 the state includes that of the cgroups above.
        let events = || fs::read_to_string(self.path.join("cgroup.events")).unwrap_or_default();
        if self.kind == HierarchyKind::V2
            && !frozen.contains(&self.path)
            && events().lines().any(|line| line == "frozen 1")
        {
            frozen.insert(0, self.path.clone());
        }
        Ok(frozen)
    }

    /// The cgroups at or below this one that are frozen themselves, or about to be.
    fn frozen_cgroups(&self) -> Result<Vec<PathBuf>, Fault> {
        let mut frozen = Vec::new();
        if self.kind == HierarchyKind::V1 || !self.exists() {
            return Ok(frozen);
        }
        for dir in self.tree()? {
            match self.freezer(&dir).map(|freezer| freezer.state()) {
                None | Some(Ok(FreezerState::Thawed)) => {}
                Some(Ok(FreezerState::Freezing | FreezerState::Frozen)) => frozen.push(dir),
                Some(Err(error)) => ignore_removed("read the freezer of", &dir, Err(errno_of(error)))?,
            }
        }
        Ok(frozen)
    }

    /// The freezer of a cgroup in this hierarchy. `None` without a freezer file: cgroups-rs would try to create it, and
    /// its `EACCES` looks like a refusal.
    fn freezer(&self, dir: &Path) -> Option<FreezerController> {
        let file = match self.kind {
            HierarchyKind::V2 => "cgroup.freeze",
            HierarchyKind::Freezer => "freezer.state",
            HierarchyKind::V1 => return None,
        };
        let is_v2 = self.kind == HierarchyKind::V2;
        may_exist(&dir.join(file)).then(|| FreezerController::new(dir.to_owned(), PathBuf::new(), is_v2))
    }
}

/// Ignores errors about a cgroup that has been removed meanwhile.
fn ignore_removed(verb: &'static str, path: &Path, done: Result<(), Errno>) -> Result<(), Fault> {
    match done {
        Err(errno) if !is_removed(errno) => Err(Fault::new(verb, path, errno)),
        Ok(()) | Err(_) => Ok(()),
    }
}
