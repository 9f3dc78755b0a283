//! Subvolumes of btrfs: directories with a device number of their own on the same mount.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, OwnedFd};

nix::ioctl_write_ptr!(
    /// `BTRFS_IOC_SUBVOL_SETFLAGS` of linux/btrfs.h.
    set_flags,
    0x94,
    26,
    u64
);

/// Takes the read-only flag off the subvolume whose root this is: containers can make such snapshots, and nothing in one can be
/// removed. Where it is no subvolume or refused, what cannot be removed is told.
pub(super) fn make_writable(root: &OwnedFd) {
    // SAFETY: the request reads one u64 of flags, which outlives the call, and changes nothing but the subvolume.
    let _refused = unsafe { set_flags(root.as_raw_fd(), &0) };
}
