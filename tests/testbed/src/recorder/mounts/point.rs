//! The mount point of a unique mount ID: statmount(2), which has no safe wrapper yet.
#![allow(unsafe_code, reason = "statmount is called by its number")]

use std::{
    ffi::{CStr, OsStr},
    mem::{offset_of, size_of},
    os::unix::ffi::OsStrExt as _,
    path::PathBuf,
};

use linux_raw_sys::general::{__NR_statmount, STATMOUNT_MNT_POINT, mnt_id_req, statmount};
use nix::libc;

/// Room for a path of any length that the kernel knows.
const ROOM: usize = size_of::<statmount>() + libc::PATH_MAX as usize;

/// Its path as seen here; `None` if it is unmounted, or elsewhere.
pub(super) fn of(mount: u64) -> Option<PathBuf> {
    let request = mnt_id_req {
        size: u32::try_from(size_of::<mnt_id_req>()).ok()?,
        spare: 0,
        mnt_id: mount,
        param: u64::from(STATMOUNT_MNT_POINT),
        mnt_ns_id: 0,
    };
    let mut answer = [0_u8; ROOM];
    // SAFETY: the request is whole and says its size; the kernel writes no more than the ROOM bytes that are there, and any
    // bytes are bytes.
    let result = unsafe {
        libc::syscall(
            libc::c_long::from(__NR_statmount),
            &raw const request,
            answer.as_mut_ptr(),
            ROOM,
            0,
        )
    };
    if result != 0 {
        return None;
    }
    let start = answer.get(offset_of!(statmount, mnt_point)..)?.first_chunk()?;
    let text = answer.get(offset_of!(statmount, str_) + u32::from_ne_bytes(*start) as usize..)?;
    let path = CStr::from_bytes_until_nul(text).ok()?;
    Some(OsStr::from_bytes(path.to_bytes()).into())
}
