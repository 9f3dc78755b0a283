//! Removes a directory tree of any depth and width, with few descriptors and bounded memory.
//!
//! The walk opens each directory below its parent, without following links or crossing mounts. At the limit of open levels it
//! closes all of them and continues in the deepest one. Once that is empty, it restarts at the top. A wide directory is listed
//! and removed in parts.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    unistd::{UnlinkatFlags, unlinkat},
};
use rustix::fs::{FileType, RawDir};

use super::{Dir, DirId, OPEN_FLAGS, RESOLVE, is_dots, location, open};
use crate::node::{
    checkpoint,
    effects::{Effects, Outcome},
    fault::{Cause, Fault, errno_of},
};

/// Maximum number of open levels. Each has a descriptor.
pub(super) const MAX_OPEN: usize = 32;
/// Maximum number of restarts. The next attempt continues.
const MAX_RESTARTS: usize = 1024;
/// About the maximum number of subdirectories listed at a time; the entries of one more buffer may exceed it.
pub(super) const MAX_LISTED: usize = 128;
const BUFFER: usize = 8 * 1024;
/// How often a directory that is filled again is emptied.
const MAX_REFILLS: u32 = 8;
/// Number of faults reported one by one.
const MAX_FAULTS: usize = 32;

const VERB: &str = "remove";

struct Walk<'a> {
    base: &'a Dir,
    effects: &'a Effects,
    /// The directory beyond the limit of open levels in which the walk continues.
    deeper: Option<Dir>,
    /// Directories beyond the limit that cannot be removed. They are not entered again.
    failed: Vec<DirId>,
    faults: Vec<Fault>,
    unreported: usize,
}

/// What the walk leaves of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    /// Nothing but what others have created meanwhile.
    Nothing,
    /// Entries that cannot be removed. They are reported.
    Reported,
    /// Not known: the gate is shut, or the walk continues in a deeper directory.
    Unfinished,
}

// === impl Dir ===

impl Dir {
    /// Removes the entry `name` and, if it is a directory, everything in it.
    ///
    /// Entries that cannot be removed are reported; the others are removed anyway.
    pub fn remove_tree(&self, name: &OsStr, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        let removed = self.remove_one(name, UnlinkatFlags::RemoveDir, effects);
        match removed.as_ref().err().and_then(Fault::errno) {
            Some(Errno::ENOTDIR) => Ok(self.remove_one(name, UnlinkatFlags::NoRemoveDir, effects)?),
            Some(Errno::ENOTEMPTY | Errno::EEXIST) => {
                const VERB: &str = "empty and remove";
                let path = self.path.join(name);
                checkpoint::before(VERB, &path);
                let removed = remove(self, name, effects);
                checkpoint::after(VERB, &path);
                removed.map(|()| Outcome::Done)
            }
            _ => Ok(removed?),
        }
    }
}

/// Removes the directory `name` in `base`. The caller has asked the gate.
fn remove(base: &Dir, name: &OsStr, effects: &Effects) -> Result<(), Vec<Fault>> {
    let mut walk = Walk {
        base,
        effects,
        deeper: None,
        failed: Vec::new(),
        faults: Vec::new(),
        unreported: 0,
    };
    walk.run(name);
    if walk.unreported > 0 {
        let more = Fault::new(VERB, &base.path, Cause::More(walk.unreported));
        walk.faults.push(more);
    }
    let faults = walk.faults;
    if faults.is_empty() { Ok(()) } else { Err(faults) }
}

// === impl Walk ===

impl Walk<'_> {
    /// Walks from the top, and again as long as it had to continue beyond the limit.
    fn run(&mut self, name: &OsStr) {
        for _ in 0..MAX_RESTARTS {
            let mut left = self.remove_dir(self.base, name, MAX_OPEN);
            if self.deeper.is_none() {
                return;
            }
            while let Some(deeper) = self.deeper.take() {
                left = self.empty(&deeper, MAX_OPEN);
                if left == Left::Reported {
                    self.failed.push(deeper.location.id);
                }
            }
            if left == Left::Unfinished {
                return;
            }
        }
        self.report(self.base, name, Cause::TooDeep);
    }

    /// Empties and removes the directory `name` of `parent`.
    fn remove_dir(&mut self, parent: &Dir, name: &OsStr, levels: usize) -> Left {
        for _ in 0..MAX_REFILLS {
            if let Err(blocked) = self.effects.check() {
                self.faults.push(Fault::new(VERB, parent.path.join(name), blocked));
                return Left::Unfinished;
            }
            let opened = open(&parent.fd, name, OPEN_FLAGS, RESOLVE);
            let (fd, location) = match opened.and_then(|fd| location(&fd).map(|found| (fd, found))) {
                Ok((_, found)) if !found.is_on_mount_of(self.base.location) => {
                    return self.report(parent, name, Cause::OtherFileSystem);
                }
                Ok((_, found)) if levels == 0 && self.failed.contains(&found.id) => return Left::Reported,
                Ok(found) => found,
                // It was replaced by a link or a file since the listing.
                Err(Errno::ELOOP | Errno::ENOTDIR) => {
                    let removed = unlinkat(&parent.fd, name, UnlinkatFlags::NoRemoveDir);
                    return self.note(parent, name, removed);
                }
                Err(errno) => return self.note(parent, name, Err(errno)),
            };
            if levels == 0 {
                let path = self.path_of(&fd, name);
                self.deeper = Some(Dir { fd, path, location });
                return Left::Unfinished;
            }
            let path = parent.path.join(name);
            match self.empty(&Dir { fd, path, location }, levels - 1) {
                Left::Nothing => {}
                left => return left,
            }
            match unlinkat(&parent.fd, name, UnlinkatFlags::RemoveDir) {
                // Another process has filled it.
                Err(Errno::ENOTEMPTY | Errno::EEXIST) => {}
                // Another file has its name now. The next listing of the parent shows it.
                Err(Errno::ENOTDIR) => return Left::Nothing,
                removed => return self.note(parent, name, removed),
            }
        }
        self.report(parent, name, Cause::KeepsFilling)
    }

    /// Removes everything in this directory.
    fn empty(&mut self, dir: &Dir, levels: usize) -> Left {
        let mut left = Left::Nothing;
        loop {
            let mut listed = Vec::new();
            let is_last = match self.remove_entries(dir, &mut listed) {
                Ok((is_last, part)) => {
                    left = left.max(part);
                    is_last
                }
                Err(fault) => {
                    self.faults.push(fault);
                    return Left::Unfinished;
                }
            };
            for name in listed {
                match self.remove_dir(dir, &name, levels) {
                    Left::Unfinished => return Left::Unfinished,
                    part => left = left.max(part),
                }
            }
            if is_last {
                return left;
            }
        }
    }

    /// Removes the entries of this directory that can be removed at once, up to the limit of a listing, and lists directories that
    /// are not empty. Returns whether the listing is complete.
    ///
    /// # Errors
    /// When the gate is shut.
    fn remove_entries(&mut self, dir: &Dir, listed: &mut Vec<OsString>) -> Result<(bool, Left), Fault> {
        let mut failures = Vec::new();
        let mut buffer = Vec::with_capacity(BUFFER);
        let mut entries = RawDir::new(&dir.fd, buffer.spare_capacity_mut());
        let is_last = loop {
            match entries.next() {
                None | Some(Err(rustix::io::Errno::NOENT)) => break true,
                Some(Err(errno)) => {
                    failures.push((OsString::new(), errno_of(errno)));
                    break true;
                }
                Some(Ok(entry)) if is_dots(entry.file_name().to_bytes()) => {}
                Some(Ok(entry)) => {
                    let blocked = |blocked| Fault::new(VERB, &dir.path, blocked);
                    self.effects.check().map_err(blocked)?;
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    match unlink(&dir.fd, name, entry.file_type()) {
                        Ok(()) | Err(Errno::ENOENT) => {}
                        Err(Errno::ENOTEMPTY | Errno::EEXIST) => listed.push(name.to_owned()),
                        Err(errno) => failures.push((name.to_owned(), errno)),
                    }
                }
            }
            if entries.is_buffer_empty() && listed.len().max(failures.len()) >= MAX_LISTED {
                break false;
            }
        };
        let failures = failures.into_iter();
        let failed = failures.map(|(name, errno)| self.note(dir, &name, Err(errno)));
        Ok((is_last, failed.max().unwrap_or(Left::Nothing)))
    }

    /// Reports that the entry `name` cannot be removed, unless it does not exist any more.
    fn note(&mut self, dir: &Dir, name: &OsStr, removed: nix::Result<()>) -> Left {
        match removed {
            Ok(()) | Err(Errno::ENOENT) => Left::Nothing,
            Err(errno) => self.report(dir, name, errno.into()),
        }
    }

    fn report(&mut self, dir: &Dir, name: &OsStr, cause: Cause) -> Left {
        let fault = Fault::new(VERB, dir.path.join(name), cause);
        if self.faults.len() >= MAX_FAULTS {
            self.unreported += 1;
        } else if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
        Left::Reported
    }

    /// Path of a directory beyond the limit. The kernel knows it, unless it is longer than a page.
    fn path_of(&self, fd: &OwnedFd, name: &OsStr) -> PathBuf {
        let of_fd = Path::new("/proc/thread-self/fd").join(fd.as_raw_fd().to_string());
        match fs::read_link(of_fd) {
            Ok(path) if path.starts_with(&self.base.path) => path,
            _ => self.base.path.join(" … ").join(name),
        }
    }
}

/// Removes one entry of any type. The type in the listing may be unknown or outdated.
fn unlink(fd: &OwnedFd, name: &OsStr, listed: FileType) -> Result<(), Errno> {
    if listed == FileType::Directory {
        match unlinkat(fd, name, UnlinkatFlags::RemoveDir) {
            Err(Errno::ENOTDIR) => unlinkat(fd, name, UnlinkatFlags::NoRemoveDir),
            other => other,
        }
    } else {
        match unlinkat(fd, name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => unlinkat(fd, name, UnlinkatFlags::RemoveDir),
            other => other,
        }
    }
}
