//! Kills all processes of a cgroup.

use std::{fs::File, io::Write as _};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use super::{
    HierarchyKind,
    group::{Group, is_removed},
};
use crate::node::{
    effects::{Effects, Outcome},
    fault::{self, Fault, errno},
};

pub(super) const KILL: &str = "kill the processes of";
/// Number of pidfds open at a time, within any descriptor limit.
const MAX_PIDFDS: usize = 256;

// === impl Group ===

impl Group {
    /// Sends SIGKILL to all processes in it, and thaws frozen ones so that they exit.
    pub fn kill(&self, effects: &Effects) -> Result<Outcome, Fault> {
        if self.processes()?.is_empty() {
            return Ok(Outcome::Nothing);
        }
        effects.perform(KILL, &self.path, || self.kill_all())??;
        Ok(Outcome::Done)
    }

    fn kill_all(&self) -> Result<(), Fault> {
        if self.kind == HierarchyKind::V2 && self.kill_by_file()? {
            return Ok(());
        }
        let killed = self.kill_one_by_one();
        // Thaw even after an error: nothing else would.
        let thawed = self.thaw_all();
        killed.and(thawed)
    }

    /// Writes `cgroup.kill`. False if the kernel has no such file (before Linux 5.14).
    fn kill_by_file(&self) -> Result<bool, Fault> {
        // Not created: in a cgroup's directory that would fail with `EACCES`.
        let file = File::options().write(true).open(self.path.join("cgroup.kill"));
        let killed = file.and_then(|mut file| file.write_all(b"1"));
        match killed.map_err(|error| errno(&error)) {
            Ok(()) => Ok(true),
            Err(errno) if is_removed(errno) => Ok(false),
            Err(errno) => Err(Fault::new(KILL, &self.path, errno)),
        }
    }

    /// Kills the processes that are listed now. The next attempt kills those that have forked meanwhile.
    fn kill_one_by_one(&self) -> Result<(), Fault> {
        let pids = self.processes()?;
        pids.chunks(MAX_PIDFDS).try_for_each(|some| self.kill_these(some))
    }

    /// Kills these processes. A PID may be reused between the listing and the signal, so each process is opened as a pidfd, and signaled
    /// only if it is listed again after that.
    fn kill_these(&self, pids: &[i32]) -> Result<(), Fault> {
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
                Err(errno) => return Err(Fault::new(KILL, &self.path, fault::errno_of(errno))),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, process::Command, sync::Arc};

    use super::*;
    use crate::model::blocked::Blocked;

    #[test]
    fn shut_gate_kills_nothing_and_what_is_killed_is_thawed() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Command::new("sleep").arg("1000").spawn().unwrap();
        let write = |file, text: &str| fs::write(dir.path().join(file), text).unwrap();
        write("cgroup.procs", &process.id().to_string());
        write("cgroup.freeze", "1");
        let group = Group {
            hierarchy: dir.path().parent().unwrap().to_owned(),
            path: dir.path().to_owned(),
            kind: HierarchyKind::V2,
        };
        let switch = || fs::read_to_string(dir.path().join("cgroup.freeze")).unwrap();
        let shut = Effects::new(Arc::new(|| Err(Blocked::Other("a kubelet is here".to_owned()))));
        assert!(group.kill(&shut).unwrap_err().is_blocked());
        assert_eq!((switch().as_str(), process.try_wait().unwrap()), ("1", None));
        assert_eq!(group.kill(&Effects::ungated()), Ok(Outcome::Done));
        assert!(!process.wait().unwrap().success());
        assert_eq!(switch(), "0");
    }
}
