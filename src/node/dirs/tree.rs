//! Removes a directory tree of any depth and width, with few descriptors and bounded memory.
//!
//! The walk opens each directory below its parent, without following links or crossing mounts, and keeps all descriptors
//! open on its way. A directory below the maximum depth is first renamed into the topmost one under a reserved name, and
//! removed from there; a rename crosses no mount and follows no link. Directories that a crash leaves under such a name
//! are removed with the tree at the next attempt. A wide directory is listed and removed in parts.

use std::{
    ffi::{OsStr, OsString},
    ops::Range,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::PathBuf,
};

use nix::{
    errno::Errno,
    fcntl::renameat,
    unistd::{UnlinkatFlags, Whence, lseek, unlinkat},
};
use rustix::fs::{FileType, RawDir};

use super::{Dir, OPEN_FLAGS, RESOLVE, is_dots, location, open, subvolume};
use crate::node::{
    checkpoint,
    effects::{Effects, Outcome},
    fault::{Cause, Fault, errno_of},
};

/// Maximum depth of the walk. Each level holds a descriptor.
pub(super) const MAX_DEPTH: usize = 16;
/// About the maximum number of subdirectories listed at a time; the entries of one more buffer may exceed it.
pub(super) const MAX_LISTED: usize = 128;
const BUFFER: usize = 8 * 1024;
/// How often a directory that is filled again is emptied.
const MAX_REFILLS: u32 = 8;
/// Number of faults reported one by one.
const MAX_FAULTS: usize = 32;
/// Prefix of the reserved names; a number follows.
const MOVED_PREFIX: &str = ".pod-teardown-";

const VERB: &str = "remove";

struct Walk<'a> {
    base: &'a Dir,
    effects: &'a Effects,
    levels: Vec<Level>,
    faults: Vec<Fault>,
    unreported: usize,
    buffer: Vec<u8>,
}

struct Level {
    /// Its name in its parent.
    name: OsString,
    fd: OwnedFd,
    device: (u32, u32),
    /// Listed subdirectories that are not empty.
    todo: Vec<OsString>,
    /// Numbers in the reserved names of directories renamed into this one.
    moved: Range<u64>,
    /// The listing is complete.
    is_listed: bool,
    /// An entry could not be removed, and this is reported.
    has_failed: bool,
    refills: u32,
}

// === impl Dir ===

impl Dir {
    /// Removes the entry `name` and, if it is a directory, everything in it.
    ///
    /// Entries that cannot be removed are reported; the others are removed anyway.
    pub fn remove_tree(&self, name: &OsStr, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        self.check(name, "remove").map_err(|fault| vec![fault])?;
        match self.remove_one(name, UnlinkatFlags::RemoveDir, effects) {
            Err(Fault {
                cause: Cause::Errno(Errno::ENOTDIR),
                ..
            }) => self
                .remove_one(name, UnlinkatFlags::NoRemoveDir, effects)
                .map_err(|fault| vec![fault]),
            Err(Fault {
                cause: Cause::Errno(Errno::ENOTEMPTY | Errno::EEXIST),
                ..
            }) => {
                const VERB: &str = "empty and remove";
                let path = self.path.join(name);
                checkpoint::before(VERB, &path);
                let removed = remove(self, name, effects);
                checkpoint::after(VERB, &path);
                removed.map(|()| Outcome::Done)
            }
            other => other.map_err(|fault| vec![fault]),
        }
    }
}

/// Removes the directory `name` in `base`. The caller has asked the gate.
fn remove(base: &Dir, name: &OsStr, effects: &Effects) -> Result<(), Vec<Fault>> {
    let mut walk = Walk {
        base,
        effects,
        levels: Vec::new(),
        faults: Vec::new(),
        unreported: 0,
        buffer: Vec::with_capacity(BUFFER),
    };
    walk.run(name);
    walk.finish()
}

// === impl Walk ===

impl Walk<'_> {
    fn run(&mut self, name: &OsStr) {
        self.descend(name.to_owned());
        while let Some(level) = self.levels.last_mut() {
            if let Err(blocked) = self.effects.check() {
                let path = self.path();
                self.faults.push(Fault::new(VERB, path, blocked));
                return;
            }
            match level.next() {
                Some(child) => self.descend(child),
                None if level.is_listed => self.ascend(),
                None => self.remove_entries(),
            }
        }
    }

    /// Descends into the directory `name`, or renames it to be removed later.
    fn descend(&mut self, name: OsString) {
        if self.levels.len() >= MAX_DEPTH {
            return self.move_up(&name);
        }
        let opened = open(self.parent(), &name, OPEN_FLAGS, RESOLVE);
        let found = opened.and_then(|fd| location(&fd).map(|found| (fd, found)));
        match found {
            Ok((_, found)) if !found.is_on_mount_of(self.base.location) => {
                self.report_failure(&name, Cause::OtherFileSystem);
            }
            Ok((fd, found)) => {
                let above = self
                    .levels
                    .last()
                    .map_or(self.base.location.device, |level| level.device);
                if found.device != above {
                    subvolume::make_writable(&fd);
                    // Nothing can be renamed out of a subvolume except a nested subvolume, which has to be near the top itself.
                    if self.levels.len() > 1 && self.rename(&name, 0).is_ok() {
                        return;
                    }
                }
                self.levels.push(Level {
                    name,
                    fd,
                    device: found.device,
                    todo: Vec::new(),
                    moved: 0..0,
                    is_listed: false,
                    has_failed: false,
                    refills: 0,
                });
            }
            Err(Errno::ENOENT) => {}
            // It was replaced by a link or a file since the listing.
            Err(Errno::ELOOP | Errno::ENOTDIR) => match unlinkat(self.parent(), &*name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => self.report_failure(&name, errno.into()),
            },
            Err(errno) => self.report_failure(&name, errno.into()),
        }
    }

    /// Renames the directory `name` of the deepest level to the topmost level that can take it.
    fn move_up(&mut self, name: &OsStr) {
        let device = self.levels.last().map(|level| level.device);
        let home = self.levels.iter().position(|level| Some(level.device) == device);
        match home.filter(|home| home + 1 < self.levels.len()) {
            Some(home) => match self.rename(name, home) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => self.report_failure(name, errno.into()),
            },
            None => self.report_failure(name, Cause::TooDeep),
        }
    }

    /// Renames the directory `name` of the deepest level into the level `home`, which records its number.
    fn rename(&mut self, name: &OsStr, home: usize) -> Result<(), Errno> {
        loop {
            let to = moved_name(self.levels[home].moved.end);
            let renamed = renameat(self.parent(), name, &self.levels[home].fd, &*to);
            match renamed {
                // A directory that already has this name is removed under it, too.
                Err(Errno::EEXIST | Errno::ENOTEMPTY | Errno::ENOTDIR | Errno::EISDIR) => {
                    self.levels[home].moved.end += 1;
                }
                Ok(()) => {
                    self.levels[home].moved.end += 1;
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Removes all entries of the deepest level that can be removed at once, and collects non-empty directories, up to
    /// the listing's limit.
    fn remove_entries(&mut self) {
        let Some(mut level) = self.levels.pop() else {
            return;
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut entries = RawDir::new(&level.fd, buffer.spare_capacity_mut());
        loop {
            match entries.next() {
                None | Some(Err(rustix::io::Errno::NOENT)) => {
                    level.is_listed = true;
                    break;
                }
                Some(Err(errno)) => {
                    (level.is_listed, level.has_failed) = (true, true);
                    self.report(&level.name, OsStr::new(""), errno_of(errno).into());
                    break;
                }
                Some(Ok(entry)) => {
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    if !is_dots(name.as_bytes()) {
                        // A flat directory may have a million entries. After a block, the next listing finds the
                        // remaining ones.
                        if self.effects.check().is_err() {
                            break;
                        }
                        match unlink(&level.fd, name, entry.file_type()) {
                            Ok(()) | Err(Errno::ENOENT) => {}
                            Err(Errno::ENOTEMPTY | Errno::EEXIST) => level.todo.push(name.to_owned()),
                            Err(errno) => {
                                level.has_failed = true;
                                self.report(&level.name, name, errno.into());
                            }
                        }
                    }
                }
            }
            if entries.is_buffer_empty() && level.todo.len() >= MAX_LISTED {
                break;
            }
        }
        self.buffer = buffer;
        self.levels.push(level);
    }

    /// Removes the deepest level, which has been emptied, and ascends; or empties it again.
    fn ascend(&mut self) {
        let Some(mut level) = self.levels.pop() else {
            return;
        };
        match unlinkat(self.parent(), &*level.name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if !level.has_failed => {
                level.refills += 1;
                if level.refills > MAX_REFILLS || lseek(&level.fd, 0, Whence::SeekSet).is_err() {
                    self.report_failure(&level.name, Cause::KeepsFilling);
                } else {
                    level.is_listed = false;
                    self.levels.push(level);
                }
            }
            // What is left in it has been reported.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => self.set_failed(),
            // Another file has its name now. The next listing of the parent shows it.
            Err(Errno::ENOTDIR) => {}
            Err(errno) => self.report_failure(&level.name, errno.into()),
        }
    }

    fn parent(&self) -> &OwnedFd {
        self.levels.last().map_or(&self.base.fd, |level| &level.fd)
    }

    /// Reports that the entry `name` of the deepest level cannot be removed.
    fn report_failure(&mut self, name: &OsStr, cause: Cause) {
        self.report(name, OsStr::new(""), cause);
        self.set_failed();
    }

    fn set_failed(&mut self) {
        if let Some(parent) = self.levels.last_mut() {
            parent.has_failed = true;
        }
    }

    /// Reports a fault about `name` in the deepest level, or about `within` inside it.
    fn report(&mut self, name: &OsStr, within: &OsStr, cause: Cause) {
        if self.faults.len() >= MAX_FAULTS {
            self.unreported += 1;
            return;
        }
        let mut path = self.path().join(name);
        if !within.is_empty() {
            path.push(within);
        }
        self.faults.push(Fault::new(VERB, path, cause));
    }

    fn path(&self) -> PathBuf {
        let mut path = self.base.path.clone();
        path.extend(self.levels.iter().map(|level| &level.name));
        path
    }

    fn finish(mut self) -> Result<(), Vec<Fault>> {
        if self.unreported > 0 {
            let more = Fault::new(VERB, &self.base.path, Cause::More(self.unreported));
            self.faults.push(more);
        }
        if self.faults.is_empty() {
            Ok(())
        } else {
            Err(self.faults)
        }
    }
}

// === impl Level ===

impl Level {
    /// The next subdirectory to descend into.
    fn next(&mut self) -> Option<OsString> {
        self.todo.pop().or_else(|| self.moved.next().map(moved_name))
    }
}

fn moved_name(number: u64) -> OsString {
    format!("{MOVED_PREFIX}{number}").into()
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
