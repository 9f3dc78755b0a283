//! Removes a directory tree of any depth and width, with few descriptors and bounded memory.
//!
//! The walk opens each directory below its parent, without following links or crossing mounts. Only the deepest levels
//! stay open. Of each level above, 24 bytes are kept. The walk returns there by `..`, and continues only if that is the
//! same directory on the same mount. If it is not, or if even those bytes were too many, the walk restarts at the top.
//! A directory to which the walk returns is listed again: its names are not kept. A wide directory is listed and removed
//! in parts.

use std::{
    collections::VecDeque,
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
    fcntl::ResolveFlag,
    unistd::{UnlinkatFlags, Whence, lseek, unlinkat},
};
use rustix::fs::{FileType, RawDir};

use super::{Dir, DirId, OPEN_FLAGS, RESOLVE, is_dots, location, open, subvolume, why_not_removed};
use crate::node::{
    checkpoint,
    effects::{Effects, Outcome},
    fault::{Cause, Fault, errno_of},
};

/// Maximum number of open levels. Each has a descriptor.
pub(super) const MAX_OPEN: usize = 16;
/// Maximum number of levels above, to which the walk can return.
const MAX_CLOSED: usize = 1 << 16;
/// Maximum number of directories that the walk knows not to enter again.
const MAX_FAILED: usize = 1 << 16;
/// About the maximum number of subdirectories listed at a time; the entries of one more buffer may exceed it.
pub(super) const MAX_LISTED: usize = 128;
const BUFFER: usize = 8 * 1024;
/// How often a directory that is filled again is emptied.
const MAX_REFILLS: u32 = 8;
/// Number of faults reported one by one.
const MAX_FAULTS: usize = 32;
/// Resolve flags for `..`.
const RESOLVE_PARENT: ResolveFlag = ResolveFlag::RESOLVE_NO_SYMLINKS.union(ResolveFlag::RESOLVE_NO_XDEV);

const VERB: &str = "remove";

struct Walk<'a> {
    base: &'a Dir,
    effects: &'a Effects,
    /// Name of the topmost level.
    name: &'a OsStr,
    /// Levels that are not open, topmost first.
    closed: VecDeque<Level>,
    /// There were too many: the topmost ones are not in `closed`.
    is_cut: bool,
    /// The deepest levels.
    open: VecDeque<OpenLevel>,
    /// Why the walk cannot return to a level.
    lost: Option<Cause>,
    /// Directories that cannot be removed, in the order in which the walk left them. Those within another one are dropped.
    failed: Vec<DirId>,
    /// The first ones, which are from before a restart.
    failed_before_restart: usize,
    /// Number of removed entries and of directories that cannot be removed.
    changes: u64,
    faults: Vec<Fault>,
    unreported: usize,
    buffer: Vec<u8>,
}

/// A directory on the way from the top. There may be many thousands.
#[derive(Clone, Copy)]
struct Level {
    id: DirId,
    /// Number of failed directories when it was entered.
    failed_before: u32,
    /// Something in it could not be removed, and this is reported.
    has_failed: bool,
}

struct OpenLevel {
    level: Level,
    fd: OwnedFd,
    /// Its name in its parent; empty if unknown.
    name: OsString,
    /// Listed subdirectories that are not empty.
    todo: Vec<OsString>,
    /// The listing is complete.
    is_listed: bool,
    /// The walk has returned to it by `..`.
    is_reopened: bool,
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
        name,
        closed: VecDeque::new(),
        is_cut: false,
        open: VecDeque::new(),
        lost: None,
        failed: Vec::new(),
        failed_before_restart: 0,
        changes: 0,
        faults: Vec::new(),
        unreported: 0,
        buffer: Vec::with_capacity(BUFFER),
    };
    walk.run();
    walk.finish()
}

// === impl Walk ===

impl Walk<'_> {
    /// Walks from the top until nothing is left to do. Restarts as long as that removes something.
    fn run(&mut self) {
        loop {
            let before = self.changes;
            self.walk_once();
            let Some(cause) = self.lost.take() else { return };
            if self.changes == before {
                return self.report(self.name, cause);
            }
            self.closed.clear();
            self.is_cut = false;
            self.failed_before_restart = self.failed.len();
        }
    }

    fn walk_once(&mut self) {
        self.descend(self.name.to_owned());
        while let Some(deepest) = self.open.back_mut() {
            if let Err(blocked) = self.effects.check() {
                let path = self.path();
                self.faults.push(Fault::new(VERB, path, blocked));
                return;
            }
            match deepest.todo.pop() {
                Some(child) => self.descend(child),
                None if deepest.is_listed => self.ascend(),
                None => self.remove_entries(),
            }
        }
    }

    /// Descends into the directory `name` of the deepest level.
    fn descend(&mut self, name: OsString) {
        let opened = open(self.parent(), &name, OPEN_FLAGS, RESOLVE);
        match opened.and_then(|fd| location(&fd).map(|found| (fd, found))) {
            Ok((_, found)) if !found.is_on_mount_of(self.base.location) => self.report(&name, Cause::OtherFileSystem),
            Ok((_, found)) if self.has_failed(found.id) => self.fail_deepest(),
            Ok((fd, found)) => {
                if found.id.device != self.parent_id().device {
                    subvolume::make_writable(&fd);
                }
                let failed_before = u32::try_from(self.failed.len()).unwrap_or(u32::MAX);
                let level = Level {
                    id: found.id,
                    failed_before,
                    has_failed: false,
                };
                self.close_topmost();
                self.open.push_back(OpenLevel::new(level, fd, name));
            }
            Err(Errno::ENOENT) => {}
            // It was replaced by a link or a file since the listing.
            Err(Errno::ELOOP | Errno::ENOTDIR) => match unlinkat(self.parent(), &*name, UnlinkatFlags::NoRemoveDir) {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => self.report_errno(&name, errno),
            },
            Err(errno) => self.report_errno(&name, errno),
        }
    }

    /// Closes the topmost open level if there are too many.
    fn close_topmost(&mut self) {
        if self.open.len() < MAX_OPEN {
            return;
        }
        self.closed.extend(self.open.pop_front().map(|it| it.level));
        if self.closed.len() > MAX_CLOSED {
            self.closed.pop_front();
            self.is_cut = true;
        }
    }

    /// Removes all entries of the deepest level that can be removed at once, and collects non-empty directories, up to
    /// the listing's limit.
    fn remove_entries(&mut self) {
        let Some(deepest) = self.open.back_mut() else { return };
        let mut failures = Vec::new();
        let mut entries = RawDir::new(&deepest.fd, self.buffer.spare_capacity_mut());
        loop {
            match entries.next() {
                None | Some(Err(rustix::io::Errno::NOENT)) => {
                    deepest.is_listed = true;
                    break;
                }
                Some(Err(errno)) => {
                    deepest.is_listed = true;
                    failures.push((OsString::new(), errno_of(errno)));
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
                        match unlink(&deepest.fd, name, entry.file_type()) {
                            Ok(()) => self.changes += 1,
                            Err(Errno::ENOENT) => {}
                            Err(Errno::ENOTEMPTY | Errno::EEXIST) => deepest.todo.push(name.to_owned()),
                            Err(errno) => failures.push((name.to_owned(), errno)),
                        }
                    }
                }
            }
            if entries.is_buffer_empty() && deepest.todo.len().max(failures.len()) >= MAX_LISTED {
                break;
            }
        }
        for (name, errno) in failures {
            self.report_errno(&name, errno);
        }
    }

    /// Removes the deepest level, which has been emptied, and ascends; or empties it again.
    fn ascend(&mut self) {
        let Some(mut left) = self.open.pop_back() else { return };
        if self.open.is_empty() && (self.is_cut || !self.closed.is_empty()) {
            return self.return_to_parent(&left);
        }
        match unlinkat(self.parent(), &*left.name, UnlinkatFlags::RemoveDir) {
            Ok(()) => self.changes += 1,
            Err(Errno::ENOENT) => {}
            Err(Errno::ENOTEMPTY | Errno::EEXIST) if !left.level.has_failed => {
                left.refills += 1;
                if left.refills > MAX_REFILLS || lseek(&left.fd, 0, Whence::SeekSet).is_err() {
                    self.remember_failed(left.level);
                    self.report(&left.name, Cause::KeepsFilling);
                } else {
                    left.is_listed = false;
                    self.open.push_back(left);
                }
            }
            // What is left in it has been reported.
            Err(Errno::ENOTEMPTY | Errno::EEXIST) => {
                self.remember_failed(left.level);
                self.fail_deepest();
            }
            // Another file has its name now. The next listing of the parent shows it.
            Err(Errno::ENOTDIR) => {}
            Err(errno) => {
                self.remember_failed(left.level);
                self.report_errno(&left.name, errno);
            }
        }
    }

    /// Opens the parent of the level that the walk has left, whose listing then removes that level.
    fn return_to_parent(&mut self, left: &OpenLevel) {
        if left.level.has_failed {
            self.remember_failed(left.level);
        }
        let parent = self.closed.pop_back();
        let opened = open(&left.fd, OsStr::new(".."), OPEN_FLAGS, RESOLVE_PARENT);
        let found = opened.and_then(|fd| location(&fd).map(|found| (fd, found)));
        match (parent, found) {
            (Some(parent), Ok((fd, found))) if found.is_on_mount_of(self.base.location) && found.id == parent.id => {
                let is_top = self.closed.is_empty() && !self.is_cut;
                let name = if is_top { self.name } else { OsStr::new("") };
                let mut reopened = OpenLevel::new(parent, fd, name.to_owned());
                reopened.is_reopened = true;
                self.open.push_back(reopened);
            }
            (_, Err(errno)) if errno != Errno::EXDEV => self.lost = Some(errno.into()),
            (_, _moved_or_cut) => self.lost = Some(Cause::KeepsFilling),
        }
    }

    /// The directory in which the deepest level, or the next one, has its name.
    fn parent(&self) -> &OwnedFd {
        self.open.back().map_or(&self.base.fd, |deepest| &deepest.fd)
    }

    fn parent_id(&self) -> DirId {
        self.open
            .back()
            .map_or(self.base.location.id, |deepest| deepest.level.id)
    }

    /// Whether the walk was in this subdirectory of the deepest level before, and cannot remove it.
    fn has_failed(&self, id: DirId) -> bool {
        let reopened = self.open.back().filter(|deepest| deepest.is_reopened);
        let listed_before = match reopened {
            Some(reopened) => self
                .failed
                .get(reopened.level.failed_before as usize..)
                .unwrap_or_default(),
            None => &[],
        };
        let before_restart = &self.failed[..self.failed_before_restart];
        let may_be_listed_again = reopened.is_some() || self.failed_before_restart > 0;
        (may_be_listed_again && self.failed.len() >= MAX_FAILED)
            || listed_before.contains(&id)
            || before_restart.contains(&id)
    }

    /// Remembers a directory that cannot be removed, instead of those in it.
    fn remember_failed(&mut self, level: Level) {
        self.changes += 1;
        self.failed.truncate(level.failed_before as usize);
        if self.failed.len() < MAX_FAILED {
            self.failed.push(level.id);
        }
    }

    /// Something in the deepest level cannot be removed, and this is reported.
    fn fail_deepest(&mut self) {
        if let Some(deepest) = self.open.back_mut() {
            deepest.level.has_failed = true;
        }
    }

    fn report_errno(&mut self, name: &OsStr, errno: Errno) {
        self.report(name, why_not_removed(self.parent(), &self.path(), name, errno));
    }

    /// Reports that the entry `name` of the deepest level cannot be removed.
    fn report(&mut self, name: &OsStr, cause: Cause) {
        self.fail_deepest();
        if self.faults.len() >= MAX_FAULTS {
            // The entries of a level that is listed again were counted before.
            self.unreported += usize::from(!self.open.back().is_some_and(|deepest| deepest.is_reopened));
            return;
        }
        let mut path = self.path();
        if !name.is_empty() {
            path.push(name);
        }
        let fault = Fault::new(VERB, path, cause);
        if !self.faults.contains(&fault) {
            self.faults.push(fault);
        }
    }

    /// Path of the deepest level.
    fn path(&self) -> PathBuf {
        let mut path = self.base.path.clone();
        if self.closed.is_empty() && !self.is_cut {
            path.extend(self.open.iter().map(|level| &level.name));
            return path;
        }
        // The kernel knows the names of closed levels, unless the path is longer than a page.
        let of_fd = Path::new("/proc/thread-self/fd").join(self.parent().as_raw_fd().to_string());
        match fs::read_link(of_fd) {
            Ok(current) if current.starts_with(&path) => current,
            _ => {
                path.extend([self.name, OsStr::new(" … ")]);
                path.extend(self.open.iter().map(|level| &level.name));
                path
            }
        }
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

// === impl OpenLevel ===

impl OpenLevel {
    fn new(level: Level, fd: OwnedFd, name: OsString) -> Self {
        Self {
            level,
            fd,
            name,
            todo: Vec::new(),
            is_listed: false,
            is_reopened: false,
            refills: 0,
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
