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

/// When a socket was created, and its path.
type Socket = ((i64, u32), PathBuf);

/// All sockets at and below `dir`, except hidden ones, and the faults of entries that cannot be read. Links are not followed.
pub(super) fn sockets(dir: &Path) -> Result<(Vec<Socket>, Vec<Fault>), Fault> {
    let (mut sockets, mut faults) = (Vec::new(), Vec::new());
    if let Some(dir) = Dir::open(dir)? {
        enter(&dir, MAX_DEPTH, &mut sockets, &mut faults)?;
    }
    Ok((sockets, faults))
}

fn enter(dir: &Dir, depth: usize, sockets: &mut Vec<Socket>, faults: &mut Vec<Fault>) -> Result<(), Fault> {
    for name in dir.names()?.iter().filter(|name| !name.as_bytes().starts_with(b".")) {
        let path = dir.path().join(name);
        let read = dir.stat(name).and_then(|seen| match seen {
            Some(seen) if seen.kind == FileType::Socket => {
                sockets.push((seen.modified, path));
                Ok(())
            }
            Some(seen) if seen.kind == FileType::Directory && depth == 0 => {
                Err(Fault::new("read", path, Cause::TooDeep))
            }
            Some(seen) if seen.kind == FileType::Directory => match dir.open_below(name)? {
                Some(inner) => enter(&inner, depth - 1, sockets, faults),
                None => Ok(()),
            },
            _ => Ok(()),
        });
        faults.extend(read.err());
    }
    Ok(())
}
