//! One unmount: of exactly this path, through no symlink, never lazy, and by force only for a server that is gone.

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
    hanging::{Hanging, Mounted, is_gone},
};
use crate::node::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{Cause, Fault, errno_of},
    threads::NotDone,
    unmounts::{Call, CallError, ForceUnmount, UnmountBackend, Unmounting},
};

const VERB: &str = "unmount";
/// A connection that was cut lets go of those who waited for it a moment later.
const LET_GO: Duration = Duration::from_millis(20);
const LET_GO_TRIES: u32 = 10;
/// Only as far as the kernel knows the way without asking a file system.
const CACHED: ResolveFlag = ResolveFlag::from_bits_retain(nix::libc::RESOLVE_CACHED);

/// UnmountBackend the topmost mount on `path`, which must be absolute and free of symlinks.
///
/// Whatever hangs in the kernel does so on a thread of its own: after some seconds it is left to itself and a fault.
pub fn unmount(path: &Path, effects: &Effects) -> Result<Outcome, Fault> {
    unmount_point(path, effects, |_, _| None)
}

/// The same of a mount that a table shows. If nothing of it can hang, no thread is made for it.
pub(super) fn unmount_seen(mount: &Mount, table: &MountTable, effects: &Effects) -> Result<Outcome, Fault> {
    unmount_point(&mount.path, effects, |parent, name| {
        table
            .lies_in_memory(mount)
            .then(|| MountPoint::find_at_once(parent, name, mount))?
    })
}

fn unmount_point(
    path: &Path,
    effects: &Effects,
    at_once: impl FnOnce(&Path, &OsStr) -> Option<MountPoint>,
) -> Result<Outcome, Fault> {
    let fault = |cause: Cause| Fault::new(VERB, path, cause);
    let (parent, name) = split(path).ok_or_else(|| fault(Cause::BadName(path.into())))?;
    let unmounting = effects.unmounting();
    let found = match &unmounting.backend {
        UnmountBackend::Kernel => match at_once(parent, name) {
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
    if !effects
        .allow(&Effect::new(VERB, &path))
        .map_err(|held| fault(held.into()))?
    {
        return Ok(Outcome::Withheld);
    }
    let done = match (&point, &unmounting.backend) {
        (Some(point), _) => unmounting.unmount(path, point),
        (None, UnmountBackend::Simulated(unmount)) => Ok(unmount(path)),
        (None, UnmountBackend::Kernel) => Ok(Err(Errno::EINVAL)),
    };
    checkpoint::after(VERB, &path);
    match done.map_err(|error| fault(cause(path, error)))? {
        Ok(()) => Ok(Outcome::Done),
        // Gone meanwhile, or no mount (any more).
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL) => Ok(Outcome::Nothing),
        Err(errno) => Err(fault(errno.into())),
    }
}

fn cause(path: &Path, error: CallError) -> Cause {
    match error {
        CallError::Hangs(hang) => Cause::from(Hanging {
            since: hang.since,
            what: Mounted::on(path),
        }),
        CallError::NoFreeThread => Cause::NotDone(NotDone::NoFreeThread),
        CallError::Aborted => Cause::NotDone(NotDone::Aborted),
    }
}

// === impl Unmounting ===

impl Unmounting {
    /// UnmountBackend it, and cuts the connection to a server that is gone if that is wanted.
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

    /// Never lazily: what is still in use stays mounted, and is told.
    fn force(&self, path: &Path, point: &Arc<MountPoint>) -> Result<nix::Result<()>, CallError> {
        tracing::warn!(
            ?path,
            "Server of a mount does not answer: the connection is cut, as --force-unmount says"
        );
        let point = Arc::clone(point);
        let force = move || {
            for _ in 1..LET_GO_TRIES {
                match point.unmount(MntFlags::MNT_FORCE) {
                    Err(Errno::EBUSY) => park_timeout(LET_GO),
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
            Ok(Err(errno)) => is_gone(errno),
            Ok(Ok(())) | Err(CallError::NoFreeThread | CallError::Aborted) => false,
        };
        dead && self.may_force(path)
    }

    fn may_force(&self, path: &Path) -> bool {
        self.force == ForceUnmount::DeadServer && Mounted::on(path).is_some_and(|it| it.has_server())
    }

    fn wait_for<T: Send + 'static>(
        &self,
        path: &Path,
        call: Call,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        self.in_flight.wait_for(path, call, self.patience, work)
    }
}

/// Where something is mounted: the directory that holds it, and the name in there.
///
/// `UMOUNT_NOFOLLOW` guards only the last component, and a container may have swapped any other for a symlink. So the
/// directory that holds the mount point is opened without following any, and the unmount starts from there.
struct MountPoint {
    parent: OwnedFd,
    name: OsString,
    /// Nothing of the unmount can hang.
    is_quick: bool,
}

// === impl MountPoint ===

impl MountPoint {
    /// Nothing if the kernel knows that nothing is mounted there.
    fn find(parent: &Path, name: OsString) -> nix::Result<Option<Self>> {
        let point = Self {
            parent: open_parent(parent, ResolveFlag::empty())?,
            name,
            is_quick: false,
        };
        Ok(point.may_be_mount().then_some(point))
    }

    /// The same for `mount`, if it is topmost there, by what the kernel knows without asking any file system. Nothing where
    /// that does not suffice, or where to unmount it might mean to write what it holds.
    fn find_at_once(parent: &Path, name: &OsStr, mount: &Mount) -> Option<Self> {
        let parent = open_parent(parent, CACHED).ok()?;
        let is_on_its_device = |it: &Statx| (it.stx_dev_major, it.stx_dev_minor) == mount.device;
        let dir = look(&parent, OsStr::new(""))?;
        // Where it is the directory's too, that file system stays mounted: nothing has to be written.
        let stays = is_on_its_device(&dir);
        if dir.stx_mnt_id != mount.parent || !(mount.is_in_memory() || stays) {
            return None;
        }
        let root = look(&parent, name)?;
        (root.stx_mnt_id == mount.id && is_on_its_device(&root)).then(|| Self {
            parent,
            name: name.to_owned(),
            is_quick: true,
        })
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that unmounts, after the gate was asked"
    )]
    fn unmount(&self, flags: MntFlags) -> nix::Result<()> {
        umount2(&self.path(), MntFlags::UMOUNT_NOFOLLOW | flags)
    }

    /// Asks the server for something. Whoever waits here for an answer keeps the mount in use.
    fn probe(&self) -> nix::Result<()> {
        statfs(&self.path()).map(drop)
    }

    /// Whether the kernel calls it the root of a mount. In doubt yes: the unmount itself will tell.
    fn may_be_mount(&self) -> bool {
        // Not synchronised: a server that is gone must not hold up the question.
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

/// What the kernel knows of it by itself, the mount that it is on above all.
fn look(dir: &OwnedFd, name: &OsStr) -> Option<Statx> {
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
    fn paths_that_could_lead_elsewhere_are_refused() {
        for path in ["", "/", "a/b", "/a/../b", "/a/..", ".."] {
            let fault = unmount(Path::new(path), &Effects::ungated()).unwrap_err();
            assert!(matches!(fault.cause, Cause::BadName(_)), "{path}: {fault}");
        }
    }

    #[test]
    fn what_is_no_mount_or_not_there_needs_no_unmount() {
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
    fn a_symlink_on_the_way_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::os::unix::fs::symlink("/", root.join("link")).unwrap();
        let fault = unmount(&root.join("link/proc"), &Effects::ungated()).unwrap_err();
        assert_eq!(fault.cause, Cause::Errno(Errno::ELOOP));
    }
}
