//! Removal of a directory that is not empty, of any depth and width, with few descriptors and bounded memory.
//!
//! The walk goes down by name, each time opened below its parent without links and mounts, and comes back up over the
//! descriptors, all of which stay open. A directory that lies deeper than that is first renamed up into the topmost one, under
//! a name of ours, and entered there: a rename crosses no mount and follows no link. What a crash leaves under such a name
//! goes with the tree at the next attempt. Of a wide directory, a part is listed, and gone before the next part is.

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

use super::{DIRECTORY, Dir, WITHIN, is_dots, open, place, subvolume};
use crate::node::{
    effects::Effects,
    fault::{Cause, Fault, errno_of},
};

/// Levels that are entered, each with a descriptor.
pub(super) const LEVELS: usize = 16;
/// About the maximum number of subdirectories listed at a time; the entries of one more buffer may exceed it.
pub(super) const LISTED: usize = 128;
const BUFFER: usize = 8 * 1024;
/// How often a directory is emptied again that came back full.
const REFILLS: u32 = 8;
/// Faults that are told one by one.
const TOLD: usize = 32;
/// Directories that are renamed up are called so, with a number behind it.
const MOVED: &str = ".pod-teardown-";

const VERB: &str = "remove";

struct Walk<'a> {
    base: &'a Dir,
    effects: &'a Effects,
    levels: Vec<Level>,
    faults: Vec<Fault>,
    untold: usize,
    buffer: Vec<u8>,
}

struct Level {
    /// Its name in its parent.
    name: OsString,
    fd: OwnedFd,
    device: (u32, u32),
    /// Subdirectories that were listed and are not empty.
    todo: Vec<OsString>,
    /// Numbers in the names of those that were renamed up into it.
    moved: Range<u64>,
    /// All of it was listed.
    is_listed: bool,
    /// Something in it could not be removed, and that is told.
    has_failed: bool,
    refills: u32,
}

/// Removes the directory `name` in `base`, which the caller has allowed.
pub(super) fn remove(base: &Dir, name: &OsStr, effects: &Effects) -> Result<(), Vec<Fault>> {
    let mut walk = Walk {
        base,
        effects,
        levels: Vec::new(),
        faults: Vec::new(),
        untold: 0,
        buffer: Vec::with_capacity(BUFFER),
    };
    walk.run(name);
    walk.told()
}

// === impl Walk ===

impl Walk<'_> {
    fn run(&mut self, name: &OsStr) {
        self.enter(name.to_owned());
        while let Some(level) = self.levels.last_mut() {
            if let Err(held) = self.effects.check() {
                let path = self.path();
                self.faults.push(Fault::new(VERB, path, held));
                return;
            }
            match level.next() {
                Some(child) => self.enter(child),
                None if level.is_listed => self.leave(),
                None => self.sweep(),
            }
        }
    }

    /// Goes down into the directory `name`, or has it renamed to where it is entered later.
    fn enter(&mut self, name: OsString) {
        if self.levels.len() >= LEVELS {
            return self.move_up(&name);
        }
        let opened = open(self.parent(), &name, DIRECTORY, WITHIN);
        let found = opened.and_then(|fd| place(&fd).map(|place| (fd, place)));
        match found {
            Ok((_, found)) if !found.is_on_mount_of(self.base.place) => self.fail(&name, Cause::OtherFileSystem),
            Ok((fd, found)) => {
                let above = self.levels.last().map_or(self.base.place.device, |level| level.device);
                if found.device != above {
                    subvolume::make_writable(&fd);
                    // Nothing can be renamed out of a subvolume but the next one: it has to be near the top itself.
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
            // Swapped for a link or a file since it was listed: that goes like any other.
            Err(Errno::ELOOP | Errno::ENOTDIR) => match unlinkat(self.parent(), &*name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => self.fail(&name, errno.into()),
            },
            Err(errno) => self.fail(&name, errno.into()),
        }
    }

    /// Renames the directory `name` of the deepest level up to the topmost from where it can be reached.
    fn move_up(&mut self, name: &OsStr) {
        let device = self.levels.last().map(|level| level.device);
        let home = self.levels.iter().position(|level| Some(level.device) == device);
        match home.filter(|home| home + 1 < self.levels.len()) {
            Some(home) => match self.rename(name, home) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => self.fail(name, errno.into()),
            },
            None => self.fail(name, Cause::TooDeep),
        }
    }

    /// Renames the directory `name` of the deepest level into the level `home`, which takes note of it.
    fn rename(&mut self, name: &OsStr, home: usize) -> Result<(), Errno> {
        loop {
            let to = moved(self.levels[home].moved.end);
            let renamed = renameat(self.parent(), name, &self.levels[home].fd, &*to);
            match renamed {
                // What is called so already is entered under that name, too.
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

    /// Removes all entries of the deepest level that go at once, and notes the directories that are not empty; as many as are
    /// listed at a time.
    fn sweep(&mut self) {
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
                    self.tell(&level.name, OsStr::new(""), errno_of(errno).into());
                    break;
                }
                Some(Ok(entry)) => {
                    let name = OsStr::from_bytes(entry.file_name().to_bytes());
                    if !is_dots(name.as_bytes()) {
                        // A flat directory may hold a million. Who is held back here finds the rest when the listing is repeated.
                        if self.effects.check().is_err() {
                            break;
                        }
                        match unlink(&level.fd, name, entry.file_type()) {
                            Ok(()) | Err(Errno::ENOENT) => {}
                            Err(Errno::ENOTEMPTY | Errno::EEXIST) => level.todo.push(name.to_owned()),
                            Err(errno) => {
                                level.has_failed = true;
                                self.tell(&level.name, name, errno.into());
                            }
                        }
                    }
                }
            }
            if entries.is_buffer_empty() && level.todo.len() >= LISTED {
                break;
            }
        }
        self.buffer = buffer;
        self.levels.push(level);
    }

    /// Removes the deepest level itself, which has been emptied, and goes up; or empties it once more.
    fn leave(&mut self) {
        let Some(mut level) = self.levels.pop() else {
            return;
        };
        match unlinkat(self.parent(), &*level.name, UnlinkatFlags::RemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if !level.has_failed => {
                level.refills += 1;
                if level.refills > REFILLS || lseek(&level.fd, 0, Whence::SeekSet).is_err() {
                    self.fail(&level.name, Cause::KeepsFilling);
                } else {
                    level.is_listed = false;
                    self.levels.push(level);
                }
            }
            // What is left in it has been told.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => self.keeps_something(),
            // Something else bears its name now; the next look at the parent finds what.
            Err(Errno::ENOTDIR) => {}
            Err(errno) => self.fail(&level.name, errno.into()),
        }
    }

    fn parent(&self) -> &OwnedFd {
        self.levels.last().map_or(&self.base.fd, |level| &level.fd)
    }

    /// The entry `name` of the deepest level stays, for a reason to be told.
    fn fail(&mut self, name: &OsStr, cause: Cause) {
        self.tell(name, OsStr::new(""), cause);
        self.keeps_something();
    }

    fn keeps_something(&mut self) {
        if let Some(parent) = self.levels.last_mut() {
            parent.has_failed = true;
        }
    }

    /// Of `name` in the deepest level, or of what is `within` it.
    fn tell(&mut self, name: &OsStr, within: &OsStr, cause: Cause) {
        if self.faults.len() >= TOLD {
            self.untold += 1;
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

    fn told(mut self) -> Result<(), Vec<Fault>> {
        if self.untold > 0 {
            let more = Fault::new(VERB, &self.base.path, Cause::More(self.untold));
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
    /// The next subdirectory to enter.
    fn next(&mut self) -> Option<OsString> {
        self.todo.pop().or_else(|| self.moved.next().map(moved))
    }
}

fn moved(number: u64) -> OsString {
    format!("{MOVED}{number}").into()
}

/// Removes one entry, whatever it turns out to be; the type in the listing may be unknown or out of date.
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
