//! One unmount: of exactly this path, through no symlink, never lazy and never forced.

use std::{
    ffi::OsStr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, openat2, statx},
    io::Errno,
    mount::UnmountFlags,
};

use crate::node::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{Cause, Fault},
    unmounts::Unmounts,
};

const VERB: &str = "unmount";

/// Unmounts the topmost mount on `path`, which must be absolute and free of symlinks.
///
/// `UMOUNT_NOFOLLOW` guards only the last component, and a container may have swapped any other for a symlink. So the
/// directory that holds the mount point is opened without following any, and the unmount starts from there.
pub fn unmount(path: &Path, effects: &Effects) -> Result<Outcome, Fault> {
    let fault = |cause: Cause| Fault::new(VERB, path, cause);
    let (parent, name) = split(path).ok_or_else(|| fault(Cause::BadName(path.into())))?;
    let parent = match open_parent(parent) {
        Ok(parent) => parent,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Outcome::Nothing),
        Err(errno) => return Err(fault(errno.into())),
    };
    if matches!(effects.unmounts(), Unmounts::Kernel) && !may_be_mount(&parent, name) {
        return Ok(Outcome::Nothing);
    }
    if !effects
        .allow(&Effect::new(VERB, &path))
        .map_err(|held| fault(held.into()))?
    {
        return Ok(Outcome::Withheld);
    }
    let done = match effects.unmounts() {
        Unmounts::Kernel => {
            let target = PathBuf::from(format!("/proc/self/fd/{}", parent.as_raw_fd())).join(name);
            rustix::mount::unmount(&target, UnmountFlags::NOFOLLOW)
        }
        Unmounts::By(unmount) => unmount(path),
    };
    checkpoint::after(VERB, &path);
    match done {
        Ok(()) => Ok(Outcome::Done),
        // Gone meanwhile, or no mount (any more).
        Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL) => Ok(Outcome::Nothing),
        Err(errno) => Err(fault(errno.into())),
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

fn open_parent(parent: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat2(CWD, parent, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

/// Whether the kernel calls it the root of a mount. In doubt yes: the unmount itself will tell.
fn may_be_mount(parent: impl AsFd, name: &OsStr) -> bool {
    // Not synchronised: a server that is gone must not hold up the question.
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match statx(parent, name, flags, StatxFlags::empty()) {
        Ok(found) => {
            !found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
                || found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        }
        Err(errno) => !matches!(errno, Errno::NOENT | Errno::NOTDIR),
    }
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
        assert_eq!(fault.cause, Cause::Errno(Errno::LOOP));
    }
}
