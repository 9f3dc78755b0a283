//! File systems that are active without an entry in any mount table. A detached mount (`umount -l`, `MNT_DETACH`) stays active
//! while a file on it is open, and the kernel still writes to its device.
//!
//! The kernel lists the active ones in `/sys/fs`: no device needs to be opened, which may not be allowed, may hang, and would
//! disturb others.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::fault::{Fault, errno};

/// File systems of devices with a directory for each device. That of ext4 has ext2 and ext3 as well.
const BY_DEVICE: [&str; 3] = ["ext4", "xfs", "f2fs"];

/// The file system on a device at one moment. A device number is given to the next disk once a disk is detached, so that the
/// number alone does not say whose file system is active on it later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystem {
    /// Major and minor number.
    pub device: (u32, u32),
    /// The kernel's number for this disk, which no other disk gets: `diskseq` (Documentation/ABI/testing/sysfs-block), since
    /// Linux 5.15.
    disk: Option<u64>,
    /// The directory that lists it in `/sys/fs`, with its inode number. A file system that is mounted later gets another one.
    listed: Option<(PathBuf, u64)>,
}

// === impl FileSystem ===

impl FileSystem {
    /// The file system that is active on this device now. `sys_block` is `/sys/block`.
    ///
    /// # Errors
    /// If the kernel's lists cannot be read. A detached device is not an error.
    pub fn on(device: (u32, u32), sys_block: &Path) -> Result<Self, Fault> {
        let sys = sys_block.parent().unwrap_or(sys_block);
        let link = sys.join(format!("dev/block/{}:{}", device.0, device.1));
        let name = match fs::read_link(&link) {
            Ok(target) => target.file_name().map(ToOwned::to_owned),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(Fault::new("read", link, errno(&error))),
        };
        let mut listed = None;
        for kind in BY_DEVICE {
            let Some(name) = &name else { break };
            let dir = sys.join("fs").join(kind).join(name);
            match fs::symlink_metadata(&dir) {
                Ok(metadata) => listed = Some((dir, metadata.ino())),
                Err(error) if matches!(errno(&error), Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => return Err(Fault::new("look at", dir, errno(&error))),
            }
        }
        // A partition's number is that of its disk, one directory up.
        let disk = ["diskseq", "../diskseq"]
            .iter()
            .find_map(|file| fs::read_to_string(link.join(file)).ok()?.trim().parse().ok());
        Ok(Self { device, disk, listed })
    }

    /// The directory in `/sys/fs` that shows it as active. `None` where the kernel does not list its kind.
    pub fn active(&self) -> Option<&Path> {
        self.listed.as_ref().map(|(dir, _)| dir.as_path())
    }

    /// Completed writes to its device, and requests in flight. `None` if the device is detached.
    ///
    /// A file system leaves `/sys/fs` before its last writes (ext4: `ext4_put_super`).
    pub fn writes(&self, sys_block: &Path) -> Option<(u64, u64)> {
        let sys = sys_block.parent().unwrap_or(sys_block);
        let (major, minor) = self.device;
        let text = fs::read_to_string(sys.join(format!("dev/block/{major}:{minor}/stat"))).ok()?;
        // Documentation/block/stat.rst
        let field = |nth| text.split_whitespace().nth(nth)?.parse().ok();
        Some((field(4)?, field(8)?))
    }

    /// Whether `now`, read later from the same device number, shows that this file system is no longer active: another disk has
    /// the number, and the kernel lists another file system or none. False if the kernel does not show it.
    pub fn is_replaced(&self, now: &Self) -> bool {
        let other_disk = self.disk.zip(now.disk).is_some_and(|(then, now)| then != now);
        other_disk && self.listed.is_some() && self.listed != now.listed
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn active_file_system_is_found_by_the_number_of_its_device() {
        let sys = tempfile::tempdir().unwrap();
        let block = sys.path().join("block");
        for dir in ["block", "dev/block", "fs/ext4/sdb", "fs/xfs/dm-3", "fs/xfs/stats"] {
            fs::create_dir_all(sys.path().join(dir)).unwrap();
        }
        for (number, device) in [("8:16", "sdb"), ("8:32", "sdc"), ("253:3", "dm-3")] {
            let link = sys.path().join("dev/block").join(number);
            symlink(format!("../../devices/virtual/block/{device}"), link).unwrap();
        }
        let on = |device| FileSystem::on(device, &block).unwrap();
        assert_eq!(on((8, 16)).active(), Some(sys.path().join("fs/ext4/sdb").as_path()));
        assert_eq!(on((253, 3)).active(), Some(sys.path().join("fs/xfs/dm-3").as_path()));
        assert_eq!(on((8, 32)).active(), None, "a device without a file system");
        assert_eq!(on((8, 48)).active(), None, "a detached device");
    }

    #[test]
    fn file_system_is_replaced_once_both_its_disk_and_its_entry_are_others() {
        let state = |disk: Option<u64>, inode: Option<u64>| FileSystem {
            device: (8, 17),
            disk,
            listed: inode.map(|inode| ("/sys/fs/ext4/sdb1".into(), inode)),
        };
        let then = state(Some(5), Some(100));
        for (now, is_replaced) in [
            (state(Some(6), Some(101)), true),
            (state(Some(6), None), true),
            (state(Some(5), Some(101)), false),
            (state(Some(6), Some(100)), false),
            (state(None, Some(101)), false),
        ] {
            assert_eq!(then.is_replaced(&now), is_replaced, "{now:?}");
        }
        for unknown in [state(None, Some(100)), state(Some(5), None)] {
            assert!(!unknown.is_replaced(&state(Some(6), Some(101))), "{unknown:?}");
        }
    }
}
