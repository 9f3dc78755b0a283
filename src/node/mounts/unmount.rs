//! Unmounts exactly one path: through no symlink, never lazily, and by force only if its server does not respond.

use std::{
    ffi::{OsStr, OsString},
    os::fd::{AsRawFd, OwnedFd},
    path::{Component, Path, PathBuf},
    sync::Arc,
    thread::park_timeout,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    mount::{MntFlags, umount2},
    sys::statfs::statfs,
};
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags, statx};

use super::hanging::{Hanging, Mounted, is_server_dead};
use crate::node::{
    effects::{Effects, Outcome},
    fault::{Cause, Fault, errno_of},
    unmounts::{Call, CallError, ForceUnmount, UnmountBackend, Unmounter, Unmounting},
};

const VERB: &str = "unmount";
/// Interval of retries: waiters release the mount shortly after the connection is cut.
const RELEASE_INTERVAL: Duration = Duration::from_millis(20);
const RELEASE_TRIES: u32 = 10;

/// Unmounts the topmost mount on `path`, which must be absolute and free of symlinks.
///
/// A call that may hang runs on its own thread. After the timeout it is abandoned and reported as a fault.
pub fn unmount(path: &Path, effects: &Effects) -> Result<Outcome, Fault> {
    let fault = |error: CallError| Fault::new(VERB, path, cause(path, error));
    let (parent, name) = split(path).ok_or_else(|| Fault::new(VERB, path, Cause::BadName(path.into())))?;
    let unmounting = &effects.unmounting;
    let found = match &unmounting.backend {
        UnmountBackend::Kernel => {
            let (parent, name) = (parent.to_owned(), name.to_owned());
            let point = unmounting.wait_for(path, Call::Find, move || MountPoint::find(&parent, name));
            point.map(|point| Some(Target::Mount(Arc::new(point?))))
        }
        UnmountBackend::Simulated(unmount) => open_parent(parent)
            .map(|_| Some(Target::Simulated(unmount)))
            .map_err(CallError::Failed),
    };
    let target = match found {
        Ok(Some(target)) => target,
        Ok(None) | Err(CallError::Failed(Errno::ENOENT | Errno::ENOTDIR)) => return Ok(Outcome::Nothing),
        Err(error) => return Err(fault(error)),
    };
    let unmount = || match target {
        Target::Mount(point) => unmounting.unmount(path, &point),
        Target::Simulated(unmount) => unmount(path).map_err(CallError::Failed),
    };
    match effects.perform(VERB, path, unmount)? {
        Ok(()) => Ok(Outcome::Done),
        // It was unmounted meanwhile, or is not a mount.
        Err(CallError::Failed(Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL)) => Ok(Outcome::Nothing),
        Err(error) => Err(fault(error)),
    }
}

/// What is unmounted.
enum Target<'a> {
    Mount(Arc<MountPoint>),
    Simulated(&'a Unmounter),
}

fn cause(path: &Path, error: CallError) -> Cause {
    match error {
        CallError::Failed(errno) => errno.into(),
        CallError::Hangs(since) => {
            let what = Mounted::topmost_on(path);
            Cause::Hangs(Box::new(Hanging { since, what }))
        }
        CallError::NotDone(why) => why.into(),
    }
}

// === impl Unmounting ===

impl Unmounting {
    /// Unmounts it. Cuts the connection to an unresponsive server if configured.
    fn unmount(&self, path: &Path, point: &Arc<MountPoint>) -> Result<(), CallError> {
        if self.force == ForceUnmount::DeadServer && self.is_dead(path, point) {
            return self.force(path, point);
        }
        let plain = Arc::clone(point);
        match self.wait_for(path, Call::Unmount, move || plain.unmount(MntFlags::empty())) {
            Err(CallError::Hangs(_)) if self.may_force(path) => self.force(path, point),
            done => done,
        }
    }

    /// Forces the unmount, but never lazily: a busy mount remains and is reported.
    fn force(&self, path: &Path, point: &Arc<MountPoint>) -> Result<(), CallError> {
        tracing::warn!(
            ?path,
            "Server of a mount does not answer; cutting its connection (--force-unmount)"
        );
        let point = Arc::clone(point);
        let force = move || {
            for _ in 1..RELEASE_TRIES {
                match point.unmount(MntFlags::MNT_FORCE) {
                    Err(Errno::EBUSY) => park_timeout(RELEASE_INTERVAL),
                    done => return done,
                }
            }
            point.unmount(MntFlags::MNT_FORCE)
        };
        self.wait_for(path, Call::Force, force)
    }

    fn is_dead(&self, path: &Path, point: &Arc<MountPoint>) -> bool {
        let point = Arc::clone(point);
        let dead = match self.wait_for(path, Call::Probe, move || point.probe()) {
            Err(CallError::Hangs(_)) => true,
            Err(CallError::Failed(errno)) => is_server_dead(errno),
            Ok(()) | Err(CallError::NotDone(_)) => false,
        };
        dead && self.may_force(path)
    }

    fn may_force(&self, path: &Path) -> bool {
        self.force == ForceUnmount::DeadServer && Mounted::topmost_on(path).is_some_and(|it| it.has_server())
    }

    fn wait_for<T: Send + 'static>(
        &self,
        path: &Path,
        call: Call,
        work: impl FnOnce() -> nix::Result<T> + Send + 'static,
    ) -> Result<T, CallError> {
        let done = self.in_flight.run_with_timeout(path, call, self.call_timeout, work)?;
        done.map_err(CallError::Failed)
    }
}

/// A mount point: its parent directory and its name.
///
/// `UMOUNT_NOFOLLOW` protects only the last component, and a container may have replaced any other with a symlink. So the
/// parent directory is opened without following symlinks, and the unmount starts from there.
struct MountPoint {
    parent: OwnedFd,
    name: OsString,
}

// === impl MountPoint ===

impl MountPoint {
    /// `None` if the kernel knows that it is not a mount point.
    fn find(parent: &Path, name: OsString) -> nix::Result<Option<Self>> {
        let point = Self {
            parent: open_parent(parent)?,
            name,
        };
        Ok(point.may_be_mount().then_some(point))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the only call that unmounts, after the gate was checked"
    )]
    fn unmount(&self, flags: MntFlags) -> nix::Result<()> {
        umount2(&self.path(), MntFlags::UMOUNT_NOFOLLOW | flags)
    }

    /// Sends a request to the server. While it waits, the mount is busy.
    fn probe(&self) -> nix::Result<()> {
        statfs(&self.path()).map(drop)
    }

    /// Whether the kernel may have a mount here. True if unknown: the unmount then decides.
    fn may_be_mount(&self) -> bool {
        // Not synchronized: an unresponsive server must not block the call.
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        match statx(&self.parent, &*self.name, flags, StatxFlags::empty()) {
            Ok(found) => {
                !found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
                    || found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
            }
            Err(errno) => !matches!(errno_of(errno), Errno::ENOENT | Errno::ENOTDIR),
        }
    }

    fn path(&self) -> PathBuf {
        Path::new("/proc/thread-self/fd")
            .join(self.parent.as_raw_fd().to_string())
            .join(&self.name)
    }
}

/// Parent and last component of an absolute path without `.` and `..`.
fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !path.is_absolute() || !path.components().all(is_plain) {
        return None;
    }
    Some((path.parent()?, path.file_name()?))
}

fn open_parent(parent: &Path) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(AT_FDCWD, parent, how)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_and_unclean_paths_are_refused() {
        for path in ["", "/", "a/b", "/a/../b", "/a/..", ".."] {
            let fault = unmount(Path::new(path), &Effects::ungated()).unwrap_err();
            assert!(matches!(fault.cause, Cause::BadName(_)), "{path}: {fault}");
        }
    }

    #[test]
    fn missing_paths_and_paths_without_a_mount_need_no_unmount() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::write(root.join("file"), "").unwrap();
        for name in ["missing", "missing/below", "file", "file/below"] {
            assert_eq!(
                unmount(&root.join(name), &Effects::ungated()),
                Ok(Outcome::Nothing),
                "{name}"
            );
        }
        assert_eq!(unmount(&root, &Effects::ungated()), Ok(Outcome::Nothing));
    }

    #[test]
    fn symlink_in_the_path_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("/", root.join("link")).unwrap();
        let fault = unmount(&root.join("link/proc"), &Effects::ungated()).unwrap_err();
        assert_eq!(fault.cause, Cause::Errno(Errno::ELOOP));
    }
}
