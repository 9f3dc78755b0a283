//! How all that is in a cgroup is killed, also what forks meanwhile.

use std::collections::BTreeSet;

use cgroups_rs::fs::{Hierarchy as _, error::ErrorKind};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{
    HierarchyKind,
    group::{Group, errno_of, is_gone},
};
use crate::node::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{self, Cause, Fault},
};

const VERB: &str = "kill the processes of";
/// So many descriptors a process can spare, whatever its limit is.
const HELD: usize = 256;
/// Whoever is killed without being frozen may fork on for ever.
const ROUNDS: usize = 4;

/// What is known of the processes before they are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    /// They may fork while they are killed.
    Lives,
    /// They were killed in another hierarchy.
    Dies,
}

// === impl Group ===

impl Group {
    /// Sends SIGKILL to all that is in it, and lets what is frozen run into it.
    pub fn kill(&self, rest: Rest, effects: &Effects) -> Result<Outcome, Fault> {
        let fault = |cause: Cause| Fault::new(VERB, &self.path, cause);
        if self.processes()?.is_empty() {
            return Ok(Outcome::Nothing);
        }
        if !effects
            .allow(&Effect::new(VERB, &self.path))
            .map_err(|held| fault(held.into()))?
        {
            return Ok(Outcome::Withheld);
        }
        let killed = self.kill_all(rest);
        checkpoint::after(VERB, &self.path);
        killed.map(|()| Outcome::Done)
    }

    fn kill_all(&self, rest: Rest) -> Result<(), Fault> {
        if self.kind == HierarchyKind::V2 && self.kill_at_once()? {
            return Ok(());
        }
        let frozen = match rest {
            Rest::Lives => self.freeze(),
            Rest::Dies => Ok(()),
        };
        let killed = self.kill_one_by_one();
        // Whatever became of that: what is frozen here nobody else thaws.
        let thawed = self.thaw_all();
        frozen.and(killed).and(thawed)
    }

    /// Whether the kernel could do that: one before 5.14 lacks the file.
    fn kill_at_once(&self) -> Result<bool, Fault> {
        match self.root_control_group().kill() {
            Ok(()) => Ok(true),
            Err(error) if *error.kind() == ErrorKind::InvalidOperation => Ok(false),
            Err(error) => match errno_of(error) {
                errno if is_gone(errno) => Ok(false),
                errno => Err(Fault::new(VERB, &self.path, errno)),
            },
        }
    }

    /// Until nobody is listed who was not killed: version 2 may call a cgroup frozen in which one is still within a fork.
    fn kill_one_by_one(&self) -> Result<(), Fault> {
        let mut killed = BTreeSet::new();
        for _ in 0..ROUNDS {
            let mut left = self.processes()?;
            left.retain(|pid| !killed.contains(pid));
            if left.is_empty() {
                break;
            }
            for some in left.chunks(HELD) {
                killed.extend(self.kill_these(some)?);
            }
        }
        Ok(())
    }

    /// A process id may be given to a stranger between the listing and the signal. So each is first held by a
    /// descriptor, and signalled only if it is listed once more after that. Tells who was.
    fn kill_these(&self, pids: &[i32]) -> Result<Vec<i32>, Fault> {
        let mut held = Vec::new();
        for &raw in pids {
            let Some(pid) = Pid::from_raw(raw) else { continue };
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(fd) => held.push((raw, fd)),
                // Ended meanwhile, or a thread of a process that the next look shows.
                Err(Errno::SRCH | Errno::INVAL) => {}
                Err(errno) => return Err(Fault::new("hold a process of", &self.path, fault::errno_of(errno))),
            }
        }
        let still = self.processes()?;
        held.retain(|(raw, _)| still.binary_search(raw).is_ok());
        for (_, fd) in &held {
            match pidfd_send_signal(fd, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => return Err(Fault::new(VERB, &self.path, fault::errno_of(errno))),
            }
        }
        Ok(held.into_iter().map(|(raw, _)| raw).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command, sync::Arc};

    use super::*;
    use crate::node::effects::EffectsBlocked;

    #[test]
    fn nothing_is_frozen_or_killed_in_a_dry_run_or_behind_a_shut_gate_and_what_was_frozen_to_be_killed_is_thawed() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
        let write = |file, text: &str| fs::write(dir.path().join(file), text).unwrap();
        write("cgroup.procs", &process.id().to_string());
        write("cgroup.freeze", "-");
        write("cgroup.events", "populated 1\nfrozen 1\n");
        let group = Group {
            path: dir.path().to_owned(),
            kind: HierarchyKind::V2,
        };
        let switch = || fs::read_to_string(dir.path().join("cgroup.freeze")).unwrap();
        let dry = Effects::new(true, Arc::new(|| Ok(())));
        assert_eq!(group.kill(Rest::Lives, &dry), Ok(Outcome::Withheld));
        let held = || EffectsBlocked {
            reason: "a kubelet is here".to_owned(),
        };
        let shut = Effects::new(false, Arc::new(move || Err(held())));
        assert!(group.kill(Rest::Lives, &shut).unwrap_err().is_blocked());
        assert_eq!((switch().as_str(), process.try_wait().unwrap()), ("-", None));
        assert_eq!(group.kill(Rest::Lives, &Effects::ungated()), Ok(Outcome::Done));
        assert!(!process.wait().unwrap().success());
        assert_eq!(switch(), "0");
    }
}
