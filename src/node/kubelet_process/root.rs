//! The root file system of a process, and paths as that process sees them.

use std::{
    fs,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2},
    sys::stat::{Mode, fstat},
};

/// Device and inode.
pub(super) type File = (u64, u64);

const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY);

/// The directory at which the process (by its directory in procfs) resolves `path`: its root, or its working directory.
pub(super) fn base(dir: &Path, path: &Path) -> Result<OwnedFd, Errno> {
    let name = if path.is_absolute() { "root" } else { "cwd" };
    openat(AT_FDCWD, &dir.join(name), DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
}

/// Opens `path` below it. Symlinks are resolved as that process sees them, not as the agent does.
pub(super) fn open(base: impl AsFd, path: &Path, flags: OFlag) -> Result<OwnedFd, Errno> {
    let resolve = match path.is_absolute() {
        true => ResolveFlag::RESOLVE_IN_ROOT,
        false => ResolveFlag::RESOLVE_NO_MAGICLINKS,
    };
    let how = OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(resolve);
    openat2(base, path, how)
}

/// Device and inode of that directory.
pub(super) fn identity(base: impl AsFd, path: &Path) -> Result<File, Errno> {
    identity_of(open(base, path, DIRECTORY)?)
}

/// Device and inode of an open directory.
pub(super) fn identity_of(dir: impl AsFd) -> Result<File, Errno> {
    let found = fstat(dir)?;
    Ok((found.st_dev, found.st_ino))
}

/// Device and inode of a path in the agent's own root file system.
pub(super) fn local_identity(path: &Path) -> Option<File> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
