//! Kills all processes of a cgroup, including those that fork meanwhile.

use std::collections::BTreeSet;

use cgroups_rs::fs::{Hierarchy as _, error::ErrorKind};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{
    HierarchyKind,
    group::{Group, errno_of, is_removed},
};
use crate::node::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{self, Cause, Fault},
};

const VERB: &str = "kill the processes of";
/// Number of pidfds open at a time, within any descriptor limit.
const MAX_PIDFDS: usize = 256;
/// Limits the rounds: processes that cannot be frozen may fork without end.
const MAX_ROUNDS: usize = 4;

/// State of the processes before they are killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VictimState {
    /// They may fork while they are killed.
    MayFork,
    /// They were killed in another hierarchy.
    Killed,
}

// === impl Group ===

impl Group {
    /// Sends SIGKILL to all processes in it, and thaws frozen ones so that they exit.
    pub fn kill(&self, state: VictimState, effects: &Effects) -> Result<Outcome, Fault> {
        let fault = |cause: Cause| Fault::new(VERB, &self.path, cause);
        if self.processes()?.is_empty() {
            return Ok(Outcome::Nothing);
        }
        effects
            .allow(&Effect::new(VERB, &self.path))
            .map_err(|blocked| fault(blocked.into()))?;
        let killed = self.kill_all(state, effects);
        checkpoint::after(VERB, &self.path);
        killed.map(|()| Outcome::Done)
    }

    fn kill_all(&self, state: VictimState, effects: &Effects) -> Result<(), Fault> {
        if self.kind == HierarchyKind::V2 && self.kill_by_file()? {
            return Ok(());
        }
        let frozen = match state {
            VictimState::MayFork => self.freeze(),
            VictimState::Killed => Ok(()),
        };
        // A kubelet may have started during the freeze, which takes seconds.
        let allowed = effects.check().map_err(|blocked| Fault::new(VERB, &self.path, blocked));
        let killed = allowed.and_then(|()| self.kill_one_by_one());
        // Thaw even after an error: nothing else would.
        let thawed = self.thaw_all();
        frozen.and(killed).and(thawed)
    }

    /// Writes `cgroup.kill`. False if the kernel has no such file (before Linux 5.14).
    fn kill_by_file(&self) -> Result<bool, Fault> {
        match self.root_control_group().kill() {
            Ok(()) => Ok(true),
            Err(error) if *error.kind() == ErrorKind::InvalidOperation => Ok(false),
            Err(error) => match errno_of(error) {
                errno if is_removed(errno) => Ok(false),
                errno => Err(Fault::new(VERB, &self.path, errno)),
            },
        }
    }

    /// Kills processes until every listed one was killed. On v2 a cgroup may count as frozen while a process is inside a
    /// fork.
    fn kill_one_by_one(&self) -> Result<(), Fault> {
        let mut killed = BTreeSet::new();
        for _ in 0..MAX_ROUNDS {
            let mut left = self.processes()?;
            left.retain(|pid| !killed.contains(pid));
            if left.is_empty() {
                break;
            }
            for some in left.chunks(MAX_PIDFDS) {
                killed.extend(self.kill_these(some)?);
            }
        }
        Ok(())
    }

    /// Kills these processes and returns those that were signaled. A PID may be reused between the listing and the
    /// signal, so each process is opened as a pidfd, and signaled only if it is listed again after that.
    fn kill_these(&self, pids: &[i32]) -> Result<Vec<i32>, Fault> {
        let mut pidfds = Vec::new();
        for &raw in pids {
            let Some(pid) = Pid::from_raw(raw) else { continue };
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(fd) => pidfds.push((raw, fd)),
                // It exited meanwhile, or is a thread of a process that the next listing shows.
                Err(Errno::SRCH | Errno::INVAL) => {}
                Err(errno) => return Err(Fault::new("open a process of", &self.path, fault::errno_of(errno))),
            }
        }
        let still = self.processes()?;
        pidfds.retain(|(raw, _)| still.binary_search(raw).is_ok());
        for (_, fd) in &pidfds {
            match pidfd_send_signal(fd, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(errno) => return Err(Fault::new(VERB, &self.path, fault::errno_of(errno))),
            }
        }
        Ok(pidfds.into_iter().map(|(raw, _)| raw).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        process::Command,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

    use super::*;
    use crate::node::effects::EffectsBlocked;

    #[test]
    fn shut_gate_kills_nothing_and_what_is_frozen_is_thawed() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
        let write = |file, text: &str| fs::write(dir.path().join(file), text).unwrap();
        write("cgroup.procs", &process.id().to_string());
        write("cgroup.freeze", "-");
        write("cgroup.events", "populated 1\nfrozen 1\n");
        let group = Group {
            hierarchy: dir.path().parent().unwrap().to_owned(),
            path: dir.path().to_owned(),
            kind: HierarchyKind::V2,
        };
        let switch = || fs::read_to_string(dir.path().join("cgroup.freeze")).unwrap();
        let blocked = || EffectsBlocked {
            reason: "a kubelet is here".to_owned(),
        };
        let shut = Effects::new(Arc::new(move || Err(blocked())));
        assert!(group.kill(VictimState::MayFork, &shut).unwrap_err().is_blocked());
        assert_eq!((switch().as_str(), process.try_wait().unwrap()), ("-", None));
        // The kubelet starts during the freeze.
        let is_second = AtomicBool::new(false);
        let shuts = move || match is_second.swap(true, Ordering::Relaxed) {
            false => Ok(()),
            true => Err(blocked()),
        };
        let shutting = Effects::new(Arc::new(shuts));
        assert!(group.kill(VictimState::MayFork, &shutting).unwrap_err().is_blocked());
        assert_eq!((switch().as_str(), process.try_wait().unwrap()), ("0", None));
        assert_eq!(group.kill(VictimState::MayFork, &Effects::ungated()), Ok(Outcome::Done));
        assert!(!process.wait().unwrap().success());
        assert_eq!(switch(), "0");
    }
}
