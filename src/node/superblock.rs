//! File systems that are active without an entry in any mount table. A detached mount (`umount -l`, `MNT_DETACH`) stays active
//! while a file on it is open, and the kernel still writes to its device.
//!
//! The kernel lists the active ones in `/sys/fs`: no device needs to be opened, which may not be allowed, may hang, and would
//! disturb others.

use std::{
    ffi::OsStr,
    fs, io,
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
    /// The entry that lists it in `/sys/fs`.
    #[serde(default, rename = "entry")]
    listed: Option<PathBuf>,
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
        for entry in name.iter().flat_map(|name| entries(sys, name)) {
            match fs::symlink_metadata(&entry) {
                Ok(_) => listed = Some(entry),
                Err(error) if matches!(errno(&error), Errno::ENOENT | Errno::ENOTDIR) => {}
                Err(error) => return Err(Fault::new("read", entry, errno(&error))),
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
        self.listed.as_deref()
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

    /// Whether `now`, read later from the same device number, is of another disk. A number is given away only when nothing uses the
    /// disk any more. False if the kernel does not show it.
    pub fn is_replaced(&self, now: &Self) -> bool {
        self.disk.zip(now.disk).is_some_and(|(then, now)| then != now)
    }
}

/// The entries that may list the file system of the device with this name. That of btrfs is named by the file system, and has one for
/// each of its devices.
fn entries(sys: &Path, name: &OsStr) -> Vec<PathBuf> {
    let all = sys.join("fs");
    let btrfs = fs::read_dir(all.join("btrfs")).into_iter().flatten().flatten();
    let btrfs = btrfs.map(|one| one.path().join("devices").join(name));
    let others = BY_DEVICE.iter().map(|kind| all.join(kind).join(name));
    others.chain(btrfs).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn active_file_system_is_found_by_the_number_of_its_device() {
        let sys = tempfile::tempdir().unwrap();
        let block = sys.path().join("block");
        for dir in [
            "block",
            "dev/block",
            "fs/ext4/sdb",
            "fs/xfs/dm-3",
            "fs/xfs/stats",
            "fs/btrfs/features",
            "fs/btrfs/0b9a/devices/sdd",
        ] {
            fs::create_dir_all(sys.path().join(dir)).unwrap();
        }
        for (number, device) in [("8:16", "sdb"), ("8:32", "sdc"), ("253:3", "dm-3"), ("8:64", "sdd")] {
            let link = sys.path().join("dev/block").join(number);
            symlink(format!("../../devices/virtual/block/{device}"), link).unwrap();
        }
        let on = |device| FileSystem::on(device, &block).unwrap();
        assert_eq!(on((8, 16)).active(), Some(sys.path().join("fs/ext4/sdb").as_path()));
        assert_eq!(on((253, 3)).active(), Some(sys.path().join("fs/xfs/dm-3").as_path()));
        let btrfs = sys.path().join("fs/btrfs/0b9a/devices/sdd");
        assert_eq!(on((8, 64)).active(), Some(btrfs.as_path()));
        assert_eq!(on((8, 32)).active(), None, "a device without a file system");
        assert_eq!(on((8, 48)).active(), None, "a detached device");
    }

    #[test]
    fn file_system_is_replaced_once_another_disk_has_its_number() {
        let state = |disk: Option<u64>, listed: Option<&str>| FileSystem {
            device: (8, 17),
            disk,
            listed: listed.map(PathBuf::from),
        };
        let listed = Some("/sys/fs/ext4/sdb1");
        // A raw block volume has no file system of its own.
        for then in [state(Some(5), listed), state(Some(5), None)] {
            for (now, is_replaced) in [
                (state(Some(6), listed), true),
                (state(Some(6), None), true),
                (state(Some(5), listed), false),
                (state(None, listed), false),
            ] {
                assert_eq!(then.is_replaced(&now), is_replaced, "{now:?}");
            }
        }
        assert!(!state(None, listed).is_replaced(&state(Some(6), listed)));
    }
}
