//! The order of paths in the mount table.

use std::{
    cmp::Ordering,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Without redundant components, as the kernel writes paths.
pub(super) fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// What a path without redundant components is compared by: bytes are ten times faster than components, and a node has thousands of
/// paths.
pub(super) fn key(path: &Path) -> &[u8] {
    let path = path.as_os_str().as_bytes();
    path.strip_suffix(b"/").unwrap_or(path)
}

/// Orders paths so that those at or below a path are adjacent.
pub(super) fn order(one: &[u8], other: &[u8]) -> Ordering {
    let rank = |byte: u8| if byte == b'/' { 0 } else { byte };
    match one.iter().zip(other).find(|(one, other)| one != other) {
        Some((&one, &other)) => rank(one).cmp(&rank(other)),
        None => one.len().cmp(&other.len()),
    }
}

/// Whether a path with this key is at or below `parent`.
pub(super) fn is_within(path: &[u8], parent: &[u8]) -> bool {
    let rest = path.strip_prefix(parent);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}
