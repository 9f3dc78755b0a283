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
use rustix::fs::{AtFlags, Statx, StatxAttributes, StatxFlags, statx};

use super::{
    Mount, MountTable,
    hanging::{Hanging, Mounted, is_server_dead},
};
use crate::node::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{Cause, Fault, errno_of},
    threads::NotDone,
    unmounts::{Call, CallError, ForceUnmount, UnmountBackend, Unmounting},
};

const VERB: &str = "unmount";
/// Interval of retries: waiters release the mount shortly after the connection is cut.
const RELEASE_INTERVAL: Duration = Duration::from_millis(20);
const RELEASE_TRIES: u32 = 10;
/// Resolve only from the kernel's cache, without contacting a file system.
const CACHED: ResolveFlag = ResolveFlag::from_bits_retain(nix::libc::RESOLVE_CACHED);

/// Unmounts the topmost mount on `path`, which must be absolute and free of symlinks.
///
/// A call that may hang runs on its own thread. After the timeout it is abandoned and reported as a fault.
pub fn unmount(path: &Path, effects: &Effects) -> Result<Outcome, Fault> {
    unmount_point(path, effects, |_, _| None)
}

/// Unmounts a mount from a table. No thread is created if nothing can hang.
pub(super) fn unmount_seen(mount: &Mount, table: &MountTable, effects: &Effects) -> Result<Outcome, Fault> {
    unmount_point(&mount.path, effects, |parent, name| {
        table
            .is_all_in_memory(mount)
            .then(|| MountPoint::find_cached(parent, name, mount))?
    })
}

fn unmount_point(
    path: &Path,
    effects: &Effects,
    find_cached: impl FnOnce(&Path, &OsStr) -> Option<MountPoint>,
) -> Result<Outcome, Fault> {
    let fault = |cause: Cause| Fault::new(VERB, path, cause);
    let (parent, name) = split(path).ok_or_else(|| fault(Cause::BadName(path.into())))?;
    let unmounting = effects.unmounting();
    let found = match &unmounting.backend {
        UnmountBackend::Kernel => match find_cached(parent, name) {
            Some(point) => Ok(Some(point)),
            None => {
                let (parent, name) = (parent.to_owned(), name.to_owned());
                unmounting
                    .wait_for(path, Call::Find, move || MountPoint::find(&parent, name))
                    .map_err(|error| fault(cause(path, error)))?
            }
        },
        UnmountBackend::Simulated(_) => open_parent(parent, ResolveFlag::empty()).map(|_| None),
    };
    let point = match (found, &unmounting.backend) {
        (Ok(Some(point)), _) => Some(Arc::new(point)),
        (Ok(None), UnmountBackend::Simulated(_)) => None,
        (Ok(None), UnmountBackend::Kernel) | (Err(Errno::ENOENT | Errno::ENOTDIR), _) => return Ok(Outcome::Nothing),
        (Err(errno), _) => return Err(fault(errno.into())),
    };
    effects
        .allow(&Effect::new(VERB, &path))
        .map_err(|blocked| fault(blocked.into()))?;
    let done = match (&point, &unmounting.backend) {
        (Some(point), _) => unmounting.unmount(path, point),
        (None, UnmountBackend::Simulated(unmount)) => Ok(unmount(path)),
        (None, UnmountBackend::Kernel) => Ok(Err(Errno::EINVAL)),
    };
    checkpoint::after(VERB, &path);
    match done.map_err(|error| fault(cause(path, error)))? {
        Ok(()) => Ok(Outcome::Done),
        // It was unmounted meanwhile, or is not a mount.
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL) => Ok(Outcome::Nothing),
        Err(errno) => Err(fault(errno.into())),
    }
}

fn cause(path: &Path, error: CallError) -> Cause {
    match error {
        CallError::Hangs(hang) => Cause::from(Hanging {
            since: hang.since,
            what: Mounted::topmost_on(path),
        }),
        CallError::NoFreeThread => Cause::NotDone(NotDone::NoFreeThread),
        CallError::Aborted => Cause::NotDone(NotDone::Aborted),
    }
}

// === impl Unmounting ===

impl Unmounting {
    /// Unmounts it. Cuts the connection to an unresponsive server if configured.
    fn unmount(&self, path: &Path, point: &Arc<MountPoint>) -> Result<nix::Result<()>, CallError> {
        if point.is_quick {
            return self
                .in_flight
                .run_inline(path, Call::Unmount, || point.unmount(MntFlags::empty()));
        }
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
    fn force(&self, path: &Path, point: &Arc<MountPoint>) -> Result<nix::Result<()>, CallError> {
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
            Ok(Err(errno)) => is_server_dead(errno),
            Ok(Ok(())) | Err(CallError::NoFreeThread | CallError::Aborted) => false,
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
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        self.in_flight.run_with_timeout(path, call, self.call_timeout, work)
    }
}

/// A mount point: its parent directory and its name.
///
/// `UMOUNT_NOFOLLOW` protects only the last component, and a container may have replaced any other with a symlink. So the
/// parent directory is opened without following symlinks, and the unmount starts from there.
struct MountPoint {
    parent: OwnedFd,
    name: OsString,
    /// The unmount cannot hang.
    is_quick: bool,
}

// === impl MountPoint ===

impl MountPoint {
    /// `None` if the kernel knows that it is not a mount point.
    fn find(parent: &Path, name: OsString) -> nix::Result<Option<Self>> {
        let point = Self {
            parent: open_parent(parent, ResolveFlag::empty())?,
            name,
            is_quick: false,
        };
        Ok(point.may_be_mount().then_some(point))
    }

    /// Finds `mount` from the kernel's cache, if it is topmost. `None` if the cache is not enough, or if the unmount
    /// might write data.
    fn find_cached(parent: &Path, name: &OsStr, mount: &Mount) -> Option<Self> {
        let parent = open_parent(parent, CACHED).ok()?;
        let is_on_its_device = |it: &Statx| (it.stx_dev_major, it.stx_dev_minor) == mount.device;
        let dir = cached_metadata(&parent, OsStr::new(""))?;
        // If the parent directory is on the same file system, that remains mounted and nothing is written.
        let stays_mounted = is_on_its_device(&dir);
        if dir.stx_mnt_id != mount.parent || !(mount.is_in_memory() || stays_mounted) {
            return None;
        }
        let root = cached_metadata(&parent, name)?;
        (root.stx_mnt_id == mount.id && is_on_its_device(&root)).then(|| Self {
            parent,
            name: name.to_owned(),
            is_quick: true,
        })
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
    let plain = path
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if !(plain && path.is_absolute()) {
        return None;
    }
    Some((path.parent()?, path.file_name()?))
}

/// Cached metadata, including the mount ID.
fn cached_metadata(dir: &OwnedFd, name: &OsStr) -> Option<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = statx(dir, name, flags, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found)
}

fn open_parent(parent: &Path, how: ResolveFlag) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | how);
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
