//! Finds sockets below a directory.

use std::{
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::FileType;

use crate::node::{
    dirs::Dir,
    fault::{Cause, Fault},
};

/// Maximum nesting. Drivers use one or two levels.
const MAX_DEPTH: usize = 8;
/// Maximum number of entries. A node has a few dozen drivers at most.
const MAX_ENTRIES: usize = 1024;

/// A socket in the registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Socket {
    pub(super) path: PathBuf,
    /// When it was created.
    pub(super) since: (i64, u32),
    /// With these values, a recreated socket is a different one.
    pub(super) inode: u64,
    pub(super) changed: (i64, u32),
}

struct Walk {
    sockets: Vec<Socket>,
    faults: Vec<Fault>,
    left: usize,
}

/// All sockets at and below `dir`, except hidden ones. Links are not followed. Unreadable entries are reported as faults.
pub(super) fn sockets(dir: &Path) -> Result<(Vec<Socket>, Vec<Fault>), Fault> {
    let mut walk = Walk {
        sockets: Vec::new(),
        faults: Vec::new(),
        left: MAX_ENTRIES,
    };
    if let Some(dir) = Dir::open(dir)? {
        walk.enter(&dir, MAX_DEPTH)?;
    }
    Ok((walk.sockets, walk.faults))
}

// === impl Walk ===

impl Walk {
    fn enter(&mut self, dir: &Dir, depth: usize) -> Result<(), Fault> {
        let names = dir.names()?;
        for (at, name) in names
            .iter()
            .enumerate()
            .filter(|(_, name)| !name.as_bytes().starts_with(b"."))
        {
            if self.left == 0 {
                self.faults
                    .push(Fault::new("read", dir.path(), Cause::More(names.len() - at)));
                break;
            }
            self.left -= 1;
            let path = dir.path().join(name);
            match dir.stat(name) {
                Ok(Some(seen)) if seen.kind == FileType::Socket => self.sockets.push(Socket {
                    path,
                    since: seen.modified,
                    inode: seen.inode,
                    changed: seen.changed,
                }),
                Ok(Some(seen)) if seen.kind == FileType::Directory => {
                    let inner = match depth {
                        0 => Err(Fault::new("read", path, Cause::TooDeep)),
                        _ => dir.open_below(name),
                    };
                    let read = inner.and_then(|inner| inner.map_or(Ok(()), |inner| self.enter(&inner, depth - 1)));
                    self.faults.extend(read.err());
                }
                Ok(_) => {}
                Err(fault) => self.faults.push(fault),
            }
        }
        Ok(())
    }
}
