//! Freezes and thaws cgroups. A frozen process cannot fork; SIGKILL takes effect at once on v2, on v1 after the thaw.

use std::{
    fs::File,
    io::{self, Seek as _},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
};

use cgroups_rs::{FreezerState, fs::freezer::FreezerController};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};

use super::{
    HierarchyKind,
    group::{Group, errno_of, is_removed, may_exist},
    survivor::is_runnable_or_exited,
};
use crate::node::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{Fault, errno},
};

const FREEZE: &str = "freeze";
const THAW: &str = "thaw";
/// Number of polls, with waits that double from a millisecond: eight seconds in total. A process has to be scheduled
/// before it is frozen, which takes long with hundreds of them.
const POLLS: u32 = 13;
/// After this many polls, a quarter of a second, no process that does not run is inside a fork.
const FORK_POLLS: u32 = 8;

// === impl Group ===

impl Group {
    /// Freezes all processes in the cgroup and below it. Does nothing on v2 before Linux 5.2, which has no freezer.
    pub fn freeze(&self) -> Result<(), Fault> {
        let Some(freezer) = self.freezer(&self.path) else {
            return Ok(());
        };
        checkpoint::before(FREEZE, &self.path);
        let frozen = freezer.freeze().map_err(errno_of);
        let frozen = frozen.and_then(|()| self.wait_until_frozen(&freezer));
        checkpoint::after(FREEZE, &self.path);
        ignore_removed(FREEZE, &self.path, frozen)
    }

    /// cgroups-rs does not wait, and on v2 its state is the requested one. On v2 `cgroup.events` reports frozen processes
    /// and can be polled; on v1 the state is read again.
    fn wait_until_frozen(&self, freezer: &FreezerController) -> Result<(), Errno> {
        let events = (self.kind == HierarchyKind::V2).then(|| File::open(self.path.join("cgroup.events")));
        let events = events.transpose().map_err(|error| errno(&error))?;
        let mut wait: u16 = 1;
        for nth in 0..POLLS {
            let is_frozen = match &events {
                Some(events) => reports_frozen(events).map_err(|error| errno(&error))?,
                None => matches!(freezer.state().map_err(errno_of)?, FreezerState::Frozen),
            };
            if is_frozen || nth >= FORK_POLLS && !self.may_run() {
                break;
            }
            let change = events.iter().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLPRI));
            // The next read decides, whatever ended the wait.
            poll(&mut Vec::from_iter(change), PollTimeout::from(wait)).ok();
            wait *= 2;
        }
        Ok(())
    }

    /// Whether any process may run. A process in uninterruptible sleep cannot be frozen, and cannot fork either.
    fn may_run(&self) -> bool {
        let processes = self.processes();
        processes.is_ok_and(|pids| pids.iter().any(|pid| is_runnable_or_exited(*pid)))
    }

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
        effects
            .allow(&Effect::new(THAW, &self.path))
            .map_err(|held| Fault::new(THAW, &self.path, held))?;
        let thawed = self.thaw_all();
        checkpoint::after(THAW, &self.path);
        thawed.map(|()| Outcome::Done)
    }

    /// The cgroups at or below this one that are frozen, also by a cgroup above it.
    pub fn frozen(&self) -> Result<Vec<PathBuf>, Fault> {
        let mut frozen = self.frozen_cgroups()?;
        // On v1 the state includes that of the cgroups above.
        let events = File::open(self.path.join("cgroup.events"));
        if self.kind == HierarchyKind::V2
            && !frozen.contains(&self.path)
            && events.is_ok_and(|events| reports_frozen(&events).unwrap_or_default())
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

/// Whether `cgroup.events` reports all processes as frozen.
fn reports_frozen(mut events: &File) -> io::Result<bool> {
    events.rewind()?;
    Ok(io::read_to_string(events)?.lines().any(|line| line == "frozen 1"))
}

/// Ignores errors about a cgroup that has been removed meanwhile.
fn ignore_removed(verb: &'static str, path: &Path, done: Result<(), Errno>) -> Result<(), Fault> {
    match done {
        Err(errno) if !is_removed(errno) => Err(Fault::new(verb, path, errno)),
        Ok(()) | Err(_) => Ok(()),
    }
}
