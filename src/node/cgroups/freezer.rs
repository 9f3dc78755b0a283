//! Freezing and thawing: who is frozen forks no more, and dies of SIGKILL in v2 at once, in v1 when it is thawed.

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
    group::{Group, errno_of, is_gone, is_there, tree},
    survivor::is_ready,
};
use crate::node::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{Fault, errno},
};

const FREEZE: &str = "freeze";
const THAW: &str = "thaw";
/// So often is looked, with waits after that double from a millisecond: together eight seconds. Each process has to have
/// its turn to run before it is frozen, and hundreds of them wait long for it.
const LOOKS: u32 = 13;
/// After so many, in a quarter of a second, nobody is within a fork any more who does not run.
const BRIEF: u32 = 8;

// === impl Group ===

impl Group {
    /// Freezes all that is in it and below it, as far as that goes: a kernel before 5.2 has no freezer in v2.
    pub fn freeze(&self) -> Result<(), Fault> {
        let Some(freezer) = self.freezer(&self.path) else {
            return Ok(());
        };
        checkpoint::before(FREEZE, &self.path);
        let frozen = freezer.freeze().map_err(errno_of);
        let frozen = frozen.and_then(|()| self.until_frozen(&freezer));
        checkpoint::after(FREEZE, &self.path);
        unless_gone(FREEZE, &self.path, frozen)
    }

    /// cgroups-rs does not wait, and its state of v2 is what was asked for. That all are frozen is told by `cgroup.events`,
    /// which also says when; v1 is asked again.
    fn until_frozen(&self, freezer: &FreezerController) -> Result<(), Errno> {
        let events = (self.kind == HierarchyKind::V2).then(|| File::open(self.path.join("cgroup.events")));
        let events = events.transpose().map_err(|error| errno(&error))?;
        let mut wait: u16 = 1;
        for nth in 0..LOOKS {
            let is_frozen = match &events {
                Some(events) => is_told(events).map_err(|error| errno(&error))?,
                None => matches!(freezer.state().map_err(errno_of)?, FreezerState::Frozen),
            };
            if is_frozen || nth >= BRIEF && !self.runs() {
                break;
            }
            let change = events.iter().map(|it| PollFd::new(it.as_fd(), PollFlags::POLLPRI));
            // Whatever ends it, the next look tells.
            poll(&mut Vec::from_iter(change), PollTimeout::from(wait)).ok();
            wait *= 2;
        }
        Ok(())
    }

    /// Whether anything in it could run. Whoever waits in the kernel for a disk or a server cannot be frozen, and does not
    /// fork either.
    fn runs(&self) -> bool {
        let processes = self.processes();
        processes.is_ok_and(|pids| pids.iter().any(|pid| is_ready(*pid)))
    }

    /// Lets all that is frozen in it run, whoever froze it. Parents first, since a frozen parent freezes its children.
    pub fn thaw_all(&self) -> Result<(), Fault> {
        let mut thawed = self.thaw_one(&self.path);
        for dir in self.frozen()? {
            thawed = thawed.and(self.thaw_one(&dir));
        }
        thawed
    }

    fn thaw_one(&self, dir: &Path) -> Result<(), Fault> {
        let thawed = self.freezer(dir).map_or(Ok(()), |freezer| freezer.thaw());
        unless_gone(THAW, dir, thawed.map_err(errno_of))
    }

    /// Lets what is frozen in it run, if only into its end: a frozen process takes no signal but, with v2, SIGKILL.
    pub fn thaw(&self, effects: &Effects) -> Result<Outcome, Fault> {
        if self.frozen()?.is_empty() {
            return Ok(Outcome::Nothing);
        }
        if !effects
            .allow(&Effect::new(THAW, &self.path))
            .map_err(|held| Fault::new(THAW, &self.path, held))?
        {
            return Ok(Outcome::Withheld);
        }
        let thawed = self.thaw_all();
        checkpoint::after(THAW, &self.path);
        thawed.map(|()| Outcome::Done)
    }

    /// The cgroups in it that are frozen by themselves, or are about to be.
    fn frozen(&self) -> Result<Vec<PathBuf>, Fault> {
        let mut frozen = Vec::new();
        if self.kind == HierarchyKind::V1 {
            return Ok(frozen);
        }
        for dir in tree(&self.path)? {
            match self.freezer(&dir).map(|freezer| freezer.state()) {
                None | Some(Ok(FreezerState::Thawed)) => {}
                Some(Ok(FreezerState::Freezing | FreezerState::Frozen)) => frozen.push(dir),
                Some(Err(error)) => unless_gone("read the freezer of", &dir, Err(errno_of(error)))?,
            }
        }
        Ok(frozen)
    }

    /// The freezer of a cgroup in this hierarchy. cgroups-rs would try to make a file that is not there, and `EACCES` would
    /// not tell that from a refusal.
    fn freezer(&self, dir: &Path) -> Option<FreezerController> {
        let file = match self.kind {
            HierarchyKind::V2 => "cgroup.freeze",
            HierarchyKind::Freezer => "freezer.state",
            HierarchyKind::V1 => return None,
        };
        let is_v2 = self.kind == HierarchyKind::V2;
        is_there(&dir.join(file)).then(|| FreezerController::new(dir.to_owned(), PathBuf::new(), is_v2))
    }
}

/// Whether `cgroup.events` says that all are frozen.
fn is_told(mut events: &File) -> io::Result<bool> {
    events.rewind()?;
    Ok(io::read_to_string(events)?.lines().any(|line| line == "frozen 1"))
}

/// What is removed meanwhile needs neither.
fn unless_gone(verb: &'static str, path: &Path, done: Result<(), Errno>) -> Result<(), Fault> {
    match done {
        Err(errno) if !is_gone(errno) => Err(Fault::new(verb, path, errno)),
        Ok(()) | Err(_) => Ok(()),
    }
}
