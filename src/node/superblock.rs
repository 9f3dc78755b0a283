//! File systems that are active without an entry in any mount table. A detached mount (`umount -l`, `MNT_DETACH`) stays active
//! while a file on it is open, and the kernel still writes to its device.
//!
//! The kernel lists the active ones in `/sys/fs`: no device needs to be opened, which may not be allowed, may hang, and would
//! disturb others.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use super::fault::{Fault, errno};

/// File systems of devices with a directory for each device. That of ext4 has ext2 and ext3 as well.
const BY_DEVICE: [&str; 3] = ["ext4", "xfs", "f2fs"];

/// Where the kernel lists the active file system of this device, if it does; `None` also where the device is gone, or its file
/// system is of a kind that is not listed. `sys_block` is `/sys/block`.
pub fn active_on((major, minor): (u32, u32), sys_block: &Path) -> Result<Option<PathBuf>, Fault> {
    let sys = sys_block.parent().unwrap_or(sys_block);
    let link = sys.join(format!("dev/block/{major}:{minor}"));
    let device = match fs::read_link(&link) {
        Ok(device) => device,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::new("read", link, errno(&error))),
    };
    let Some(name) = device.file_name() else {
        return Ok(None);
    };
    for kind in BY_DEVICE {
        let active = sys.join("fs").join(kind).join(name);
        match fs::symlink_metadata(&active) {
            Ok(_) => return Ok(Some(active)),
            Err(error) if matches!(errno(&error), Errno::ENOENT | Errno::ENOTDIR) => {}
            Err(error) => return Err(Fault::new("look at", active, errno(&error))),
        }
    }
    Ok(None)
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
        let on = |device| active_on(device, &block).unwrap();
        assert_eq!(on((8, 16)), Some(sys.path().join("fs/ext4/sdb")));
        assert_eq!(on((253, 3)), Some(sys.path().join("fs/xfs/dm-3")));
        assert_eq!(on((8, 32)), None, "a device without a file system");
        assert_eq!(on((8, 48)), None, "a device that is gone");
    }
}
