//! btrfs subvolumes: directories with their own device number on the same mount.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, OwnedFd};

nix::ioctl_write_ptr!(
    /// `BTRFS_IOC_SUBVOL_SETFLAGS` of linux/btrfs.h.
    set_flags,
    0x94,
    26,
    u64
);

/// Clears the read-only flag of the subvolume with this root directory: containers can create such snapshots, and nothing
/// in them can be removed. Errors are ignored; the removal then reports what is left.
pub(super) fn make_writable(root: &OwnedFd) {
    // SAFETY: the request reads one u64 of flags, which outlives the call, and changes nothing but the subvolume.
    let _refused = unsafe { set_flags(root.as_raw_fd(), &0) };
}
