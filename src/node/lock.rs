//! One process per directory: an exclusive lock on the kubelet's pods directory, or on a journal's.
//!
//! Each process that can read a file can lock it, and a pod may mount the kubelet's directories read-only. So the locks are on files
//! of our own, which only root can open. No descriptor keeps the locked directory's mount busy.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    process,
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg, OFlag},
    sys::stat::{major, minor},
    unistd::geteuid,
};

use super::{
    fault::{Fault, errno},
    host::PROC,
};
use crate::model::foreign::ForeignText;

/// Cgroup name of the agent's service.
const SERVICE: &str = "/pod-teardown.service";
/// Directory of the lock files. Not the service's runtime directory, which systemd removes.
const LOCKS: &str = "run/pod-teardown-locks";
/// Maximum length of a path in a file name, in bytes.
const MAX_NAME: usize = 200;

/// The lock, held until it is dropped or the process exits.
#[derive(Debug)]
#[must_use = "the lock is released as soon as this is dropped"]
pub struct DirLock {
    /// One by the directory's inode and one by its path: a mount may show it twice or cover it. They are never removed: an agent
    /// that has opened one before could lock it beside another agent. Dropped, they are unlocked and not only closed: between fork
    /// and exec, a child has a copy of the descriptor.
    _files: [Flock<File>; 2],
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

// === impl DirLock ===

impl DirLock {
    /// Acquires the lock on `dir` among the processes of the node with this root directory, or finds the holder.
    pub fn acquire(dir: &Path, root: &Path) -> Result<Self, LockError> {
        let found = fs::metadata(dir).and_then(|found| match found.is_dir() {
            true => Ok((found, fs::canonicalize(dir)?)),
            false => Err(Errno::ENOTDIR.into()),
        });
        let (found, path) = found.map_err(|error| failed(dir, &error))?;
        let locks = directory(root);
        let by_inode = format!("{}:{}:{}", major(found.dev()), minor(found.dev()), found.ino());
        let lock = |name: String| lock_file(dir, &locks, &locks.join(name));
        Ok(Self {
            _files: [lock(by_inode)?, lock(by_path(&path))?],
        })
    }
}

fn failed(path: &Path, error: &io::Error) -> LockError {
    LockError::Failed(Fault::new("lock", path, errno(error)))
}

/// Directory of the lock files. Another user than root excludes only its own processes.
fn directory(root: &Path) -> PathBuf {
    match geteuid() {
        root_user if root_user.is_root() => root.join(LOCKS),
        user => std::env::temp_dir().join(format!("pod-teardown-locks-{user}")),
    }
}

/// The end of the path, as a file name.
fn by_path(dir: &Path) -> String {
    let path = dir.as_os_str().as_bytes();
    let end = &path[path.len().saturating_sub(MAX_NAME)..];
    end.escape_ascii().to_string().replace('/', "-")
}

/// Locks the file at `path`, which is in the directory `locks` and stands for `dir`.
fn lock_file(dir: &Path, locks: &Path, path: &Path) -> Result<Flock<File>, LockError> {
    let fault = |error: io::Error| failed(path, &error);
    let directory = DirBuilder::new().recursive(true).mode(0o700).create(locks);
    directory.map_err(fault)?;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(OFlag::O_NOFOLLOW.bits());
    let file = options.open(path).map_err(fault)?;
    let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
    let mut file = locked.map_err(|(mut file, errno)| match errno {
        Errno::EWOULDBLOCK => LockError::Taken {
            path: dir.to_owned(),
            holder: pid_in(&mut file).map(|pid| LockOwner::read(Path::new(PROC), pid)),
        },
        errno => fault(errno.into()),
    })?;
    let written = file.set_len(0);
    let written = written.and_then(|()| file.write_all(process::id().to_string().as_bytes()));
    written.map_err(fault)?;
    Ok(file)
}

/// The PID that the holder has written.
fn pid_in(file: &mut File) -> Option<i32> {
    io::read_to_string(file.take(16)).ok()?.parse().ok()
}

// === impl LockOwner ===

impl LockOwner {
    fn read(proc: &Path, pid: i32) -> Self {
        let of_holder = proc.join(pid.to_string());
        let command = fs::read(of_holder.join("cmdline")).unwrap_or_default();
        let cgroups = fs::read_to_string(of_holder.join("cgroup")).unwrap_or_default();
        Self {
            pid,
            command: readable(&command),
            in_service: cgroups.lines().any(|cgroup| cgroup.ends_with(SERVICE)),
        }
    }
}

/// A command line as text.
pub(super) fn readable(cmdline: &[u8]) -> ForeignText {
    let end = cmdline.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let words: Vec<&[u8]> = cmdline[..end].split(|byte| *byte == 0).collect();
    ForeignText::from_bytes(&words.join(&b' '))
}

fn describe(holder: Option<&LockOwner>) -> String {
    match holder {
        Some(LockOwner { pid, command, .. }) => format!("process {pid} ({command})"),
        None => "a process that is not visible here".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A root directory, with a directory to lock.
    fn node() -> (tempfile::TempDir, PathBuf) {
        let root = tempfile::tempdir().unwrap();
        let pods = root.path().join("kubelet/pods");
        fs::create_dir_all(&pods).unwrap();
        (root, pods)
    }

    #[test]
    fn second_agent_is_refused_with_the_holder() {
        let (root, pods) = node();
        let first = DirLock::acquire(&pods, root.path()).unwrap();
        let error = DirLock::acquire(&pods, root.path()).unwrap_err();
        let LockError::Taken {
            holder: Some(holder), ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!(u32::try_from(holder.pid), Ok(process::id()));
        assert!(
            error.to_string().contains(&*holder.command) && !holder.command.is_empty(),
            "{error}"
        );
        drop(first);
        assert!(DirLock::acquire(&pods, root.path()).is_ok());
    }

    #[test]
    fn process_that_can_only_read_the_directory_does_not_hold_the_lock() {
        let (root, pods) = node();
        let reader = File::open(&pods).unwrap();
        reader.try_lock().unwrap();
        assert!(DirLock::acquire(&pods, root.path()).is_ok());
    }

    #[test]
    fn directory_is_locked_under_each_of_its_paths() {
        let (root, pods) = node();
        let link = root.path().join("link");
        symlink(&pods, &link).unwrap();
        let first = DirLock::acquire(&link, root.path()).unwrap();
        assert!(DirLock::acquire(&pods, root.path()).is_err());
        // As if a mount covered it.
        fs::rename(&pods, root.path().join("moved")).unwrap();
        fs::create_dir(&pods).unwrap();
        assert!(DirLock::acquire(&pods, root.path()).is_err());
        assert!(DirLock::acquire(&root.path().join("moved"), root.path()).is_err());
        drop(first);
        let other = root.path().join("other");
        fs::create_dir(&other).unwrap();
        let _one = DirLock::acquire(&pods, root.path()).unwrap();
        let _other = DirLock::acquire(&other, root.path()).unwrap();
    }

    #[test]
    fn dropped_lock_is_released_although_a_forked_child_has_a_copy() {
        let (root, _) = node();
        let acquire = || lock_file(root.path(), root.path(), &root.path().join("lock"));
        let first = acquire().unwrap();
        let _copy = first.try_clone().unwrap();
        let LockError::Taken { holder, .. } = acquire().unwrap_err() else {
            panic!("it is locked")
        };
        assert_eq!(holder.map(|holder| holder.pid), i32::try_from(process::id()).ok());
        drop(first);
        assert!(acquire().is_ok());
    }

    #[test]
    fn only_one_of_many_processes_has_the_lock_at_a_time() {
        let (root, pods) = node();
        let holders = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        if let Ok(_lock) = DirLock::acquire(&pods, root.path()) {
                            let before = holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            assert_eq!(before, 0);
                            std::thread::yield_now();
                            holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        }
                    }
                });
            }
        });
    }

    #[test]
    fn service_is_recognized_by_its_cgroup() {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir(proc.path().join("77")).unwrap();
        for (cgroups, in_service) in [
            ("0::/system.slice/pod-teardown.service\n", true),
            (
                "1:name=systemd:/kubelet.slice/system.slice/pod-teardown.service\n0::/\n",
                true,
            ),
            ("0::/user.slice/user-0.slice/session-1.scope\n", false),
            ("0::/system.slice/no-pod-teardown.service\n", false),
        ] {
            fs::write(proc.path().join("77/cgroup"), cgroups).unwrap();
            assert_eq!(LockOwner::read(proc.path(), 77).in_service, in_service, "{cgroups}");
        }
    }

    #[test]
    fn missing_directory_is_named() {
        let (root, _) = node();
        let error = DirLock::acquire(Path::new("/no/such/pods"), root.path()).unwrap_err();
        assert!(error.to_string().contains("/no/such/pods"), "{error}");
    }

    #[test]
    fn command_lines_contain_spaces() {
        assert_eq!(readable(b"/usr/bin/agent\0run\0--x\0"), "/usr/bin/agent run --x".into());
    }
}
