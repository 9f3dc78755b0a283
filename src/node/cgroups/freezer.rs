//! Freezing and thawing: who is frozen forks no more, and dies of SIGKILL in v2 at once, in v1 when it is thawed.

use std::{
    fs,
    io::{self, Seek as _},
    path::{Path, PathBuf},
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    HierarchyKind,
    group::{Group, is_gone, tree, write_existing},
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

/// What freezes a cgroup and all below it.
struct Switch {
    file: &'static str,
    freeze: &'static str,
    thaw: &'static str,
    /// Where it is told that all are frozen, and how.
    told: &'static str,
    frozen: &'static str,
}

const V1: Switch = Switch {
    file: "freezer.state",
    freeze: "FROZEN",
    thaw: "THAWED",
    told: "freezer.state",
    frozen: "FROZEN",
};
const V2: Switch = Switch {
    file: "cgroup.freeze",
    freeze: "1",
    thaw: "0",
    told: "cgroup.events",
    frozen: "frozen 1",
};

// === impl Group ===

impl Group {
    /// Freezes all that is in it and below it, as far as that goes: a kernel before 5.2 has no freezer in v2.
    pub fn freeze(&self) -> Result<(), Fault> {
        let Some(switch) = self.switch() else { return Ok(()) };
        checkpoint::before(FREEZE, &self.path);
        let frozen =
            write_existing(&self.path.join(switch.file), switch.freeze).and_then(|()| self.until_frozen(switch));
        checkpoint::after(FREEZE, &self.path);
        match frozen {
            Err(error) if !is_gone(&error) => Err(Fault::new(FREEZE, &self.path, errno(&error))),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Only v2 says when; v1 is asked again.
    fn until_frozen(&self, switch: &Switch) -> io::Result<()> {
        let mut told = fs::File::open(self.path.join(switch.told))?;
        let mut wait = 1;
        for nth in 0..LOOKS {
            told.rewind()?;
            let is_frozen = io::read_to_string(&told)?.lines().any(|line| line == switch.frozen);
            if is_frozen || nth >= BRIEF && !self.runs() {
                break;
            }
            let limit = Timespec {
                tv_sec: wait / 1_000,
                tv_nsec: wait % 1_000 * 1_000_000,
            };
            let change = &mut [PollFd::new(&told, PollFlags::PRI)];
            let changes = if self.kind == HierarchyKind::V2 {
                &mut change[..]
            } else {
                &mut []
            };
            // Whatever ends it, the next look tells.
            poll(changes, Some(&limit)).ok();
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
        let Some(switch) = self.switch() else { return Ok(()) };
        let mut thawed = thaw(&self.path.join(switch.file), switch);
        for file in self.frozen()? {
            thawed = thawed.and(thaw(&file, switch));
        }
        thawed
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

    /// The switches of what is frozen.
    fn frozen(&self) -> Result<Vec<PathBuf>, Fault> {
        let mut frozen = Vec::new();
        let Some(switch) = self.switch() else { return Ok(frozen) };
        for dir in tree(&self.path)? {
            let file = dir.join(switch.file);
            match fs::read_to_string(&file) {
                Ok(state) if state.trim() == switch.thaw => {}
                Ok(_) => frozen.push(file),
                Err(error) if is_gone(&error) => {}
                Err(error) => return Err(Fault::new("read", file, errno(&error))),
            }
        }
        Ok(frozen)
    }

    fn switch(&self) -> Option<&'static Switch> {
        match self.kind {
            HierarchyKind::V2 => Some(&V2),
            HierarchyKind::Freezer => Some(&V1),
            HierarchyKind::V1 => None,
        }
    }
}

fn thaw(file: &Path, switch: &Switch) -> Result<(), Fault> {
    match write_existing(file, switch.thaw) {
        Err(error) if !is_gone(&error) => Err(Fault::new(THAW, file, errno(&error))),
        Ok(()) | Err(_) => Ok(()),
    }
}
