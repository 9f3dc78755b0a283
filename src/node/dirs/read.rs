//! Reads small files and entries of a directory with untrusted content.

use std::{ffi::OsStr, fs::File, io::Read as _};

use nix::{errno::Errno, fcntl::OFlag};
use rustix::fs::{AtFlags, FileType, StatxFlags, statx};

use super::{Dir, RESOLVE, open};
use crate::{
    node::fault::{Cause, Fault, errno, errno_of},
    words::some_of,
};

/// Flags for reading a file. Opening a FIFO without a writer must not block.
const OPEN_FLAGS: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_CLOEXEC)
    .union(OFlag::O_NONBLOCK)
    .union(OFlag::O_NOCTTY);

/// Metadata of an entry. Links are not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryInfo {
    /// Its file type.
    pub kind: FileType,
    /// Last modification, in seconds and nanoseconds since 1970.
    pub modified: (i64, u32),
    /// Major and minor number, if it is a block device.
    pub block_device: Option<(u32, u32)>,
}

// === impl Dir ===

impl Dir {
    /// Content of the file `name`, which must be a regular file of at most `limit` bytes; `None` if it does not exist.
    pub fn read_file(&self, name: &OsStr, limit: u64) -> Result<Option<Vec<u8>>, Fault> {
        const VERB: &str = "read";
        self.check(name, VERB)?;
        let fault = |cause: Cause| Fault::new(VERB, self.path.join(name), cause);
        let file = match open(&self.fd, name, OPEN_FLAGS, RESOLVE) {
            Ok(fd) => File::from(fd),
            Err(Errno::ENOENT | Errno::ENAMETOOLONG) => return Ok(None),
            // A link or a socket.
            Err(Errno::ELOOP | Errno::ENXIO) => return Err(fault(Cause::NotRegularFile)),
            Err(errno) => return Err(fault(errno.into())),
        };
        let found = file.metadata().map_err(|error| fault(errno(&error).into()))?;
        if !found.is_file() {
            return Err(fault(Cause::NotRegularFile));
        }
        let mut bytes = Vec::new();
        match file.take(limit.saturating_add(1)).read_to_end(&mut bytes) {
            Ok(_) if bytes.len() as u64 > limit => Err(fault(Cause::TooLarge(limit))),
            Ok(_) => Ok(Some(bytes)),
            Err(error) => Err(fault(errno(&error).into())),
        }
    }

    /// Names the files in this directory, which is removed only if it is empty, such as the mount point of a volume. They may be data that
    /// was written while the volume was not mounted. `None` if it is empty, or cannot be read.
    pub fn left_files(&self) -> Option<String> {
        let mut names = self.names().ok()?;
        names.sort();
        let left = some_of(names.iter().map(|name| format!("{name:?}")));
        let dir = &self.path;
        (!names.is_empty()).then(|| {
            format!(
                "nothing is mounted there, and it is not empty: {left}; these files may have been written while the volume was not \
                 mounted, and stay: move them away, such as by: mv {dir:?} /var/tmp/"
            )
        })
    }

    /// Metadata of the entry `name`; `None` if it does not exist.
    pub fn stat(&self, name: &OsStr) -> Result<Option<EntryInfo>, Fault> {
        const VERB: &str = "stat";
        self.check(name, VERB)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
        match statx(&self.fd, name, flags, StatxFlags::BASIC_STATS) {
            Ok(found) => Ok(Some(EntryInfo {
                kind: FileType::from_raw_mode(found.stx_mode.into()),
                block_device: (FileType::from_raw_mode(found.stx_mode.into()) == FileType::BlockDevice)
                    .then_some((found.stx_rdev_major, found.stx_rdev_minor)),
                modified: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            })),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NAMETOOLONG) => Ok(None),
            Err(errno) => Err(Fault::new(VERB, self.path.join(name), errno_of(errno))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{fs::symlink, net::UnixListener},
    };

    use nix::{sys::stat::Mode, unistd::mkfifo};

    use super::*;

    #[test]
    fn only_regular_files_within_the_limit_are_read_without_blocking() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().canonicalize().unwrap();
        let dir = Dir::open(&path).unwrap().unwrap();
        let read = |name: &str| dir.read_file(name.as_ref(), 8).map_err(|fault| fault.cause);
        fs::write(path.join("full"), "12345678").unwrap();
        fs::write(path.join("over"), "123456789").unwrap();
        fs::write(path.join("empty"), "").unwrap();
        fs::create_dir(path.join("directory")).unwrap();
        symlink("full", path.join("link")).unwrap();
        mkfifo(&path.join("pipe"), Mode::S_IRUSR).unwrap();
        let _listener = UnixListener::bind(path.join("socket")).unwrap();
        assert_eq!(read("full"), Ok(Some(b"12345678".to_vec())));
        assert_eq!(read("empty"), Ok(Some(Vec::new())));
        assert_eq!(read("absent"), Ok(None));
        assert_eq!(read("over"), Err(Cause::TooLarge(8)));
        for name in ["directory", "link", "pipe", "socket"] {
            assert_eq!(read(name), Err(Cause::NotRegularFile), "{name}");
        }
        for name in ["", ".", "..", "directory/x", "/etc/passwd"] {
            assert_eq!(read(name), Err(Cause::BadName(name.into())));
        }
    }
}
