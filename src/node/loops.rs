//! Loop devices. A kubelet keeps one on each raw block device of a pod, so that its device name is not reused.

#![allow(unsafe_code)]

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd as _,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use nix::errno::Errno;

use super::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{Cause, Fault, errno},
};

nix::ioctl_none_bad!(
    /// `LOOP_CLR_FD` of linux/loop.h.
    loop_clr_fd,
    0x4C01
);

/// Number of polls for the device to disappear, and their interval. losetup may keep a device open for a quarter of a
/// second while it looks for a free one.
const POLLS: u32 = 60;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The kernel's suffix of a deleted file's path.
const DELETED: &[u8] = b" (deleted)";

/// Names of the loop devices that are attached to this file, from `sys_block`.
pub fn devices_on(file: &Path, sys_block: &Path) -> Result<Vec<OsString>, Fault> {
    let fault = |error: io::Error| Fault::new("list", sys_block, errno(&error));
    let mut found = Vec::new();
    for entry in fs::read_dir(sys_block).map_err(fault)? {
        let name = entry.map_err(fault)?.file_name();
        if name.as_bytes().starts_with(b"loop") && backing_file(&name, sys_block)?.is_some_and(|it| it == file) {
            found.push(name);
        }
    }
    Ok(found)
}

/// The file of a loop device; `None` if it is not attached.
fn backing_file(device: &OsStr, sys_block: &Path) -> Result<Option<PathBuf>, Fault> {
    let file = sys_block.join(device).join("loop/backing_file");
    let mut text = match fs::read(&file) {
        Ok(text) => text,
        Err(error) => {
            return match errno(&error) {
                Errno::ENOENT | Errno::ENXIO | Errno::ENODEV => Ok(None),
                errno => Err(Fault::new("read", file, errno)),
            };
        }
    };
    text.truncate(text.strip_suffix(b"\n").unwrap_or(&text).len());
    text.truncate(text.strip_suffix(DELETED).unwrap_or(&text).len());
    Ok(Some(OsString::from_vec(text).into()))
}

/// Detaches the device if it is still attached to this file.
pub fn detach(device: &OsStr, file: &Path, sys_block: &Path, effects: &Effects) -> Result<Outcome, Fault> {
    const VERB: &str = "detach loop device";
    let node = Path::new("/dev").join(device);
    let fault = |cause: Cause| Fault::new(VERB, &node, cause);
    let open = match File::open(&node) {
        Ok(open) => open,
        Err(error) if matches!(errno(&error), Errno::ENOENT | Errno::ENXIO) => return Ok(Outcome::Nothing),
        Err(error) => return Err(fault(errno(&error).into())),
    };
    // While it is open, it cannot be attached to another file.
    if backing_file(device, sys_block)?.is_none_or(|now| now != file) {
        return Ok(Outcome::Nothing);
    }
    if !effects
        .allow(&Effect::new(VERB, &node))
        .map_err(|blocked| fault(blocked.into()))?
    {
        return Ok(Outcome::Withheld);
    }
    // SAFETY: the request takes no argument and changes nothing but the device behind the open descriptor.
    let cleared = unsafe { loop_clr_fd(open.as_raw_fd()) };
    drop(open);
    checkpoint::after(VERB, &node);
    match cleared {
        Ok(_) | Err(Errno::ENXIO) => {}
        Err(errno) => return Err(fault(errno.into())),
    }
    // The kernel keeps the device while it is open or mounted. Most holders only probe devices that change.
    for _ in 0..POLLS {
        if backing_file(device, sys_block)?.is_none_or(|now| now != file) {
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
        let mut found = devices_on(Path::new("/k/dev/u"), sys.path()).unwrap();
        found.sort();
        assert_eq!(found, ["loop0", "loop1"]);
        assert!(devices_on(Path::new("/k"), Path::new("/no/such/sys")).is_err());
    }
}
