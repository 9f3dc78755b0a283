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

/// Where the process with this directory in procfs looks `path` up: in its own root file system, or its working directory.
pub(super) fn base(dir: &Path, path: &Path) -> Result<OwnedFd, Errno> {
    let name = if path.is_absolute() { "root" } else { "cwd" };
    openat(CWD, dir.join(name), DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Opens what it finds there. Links are resolved as that process sees them, not as we do.
pub(super) fn open(base: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = if path.is_absolute() {
        ResolveFlags::IN_ROOT
    } else {
        ResolveFlags::NO_MAGICLINKS
    };
    openat2(base, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}

/// Which directory it finds there.
pub(super) fn identity(base: impl AsFd, path: &Path) -> Result<File, Errno> {
    identity_of(open(base, path, DIRECTORY)?)
}

/// Which directory that is.
pub(super) fn identity_of(dir: impl AsFd) -> Result<File, Errno> {
    let found = fstat(dir)?;
    Ok((found.st_dev, found.st_ino))
}

/// Which file we find there.
pub(super) fn ours(path: &Path) -> Option<File> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}
