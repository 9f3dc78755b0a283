//! Unmounts that hang, and mounts with an unresponsive server.

use std::{
    ffi::{OsStr, OsString},
    fmt, fs,
    os::unix::ffi::OsStrExt,
    path::Path,
};

use jiff::Timestamp;
use nix::errno::Errno;

use super::{Mount, MountTable};
use crate::model::foreign::ForeignText;

/// Errors of the kernel for a server that does not respond.
const DEAD_SERVER: [Errno; 4] = [Errno::ENOTCONN, Errno::ESTALE, Errno::EIO, Errno::EHOSTDOWN];
/// The mounts of the calling thread, which are those that it can unmount.
const MOUNTINFO: &str = "/proc/thread-self/mountinfo";

/// An unmount that has not returned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Hanging {
    /// When it started.
    pub since: Timestamp,
    /// The mount, if known.
    pub what: Option<Mounted>,
}

/// File system type and source of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// Type of file system, such as `nfs4`.
    pub fs_type: OsString,
    /// The mounted source, such as a server and its directory.
    pub source: OsString,
}

// === impl Mounted ===

impl Mounted {
    /// The topmost mount on `path`, from the text of the mount table: accessing the path might hang.
    pub fn topmost_on(path: &Path) -> Option<Self> {
        let table = MountTable::parse(&fs::read(MOUNTINFO).ok()?, path).ok()?;
        table.mounts_on(path).first().map(Self::from)
    }

    /// Whether a server outside of the kernel answers for the file system.
    pub fn has_server(&self) -> bool {
        let name = self.fs_type.as_bytes();
        matches!(
            name,
            b"nfs" | b"nfs4" | b"cifs" | b"smb3" | b"ceph" | b"9p" | b"fuse" | b"fuseblk"
        ) || name.starts_with(b"fuse.")
    }
}

impl From<&Mount> for Mounted {
    fn from(mount: &Mount) -> Self {
        Self {
            fs_type: mount.fs_type.clone(),
            source: mount.source.clone(),
        }
    }
}

impl fmt::Display for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |name: &OsStr| ForeignText::from_bytes(name.as_encoded_bytes());
        write!(f, "{} of {}", name(&self.fs_type), name(&self.source))
    }
}

/// Whether this error means that the server does not respond.
pub(super) fn is_server_dead(errno: Errno) -> bool {
    DEAD_SERVER.contains(&errno)
}

// === impl Hanging ===

impl fmt::Display for Hanging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the call has hung in the kernel since {}", self.since)?;
        let Some(what) = &self.what else {
            return f.write_str(
                "; the server of this mount or of one above it may be down: the call returns when the server answers again",
            );
        };
        write!(f, " ({what}); ")?;
        if what.has_server() {
            f.write_str(
                "the server may be down: the call returns when the server answers again, or with --force-unmount dead-server",
            )
        } else {
            f.write_str("its device may be slow or broken, or the server of a mount above it down: the call returns when that answers")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(fs_type: &str, source: &str) -> Mounted {
        Mounted {
            fs_type: fs_type.into(),
            source: source.into(),
        }
    }

    #[test]
    fn only_mounts_with_a_server_are_forced() {
        let with = [
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "ceph",
            "fuse",
            "fuse.sshfs",
            "fuseblk",
            "9p",
        ];
        for name in with {
            assert!(mounted(name, "").has_server(), "{name}");
        }
        for name in ["tmpfs", "ext4", "xfs", "overlay", "fusectl", "nfsd", "proc", ""] {
            assert!(!mounted(name, "").has_server(), "{name}");
        }
    }

    #[test]
    fn hang_is_shown_with_server_and_remedy_on_one_line() {
        let hanging = |what| Hanging {
            since: "2026-03-01T10:00:00Z".parse().unwrap(),
            what,
        };
        assert_eq!(
            hanging(Some(mounted("nfs4", "nas:/export\nforged"))).to_string(),
            "the call has hung in the kernel since 2026-03-01T10:00:00Z (nfs4 of nas:/export\\nforged); the server may be \
             down: the call returns when the server answers again, or with --force-unmount dead-server"
        );
        assert!(
            !hanging(Some(mounted("ext4", "/dev/sda")))
                .to_string()
                .contains("--force")
        );
        assert!(
            hanging(None)
                .to_string()
                .contains("2026-03-01T10:00:00Z; the server of this mount")
        );
    }

    #[test]
    fn mounted_source_is_read_from_the_table() {
        assert_eq!(Mounted::topmost_on(Path::new("/proc")).unwrap().fs_type, "proc");
        assert_eq!(Mounted::topmost_on(Path::new("/proc/self/no-mount")), None);
    }
}
