//! Loop devices. A kubelet keeps one on each raw block device of a pod, so that its device name is not reused.

#![allow(unsafe_code)]

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd as _,
        unix::{
            ffi::{OsStrExt as _, OsStringExt as _},
            fs::MetadataExt as _,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::errno::Errno;

use super::{
    effects::{Effects, Outcome},
    fault::{Cause, Fault, errno},
};

mod ioctl {
    /// Head of `struct loop_info64` of linux/loop.h.
    #[repr(C)]
    #[derive(Default)]
    pub struct Status {
        pub device: u64,
        pub inode: u64,
        rest: [u64; 27],
    }

    nix::ioctl_none_bad!(
        /// `LOOP_CLR_FD` of linux/loop.h.
        loop_clr_fd,
        0x4C01
    );
    nix::ioctl_read_bad!(
        /// `LOOP_GET_STATUS64` of linux/loop.h.
        loop_get_status64,
        0x4C05,
        Status
    );
}

/// Number of polls for the device to disappear, and their interval. losetup may keep a device open for a quarter of a
/// second while it looks for a free one.
const POLLS: u32 = 60;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The kernel's suffix of a deleted file's path.
const DELETED: &[u8] = b" (deleted)";
/// The path that the kernel shows for a file whose own mount was detached.
const DETACHED: &str = "/";

/// A file by the device number of its file system and its inode number.
pub type FileId = (u64, u64);

/// A loop device, and the path of its file as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    name: OsString,
    file: PathBuf,
    id: Option<FileId>,
}

/// The file at this path; `None` if there is none.
pub fn file_id(path: &Path) -> Option<FileId> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// The loop devices that are attached to the file at this path, from `sys_block`. The path is lost if the mount of the file was
/// detached (`umount -l`). Then a device is found if its file is one of `ids`.
pub fn devices_on(file: &Path, ids: &[FileId], sys_block: &Path) -> Result<Vec<LoopDevice>, Fault> {
    let fault = |error: io::Error| Fault::new("list", sys_block, errno(&error));
    let mut found = Vec::new();
    for entry in fs::read_dir(sys_block).map_err(fault)? {
        let name = entry.map_err(fault)?.file_name();
        if !name.as_bytes().starts_with(b"loop") {
            continue;
        }
        let Some(backing) = backing_file(&name, sys_block)? else {
            continue;
        };
        let is_lost = backing == Path::new(DETACHED) && !ids.is_empty();
        let open = is_lost.then(|| File::open(node(&name)).ok()).flatten();
        let id = open.and_then(|open| attached_file(&open));
        if backing == file || id.is_some_and(|id| ids.contains(&id)) {
            found.push(LoopDevice {
                name,
                file: backing,
                id,
            });
        }
    }
    Ok(found)
}

fn node(device: &OsStr) -> PathBuf {
    Path::new("/dev").join(device)
}

/// The file of a loop device; `None` if it is not attached.
fn attached_file(open: &File) -> Option<FileId> {
    let mut status = ioctl::Status::default();
    // SAFETY: the kernel fills a structure of this size, and keeps no pointer to it.
    unsafe { ioctl::loop_get_status64(open.as_raw_fd(), &raw mut status) }.ok()?;
    Some((status.device, status.inode))
}

/// The path of a loop device's file; `None` if it is not attached.
fn backing_file(device: &OsStr, sys_block: &Path) -> Result<Option<PathBuf>, Fault> {
    let file = sys_block.join(device).join("loop/backing_file");
    let mut text = match fs::read(&file).map_err(|error| errno(&error)) {
        Ok(text) => text,
        Err(Errno::ENOENT | Errno::ENXIO | Errno::ENODEV) => return Ok(None),
        Err(errno) => return Err(Fault::new("read", file, errno)),
    };
    text.truncate(text.strip_suffix(b"\n").unwrap_or(&text).len());
    text.truncate(text.strip_suffix(DELETED).unwrap_or(&text).len());
    Ok(Some(OsString::from_vec(text).into()))
}

/// Detaches the device if it is still attached to this file.
pub fn detach(device: &LoopDevice, sys_block: &Path, effects: &Effects) -> Result<Outcome, Fault> {
    const VERB: &str = "detach loop device";
    let node = node(&device.name);
    let fault = |cause: Cause| Fault::new(VERB, &node, cause);
    let open = match File::open(&node) {
        Ok(open) => open,
        Err(error) if matches!(errno(&error), Errno::ENOENT | Errno::ENXIO) => return Ok(Outcome::Nothing),
        Err(error) => return Err(fault(errno(&error).into())),
    };
    let is_attached = || Ok::<_, Fault>(backing_file(&device.name, sys_block)?.as_ref() == Some(&device.file));
    // While it is open, it cannot be attached to another file.
    if !is_attached()? || device.id.is_some() && attached_file(&open) != device.id {
        return Ok(Outcome::Nothing);
    }
    // SAFETY: the request takes no argument and changes nothing but the device behind the open descriptor.
    let cleared = effects.perform(VERB, &node, || unsafe { ioctl::loop_clr_fd(open.as_raw_fd()) })?;
    drop(open);
    match cleared {
        Ok(_) | Err(Errno::ENXIO) => {}
        Err(errno) => return Err(fault(errno.into())),
    }
    // The kernel keeps the device while it is open or mounted. Most holders only probe devices that change.
    for _ in 0..POLLS {
        if !is_attached()? {
            return Ok(Outcome::Done);
        }
        #[expect(clippy::disallowed_methods, reason = "on a thread for work that blocks")]
        std::thread::sleep(POLL_INTERVAL);
    }
    Err(fault(Cause::LoopInUse(node.clone())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_by_their_file_even_if_it_is_deleted() {
        let sys = tempfile::tempdir().unwrap();
        for (device, file) in [
            ("loop0", "/k/dev/u\n"),
            ("loop1", "/k/dev/u (deleted)\n"),
            ("loop2", "/k/dev/u2\n"),
            ("sda", "/k/dev/u\n"),
        ] {
            let dir = sys.path().join(device).join("loop");
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("backing_file"), file).unwrap();
        }
        fs::create_dir_all(sys.path().join("loop3")).unwrap();
        let found = devices_on(Path::new("/k/dev/u"), &[], sys.path()).unwrap();
        let mut names: Vec<_> = found.into_iter().map(|device| device.name).collect();
        names.sort();
        assert_eq!(names, ["loop0", "loop1"]);
        assert!(devices_on(Path::new("/k"), &[], Path::new("/no/such/sys")).is_err());
    }
}
