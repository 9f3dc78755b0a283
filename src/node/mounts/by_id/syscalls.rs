//! The system calls listmount(2) and statmount(2).

#![allow(unsafe_code, reason = "no library has these system calls")]

use std::{
    ffi::{CStr, OsStr, OsString, c_long},
    io,
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

use linux_raw_sys::general as kernel;

use crate::node::mounts::mount::{Mount, without_deleted};

/// What a mount must show. Its source and the subtype of its file system may be empty.
const REQUIRED: u32 = kernel::STATMOUNT_SB_BASIC
    | kernel::STATMOUNT_MNT_BASIC
    | kernel::STATMOUNT_MNT_ROOT
    | kernel::STATMOUNT_FS_TYPE
    | kernel::STATMOUNT_SUPPORTED_MASK;
const OPTIONAL: u32 = kernel::STATMOUNT_MNT_POINT | kernel::STATMOUNT_FS_SUBTYPE | kernel::STATMOUNT_SB_SOURCE;
/// Longest texts of a mount: two paths, and a source.
const MAX_TEXT: usize = 64 * 1024;

/// What the kernel shows of a mount.
#[derive(Debug)]
pub(super) enum Shown {
    Mount(Mount),
    /// It cannot be reached from this process's root directory.
    Elsewhere,
    Unmounted,
}

/// Lists the IDs of all mounts that this process can reach, in order. One call shows all of one moment.
pub(super) fn list(ids: &mut Vec<u64>) -> io::Result<()> {
    let request = request(u64::MAX, 0);
    loop {
        ids.resize(ids.capacity(), 0);
        // SAFETY: the request and the buffer are valid for the call, which writes no more than its length in numbers.
        let written = unsafe {
            let (call, into) = (kernel::__NR_listmount, ids.as_mut_ptr());
            libc::syscall(c_long::from(call), &raw const request, into, ids.len(), 0)
        };
        let written = usize::try_from(written).map_err(|_| io::Error::last_os_error())?;
        if written < ids.len() {
            ids.truncate(written);
            return Ok(());
        }
        ids.reserve(ids.len() + 1);
    }
}

/// The mount with this ID.
pub(super) fn stat(id: u64, buffer: &mut Vec<u64>) -> io::Result<Shown> {
    let request = request(id, u64::from(REQUIRED | OPTIONAL));
    let mut size = 1024;
    loop {
        // Numbers, so that the structure at its begin is aligned.
        buffer.resize(size / size_of::<u64>(), 0);
        // SAFETY: the request and the buffer are valid for the call, which writes no more than `size` bytes.
        let answer = unsafe {
            let (call, into) = (kernel::__NR_statmount, buffer.as_mut_ptr());
            libc::syscall(c_long::from(call), &raw const request, into, size, 0)
        };
        if answer == 0 {
            break;
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ENOENT) => return Ok(Shown::Unmounted),
            Some(libc::EOVERFLOW) if size < MAX_TEXT => size *= 4,
            _ => return Err(error),
        }
    }
    // SAFETY: the buffer is larger than the structure, aligned, and was written by the kernel; any bytes are valid numbers.
    let shown = unsafe { buffer.as_ptr().cast::<kernel::statmount>().read() };
    // SAFETY: any bytes of a buffer of numbers are bytes.
    let text = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), size) };
    parse(&shown, &text[size_of::<kernel::statmount>()..])
}

/// `texts` follow the structure, each with its end.
fn parse(shown: &kernel::statmount, texts: &[u8]) -> io::Result<Shown> {
    let has = |flags: u32| shown.mask & u64::from(flags) == u64::from(flags);
    if !has(REQUIRED) || shown.supported_mask & u64::from(OPTIONAL) != u64::from(OPTIONAL) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    if !has(kernel::STATMOUNT_MNT_POINT) {
        return Ok(Shown::Elsewhere);
    }
    let text = |flag: u32, at: u32| -> io::Result<&OsStr> {
        if !has(flag) {
            return Ok(OsStr::new(""));
        }
        let text = texts
            .get(at as usize..)
            .and_then(|rest| CStr::from_bytes_until_nul(rest).ok());
        Ok(OsStr::from_bytes(text.ok_or(io::ErrorKind::InvalidData)?.to_bytes()))
    };
    let mut fs_type = text(kernel::STATMOUNT_FS_TYPE, shown.fs_type)?.to_owned();
    let subtype = text(kernel::STATMOUNT_FS_SUBTYPE, shown.fs_subtype)?;
    if !subtype.is_empty() {
        fs_type.push(".");
        fs_type.push(subtype);
    }
    let (root, root_deleted) = without_deleted(text(kernel::STATMOUNT_MNT_ROOT, shown.mnt_root)?.to_owned());
    let source = text(kernel::STATMOUNT_SB_SOURCE, shown.sb_source)?;
    Ok(Shown::Mount(Mount {
        id: shown.mnt_id_old.into(),
        parent: shown.mnt_parent_id_old.into(),
        device: (shown.sb_dev_major, shown.sb_dev_minor),
        root: root.into(),
        root_deleted,
        path: PathBuf::from(text(kernel::STATMOUNT_MNT_POINT, shown.mnt_point)?),
        fs_type,
        source: if has(kernel::STATMOUNT_SB_SOURCE) {
            source.to_owned()
        } else {
            // As in mountinfo.
            "none".into()
        },
        super_options: OsString::new(),
    }))
}

fn request(mnt_id: u64, param: u64) -> kernel::mnt_id_req {
    kernel::mnt_id_req {
        size: kernel::MNT_ID_REQ_SIZE_VER1,
        spare: 0,
        mnt_id,
        param,
        mnt_ns_id: 0,
    }
}
