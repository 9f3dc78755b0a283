//! One agent per node: an exclusive lock on the kubelet's pods directory.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::{
    fcntl::OFlag,
    sys::stat::{major, minor},
};

use super::fault::{Fault, errno};
use crate::model::foreign::ForeignText;

/// Cgroup name of the agent's service.
const SERVICE: &str = "/pod-teardown.service";

/// The lock, held until it is dropped or the process exits.
#[derive(Debug)]
#[must_use = "the lock is released as soon as this is dropped"]
pub struct PodsLock {
    dir: File,
}

/// Why the lock was not acquired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    /// Another process holds it.
    #[error("{path:?} is locked by {}", describe(.holder.as_ref()))]
    Taken {
        /// The directory.
        path: PathBuf,
        /// The holder, if visible.
        holder: Option<LockOwner>,
    },
    /// The directory cannot be locked.
    #[error(transparent)]
    Failed(Fault),
}

/// The process that holds the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockOwner {
    /// Its process id.
    pub pid: i32,
    /// Its command line.
    pub command: ForeignText,
    /// It runs as the packaged service.
    pub in_service: bool,
}

/// The relevant fields of a line of /proc/locks.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    pid: i32,
    device: (u64, u64),
    inode: u64,
}

// === impl PodsLock ===

impl PodsLock {
    /// Acquires the lock on `pods`, or finds the holder in `proc`.
    pub fn acquire(pods: &Path, proc: &Path) -> Result<Self, LockError> {
        let fault = |error: io::Error| LockError::Failed(Fault::new("lock", pods, errno(&error)));
        let mut dir = File::options();
        let dir = dir.read(true).custom_flags(OFlag::O_DIRECTORY.bits()).open(pods);
        let dir = dir.map_err(fault)?;
        match dir.try_lock() {
            Ok(()) => Ok(Self { dir }),
            Err(TryLockError::WouldBlock) => {
                let found = dir.metadata().map_err(fault)?;
                let device = (major(found.dev()), minor(found.dev()));
                // The kernel lists the locks page by page: one may be missing while others come and go.
                let holder = (0..3).find_map(|_| find_holder(proc, device, found.ino()));
                Err(LockError::Taken {
                    path: pods.to_owned(),
                    holder,
                })
            }
            Err(TryLockError::Error(error)) => Err(fault(error)),
        }
    }
}

impl Drop for PodsLock {
    fn drop(&mut self) {
        // Between fork and exec, a child has a copy of the descriptor: closing this one would not release the lock.
        self.dir.unlock().ok();
    }
}

fn find_holder(proc: &Path, device: (u64, u64), inode: u64) -> Option<LockOwner> {
    let text = fs::read_to_string(proc.join("locks")).ok()?;
    let lines: Vec<Line> = text
        .lines()
        .filter_map(parse)
        .filter(|line| line.inode == inode)
        .collect();
    // Some file systems report different devices to stat and to the lock table. Then the inode alone is compared.
    let line = lines.iter().find(|line| line.device == device).or(lines.first())?;
    let of_holder = proc.join(line.pid.to_string());
    let command = fs::read(of_holder.join("cmdline")).unwrap_or_default();
    let cgroups = fs::read_to_string(of_holder.join("cgroup")).unwrap_or_default();
    Some(LockOwner {
        pid: line.pid,
        command: readable(command),
        in_service: cgroups.lines().any(|cgroup| cgroup.ends_with(SERVICE)),
    })
}

/// Parses `1: FLOCK  ADVISORY  WRITE 4711 fe:00:131 0 EOF`. Waiters have an arrow after the number and are skipped.
fn parse(line: &str) -> Option<Line> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    if fields.next()? != "FLOCK" {
        return None;
    }
    let pid = fields.nth(2)?.parse().ok().filter(|pid| *pid > 0)?;
    let mut file_id = fields.next()?.split(':');
    let major = u64::from_str_radix(file_id.next()?, 16).ok()?;
    let minor = u64::from_str_radix(file_id.next()?, 16).ok()?;
    Some(Line {
        pid,
        device: (major, minor),
        inode: file_id.next()?.parse().ok()?,
    })
}

/// A command line as text.
pub(super) fn readable(mut cmdline: Vec<u8>) -> ForeignText {
    while cmdline.last() == Some(&0) {
        cmdline.pop();
    }
    for byte in cmdline.iter_mut().filter(|byte| **byte == 0) {
        *byte = b' ';
    }
    ForeignText::from_bytes(&cmdline)
}

fn describe(holder: Option<&LockOwner>) -> String {
    match holder {
        Some(LockOwner { pid, command, .. }) => format!("process {pid} ({command})"),
        None => "a process that is not visible here".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_agent_is_refused_with_the_holder() {
        let temp = tempfile::tempdir().unwrap();
        let _first = PodsLock::acquire(temp.path(), Path::new("/proc")).unwrap();
        let error = PodsLock::acquire(temp.path(), Path::new("/proc")).unwrap_err();
        let LockError::Taken {
            holder: Some(holder), ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!(u32::try_from(holder.pid), Ok(std::process::id()));
        assert!(
            error.to_string().contains(&*holder.command) && !holder.command.is_empty(),
            "{error}"
        );
    }

    #[test]
    fn dropped_lock_is_released_although_a_forked_child_has_a_copy() {
        let temp = tempfile::tempdir().unwrap();
        let first = PodsLock::acquire(temp.path(), Path::new("/proc")).unwrap();
        let _copy = first.dir.try_clone().unwrap();
        drop(first);
        assert!(PodsLock::acquire(temp.path(), Path::new("/proc")).is_ok());
    }

    #[test]
    fn service_is_recognized_by_its_cgroup() {
        let proc = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| fs::write(proc.path().join(path), text).unwrap();
        fs::create_dir(proc.path().join("77")).unwrap();
        write("locks", "1: FLOCK  ADVISORY  WRITE 77 fe:00:131 0 EOF\n");
        for (cgroups, in_service) in [
            ("0::/system.slice/pod-teardown.service\n", true),
            (
                "1:name=systemd:/kubelet.slice/system.slice/pod-teardown.service\n0::/\n",
                true,
            ),
            ("0::/user.slice/user-0.slice/session-1.scope\n", false),
            ("0::/system.slice/no-pod-teardown.service\n", false),
        ] {
            write("77/cgroup", cgroups);
            let holder = find_holder(proc.path(), (0xfe, 0), 131).unwrap();
            assert_eq!(holder.in_service, in_service, "{cgroups}");
        }
    }

    #[test]
    fn lock_is_refused_without_proc() {
        let temp = tempfile::tempdir().unwrap();
        let _first = PodsLock::acquire(temp.path(), Path::new("/proc")).unwrap();
        let error = PodsLock::acquire(temp.path(), Path::new("/no/such/proc")).unwrap_err();
        assert!(matches!(error, LockError::Taken { holder: None, .. }), "{error}");
    }

    #[test]
    fn missing_directory_is_named() {
        let error = PodsLock::acquire(Path::new("/no/such/pods"), Path::new("/proc")).unwrap_err();
        assert!(error.to_string().contains("/no/such/pods"), "{error}");
    }

    #[test]
    fn only_granted_flocks_of_visible_processes_count() {
        let line = Line {
            pid: 4711,
            device: (254, 1),
            inode: 131,
        };
        assert_eq!(parse("1: FLOCK  ADVISORY  WRITE 4711 fe:01:131 0 EOF"), Some(line));
        for other in [
            "1: -> FLOCK  ADVISORY  WRITE 4711 fe:01:131 0 EOF",
            "2: POSIX  ADVISORY  WRITE 4711 fe:01:131 0 EOF",
            "3: FLOCK  ADVISORY  WRITE -1 fe:01:131 0 EOF",
            "4: FLOCK  ADVISORY  WRITE 0 fe:01:131 0 EOF",
            "5: FLOCK",
            "",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn command_lines_contain_spaces() {
        assert_eq!(
            readable(b"/usr/bin/agent\0run\0--x\0".to_vec()),
            "/usr/bin/agent run --x".into()
        );
    }
}
