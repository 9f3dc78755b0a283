//! The root file system of a process, and paths as that process sees them.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2},
    io::Errno,
};

/// Device and inode.
pub(super) type File = (u64, u64);

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);

/// The directory at which the process (by its directory in procfs) resolves `path`: its root, or its working directory.
pub(super) fn base(dir: &Path, path: &Path) -> Result<OwnedFd, Errno> {
    let name = if path.is_absolute() { "root" } else { "cwd" };
    openat(CWD, dir.join(name), DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens `path` below it. Symlinks are resolved as that process sees them, not as we do.
pub(super) fn open(base: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = if path.is_absolute() {
        ResolveFlags::IN_ROOT
    } else {
        ResolveFlags::NO_MAGICLINKS
    };
    openat2(base, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Device and inode of that directory.
pub(super) fn identity(base: impl AsFd, path: &Path) -> Result<File, Errno> {
    identity_of(open(base, path, DIRECTORY)?)
}

/// The same of an open directory.
pub(super) fn identity_of(dir: impl AsFd) -> Result<File, Errno> {
    let found = fstat(dir)?;
    Ok((found.st_dev, found.st_ino))
}

/// The same of a path of our own.
pub(super) fn ours(path: &Path) -> Option<File> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
