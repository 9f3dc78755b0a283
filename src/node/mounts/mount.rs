//! One line of mountinfo.
//!
//! Paths are bytes that need not be UTF-8, and the kernel escapes some of them. The `procfs` crate reads lines as UTF-8
//! and does not unescape, so this parser does both.

use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use rustix::fs::{FileType, major, minor, stat};

/// A mount in this mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's mount ID; may be reused after an unmount.
    pub id: u64,
    /// ID of the mount that this one is mounted on.
    pub parent: u64,
    /// Major and minor number, which identify the file system.
    pub device: (u32, u32),
    /// The directory or file of the file system that is mounted.
    pub root: PathBuf,
    /// `root` has been deleted.
    pub root_deleted: bool,
    /// The mount point.
    pub path: PathBuf,
    /// Type of file system, such as `tmpfs`.
    pub fs_type: OsString,
    /// The mounted source, such as a device.
    pub source: OsString,
    /// Options of the file system, comma-separated.
    pub super_options: OsString,
    /// Its peer group: mounts and unmounts propagate within it.
    pub shared: Option<u64>,
    /// The peer group from which it receives propagation.
    pub master: Option<u64>,
}

/// A directory or file that something is mounted on: the device of its file system, and the path in that.
pub type MountedOn = ((u32, u32), PathBuf);

/// A line of mountinfo that lacks a field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid mountinfo line: {0:?}")]
pub struct BadLine(OsString);

/// The mount point in this line of mountinfo.
pub(super) fn path_of(line: &[u8]) -> Result<Cow<'_, Path>, BadLine> {
    let field = line.split(|&byte| byte == b' ').nth(4);
    field
        .map(plain)
        .ok_or_else(|| BadLine(OsStr::from_bytes(line).to_owned()))
}

/// The unescaped path in a field.
fn plain(field: &[u8]) -> Cow<'_, Path> {
    if field.contains(&b'\\') {
        Cow::Owned(unescape(field).into())
    } else {
        Cow::Borrowed(Path::new(OsStr::from_bytes(field)))
    }
}

// === impl Mount ===

impl Mount {
    /// The directory or file that it is mounted on: its file system, and the path in it. `parent` is the mount with the ID
    /// [`Self::parent`]; `None` if it is another one.
    ///
    /// A mount table shows a mount once for each view of that directory, such as a bind mount of a directory above it.
    pub fn mounted_on(&self, parent: &Self) -> Option<MountedOn> {
        let below = self.path.strip_prefix(&parent.path).ok()?;
        (parent.id == self.parent).then(|| (parent.device, parent.root.join(below)))
    }

    /// The block device of its file system. btrfs has device numbers of its own: there the source counts. Of other file systems, such
    /// as tmpfs, the source is any text that its owner has chosen, also in a user namespace.
    pub fn disk(&self) -> Option<(u32, u32)> {
        if self.device.0 != 0 {
            return Some(self.device);
        }
        if self.fs_type != "btrfs" {
            return None;
        }
        let source = stat(Path::new(&self.source)).ok()?;
        let is_block = FileType::from_raw_mode(source.st_mode) == FileType::BlockDevice;
        is_block.then(|| (major(source.st_rdev), minor(source.st_rdev)))
    }

    /// Parses a line of mountinfo with this path.
    pub(super) fn parse(line: &[u8], path: PathBuf) -> Result<Self, BadLine> {
        Self::from_fields(line, path).ok_or_else(|| BadLine(OsStr::from_bytes(line).to_owned()))
    }

    fn from_fields(line: &[u8], path: PathBuf) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = number(fields.next())?;
        let parent = number(fields.next())?;
        let device = device(fields.next()?)?;
        let (root, root_deleted) = without_deleted(unescape(fields.next()?));
        // Path and options of the mount, then any number of optional fields up to a single dash.
        let (mut shared, mut master) = (None, None);
        let mut optional = fields.by_ref().skip(2);
        loop {
            let field = optional.next()?;
            if field == b"-" {
                break;
            }
            shared = shared.or_else(|| number(field.strip_prefix(b"shared:")));
            master = master.or_else(|| number(field.strip_prefix(b"master:")));
        }
        Some(Self {
            id,
            parent,
            device,
            root: root.into(),
            root_deleted,
            path,
            fs_type: unescape(fields.next()?),
            source: unescape(fields.next()?),
            super_options: unescape(fields.next().unwrap_or_default()),
            shared,
            master,
        })
    }
}

/// The root of a mount without the kernel's mark that it is deleted, and whether it was there.
fn without_deleted(root: OsString) -> (OsString, bool) {
    // No path within a file system contains two slashes, so this suffix is the kernel's.
    match root.as_bytes().strip_suffix(b"//deleted") {
        Some(path) => (OsStr::from_bytes(path).to_owned(), true),
        None => (root, false),
    }
}

fn number<T: std::str::FromStr>(field: Option<&[u8]>) -> Option<T> {
    std::str::from_utf8(field?).ok()?.parse().ok()
}

/// Major and minor number, in the kernel's notation.
fn device(field: &[u8]) -> Option<(u32, u32)> {
    let mut parts = field.splitn(2, |&byte| byte == b':');
    Some((number(parts.next())?, number(parts.next())?))
}

/// Decodes the kernel's octal escapes: a backslash and three octal digits for one byte.
pub(in crate::node) fn unescape(field: &[u8]) -> OsString {
    if !field.contains(&b'\\') {
        return OsStr::from_bytes(field).to_owned();
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}
