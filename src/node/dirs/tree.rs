//! Removal of a directory that is not empty, at any depth, with few descriptors and bounded memory.
//!
//! The walk goes down by name, each time opened below its parent without links and mounts, and comes back up over the
//! descriptors of the deepest levels that are kept, or by `..` where the descriptor had to go. After a `..` the
//! directory must be the one that the walk came through: a writer may have moved the tree meanwhile.

use std::{
    collections::{HashSet, VecDeque},
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::PathBuf,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, RawDir, ResolveFlags, SeekFrom, openat2, seek, unlinkat},
    io::Errno,
};

use super::{DIRECTORY, Dir, Identity, WITHIN, identity, is_dots};
use crate::node::{
    effects::Effects,
    fault::{Cause, Fault},
};

/// Levels whose descriptors are kept open.
const KEPT: usize = 16;
/// Names of subdirectories that are remembered on all levels together; the rest is found again by another look.
pub(super) const PENDING: usize = 1024;
/// How often a directory is emptied again that came back full.
const REFILLS: u32 = 8;
/// How often the whole walk starts again after it lost its way.
const RESTARTS: u32 = 8;
/// A million directories within each other cost about 100 MiB here; nothing honest comes near a tenth of this.
const DEPTH: usize = 100_000;
/// Faults that are told one by one.
const TOLD: usize = 32;
const BUFFER: usize = 16 * 1024;

const VERB: &str = "remove";

struct Walk<'a> {
    base: &'a Dir,
    effects: &'a Effects,
    levels: VecDeque<Level>,
    pending: usize,
    faults: Vec<Fault>,
    untold: usize,
    buffer: Vec<u8>,
}

struct Level {
    /// Its name in its parent.
    name: OsString,
    /// Open on the deepest levels only.
    fd: Option<OwnedFd>,
    identity: Identity,
    /// Subdirectories that are not empty.
    todo: Vec<OsString>,
    /// More of them were seen than could be remembered.
    more: bool,
    /// Entries that could not be removed: not tried again.
    failed: HashSet<OsString>,
    refills: u32,
}

/// How a walk ended.
enum End {
    Gone,
    Failed,
    Lost,
}

/// Removes the directory `name` in `base`, which the caller has allowed.
pub(super) fn remove(base: &Dir, name: &OsStr, effects: &Effects) -> Result<(), Vec<Fault>> {
    let mut walk = Walk {
        base,
        effects,
        levels: VecDeque::new(),
        pending: 0,
        faults: Vec::new(),
        untold: 0,
        buffer: Vec::with_capacity(BUFFER),
    };
    for _ in 0..RESTARTS {
        walk.faults.clear();
        (walk.untold, walk.pending) = (0, 0);
        walk.levels.clear();
        match walk.run(name) {
            End::Gone => return Ok(()),
            End::Failed => return Err(walk.told()),
            End::Lost => {}
        }
    }
    Err(vec![Fault::new(VERB, base.path.join(name), Cause::Moved)])
}

// === impl Walk ===

impl Walk<'_> {
    fn run(&mut self, name: &OsStr) -> End {
        self.enter(name.to_owned());
        while let Some(level) = self.levels.back_mut() {
            if let Err(held) = self.effects.go_on() {
                let path = self.path();
                self.faults.push(Fault::new(VERB, path, held));
                return End::Failed;
            }
            let next = level.todo.pop();
            match next {
                Some(child) => {
                    self.pending -= 1;
                    self.enter(child);
                }
                None => {
                    if self.leave().is_err() {
                        return End::Lost;
                    }
                }
            }
        }
        if self.faults.is_empty() { End::Gone } else { End::Failed }
    }

    /// Goes down into the directory `name` and removes what it can without going deeper.
    fn enter(&mut self, name: OsString) {
        if self.levels.len() >= DEPTH {
            return self.fail(&name, Cause::TooDeep);
        }
        let opened = openat2(self.parent(), &*name, DIRECTORY, Mode::empty(), WITHIN);
        let found = opened.and_then(|fd| identity(&fd).map(|identity| (fd, identity)));
        match found {
            Ok((_, found)) if found.place != self.base.place => self.fail(&name, Cause::OtherFileSystem),
            Ok((fd, identity)) => {
                // Of the levels above, only the nearest stay open.
                if let Some(far) = self.levels.len().checked_sub(KEPT) {
                    self.levels[far].fd = None;
                }
                let (todo, failed) = (Vec::new(), HashSet::new());
                self.levels.push_back(Level {
                    name,
                    fd: Some(fd),
                    identity,
                    todo,
                    more: false,
                    failed,
                    refills: 0,
                });
                self.sweep();
            }
            Err(Errno::NOENT) => {}
            // Swapped for a link or a file since it was listed: that goes like any other.
            Err(Errno::LOOP | Errno::NOTDIR) => match unlinkat(self.parent(), &*name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => self.fail(&name, errno.into()),
            },
            Err(errno) => self.fail(&name, errno.into()),
        }
    }

    /// Removes all entries of the deepest level that go at once, and notes the directories that are not empty.
    fn sweep(&mut self) {
        let Some(mut level) = self.levels.pop_back() else {
            return;
        };
        let mut faults = Vec::new();
        level.more = false;
        if let Some(fd) = &level.fd {
            let rewound = seek(fd, SeekFrom::Start(0));
            let mut entries = RawDir::new(fd, self.buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                // A flat directory may hold a million; the next step says what holds it back.
                if self.effects.go_on().is_err() {
                    level.more = true;
                    break;
                }
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(Errno::NOENT) => break,
                    Err(errno) => {
                        faults.push((OsString::new(), errno));
                        break;
                    }
                };
                let name = OsStr::from_bytes(entry.file_name().to_bytes());
                if is_dots(name.as_bytes()) || level.failed.contains(name) || rewound.is_err() {
                    continue;
                }
                match unlink(fd, name, entry.file_type()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::NOTEMPTY | Errno::EXIST) => {
                        // At least one, so that every look gets further.
                        if level.todo.is_empty() || self.pending < PENDING {
                            self.pending += 1;
                            level.todo.push(name.to_owned());
                        } else {
                            level.more = true;
                        }
                    }
                    Err(errno) => {
                        level.failed.insert(name.to_owned());
                        faults.push((name.to_owned(), errno));
                    }
                }
            }
        }
        self.levels.push_back(level);
        for (name, errno) in faults {
            self.tell(&name, errno.into());
        }
    }

    /// Removes the deepest level itself, which has been emptied, and goes up; or empties it once more.
    fn leave(&mut self) -> Result<(), Errno> {
        let Some(mut level) = self.levels.pop_back() else {
            return Ok(());
        };
        if let Some(parent) = self.levels.back_mut()
            && parent.fd.is_none()
        {
            parent.fd = Some(climb(&level, parent.identity)?);
        }
        match unlinkat(self.parent(), &*level.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.more || level.failed.is_empty() => {
                if !level.more {
                    level.refills += 1;
                }
                if level.refills > REFILLS {
                    self.fail(&level.name, Cause::KeepsFilling);
                } else {
                    self.levels.push_back(level);
                    self.sweep();
                }
            }
            // What is left in it has been told.
            Err(Errno::NOTEMPTY | Errno::EXIST) => self.skip(level.name),
            // Something else bears its name now; the next look at the parent finds what.
            Err(Errno::NOTDIR) => {}
            Err(errno) => self.fail(&level.name, errno.into()),
        }
        Ok(())
    }

    fn parent(&self) -> &OwnedFd {
        self.levels
            .back()
            .and_then(|level| level.fd.as_ref())
            .unwrap_or(&self.base.fd)
    }

    /// The entry `name` of the deepest level stays, for a reason to be told.
    fn fail(&mut self, name: &OsStr, cause: Cause) {
        self.tell(name, cause);
        self.skip(name.to_owned());
    }

    fn skip(&mut self, name: OsString) {
        if let Some(parent) = self.levels.back_mut() {
            parent.failed.insert(name);
        }
    }

    fn tell(&mut self, name: &OsStr, cause: Cause) {
        if self.faults.len() < TOLD {
            let path = if name.is_empty() {
                self.path()
            } else {
                self.path().join(name)
            };
            self.faults.push(Fault::new(VERB, path, cause));
        } else {
            self.untold += 1;
        }
    }

    fn path(&self) -> PathBuf {
        let mut path = self.base.path.clone();
        path.extend(self.levels.iter().map(|level| &level.name));
        path
    }

    fn told(&mut self) -> Vec<Fault> {
        let mut faults = std::mem::take(&mut self.faults);
        if self.untold > 0 {
            faults.push(Fault::new(VERB, &self.base.path, Cause::More(self.untold)));
        }
        faults
    }
}

/// From a level up to its parent, if that is still the one we came from.
fn climb(level: &Level, parent: Identity) -> Result<OwnedFd, Errno> {
    let fd = level.fd.as_ref().ok_or(Errno::STALE)?;
    let up = openat2(
        fd,
        "..",
        DIRECTORY,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV,
    )?;
    if identity(&up)? == parent {
        Ok(up)
    } else {
        Err(Errno::STALE)
    }
}

/// Removes one entry, whatever it turns out to be; the type in the listing may be unknown or out of date.
fn unlink(fd: &OwnedFd, name: &OsStr, listed: FileType) -> Result<(), Errno> {
    if listed == FileType::Directory {
        match unlinkat(fd, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTDIR) => unlinkat(fd, name, AtFlags::empty()),
            other => other,
        }
    } else {
        match unlinkat(fd, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => unlinkat(fd, name, AtFlags::REMOVEDIR),
            other => other,
        }
    }
}
