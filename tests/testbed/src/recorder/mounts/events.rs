//! Events of a mount namespace: fanotify with FAN_REPORT_MNT. nix has the calls, but not yet the flags and records.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context as _, Result, ensure};
use nix::{
    fcntl::AT_FDCWD,
    sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags},
    unistd::read,
};

use super::Change;

// linux/fanotify.h
const REPORT_MNT: u32 = 0x4000;
const MARK_MNTNS: u32 = 0x110;
const MNT_ATTACH: u64 = 0x0100_0000;
const MNT_DETACH: u64 = 0x0200_0000;
const Q_OVERFLOW: u64 = 0x4000;
const INFO_TYPE_MNT: u8 = 7;
/// Length, version, a byte for nothing, own length, mask, file, process.
const EVENT: usize = 24;

/// A mount or unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub change: Change,
    /// Its unique mount ID.
    pub mount: u64,
    /// The process that did it.
    pub pid: i32,
}

/// The fanotify descriptor.
pub(super) struct Events(OwnedFd);

impl Events {
    /// Of the caller's mount namespace.
    pub fn of_this_namespace() -> Result<Self> {
        let flags = InitFlags::FAN_CLOEXEC | InitFlags::FAN_UNLIMITED_QUEUE | InitFlags::from_bits_retain(REPORT_MNT);
        let group = Fanotify::init(flags, EventFFlags::empty())
            .context("listen to mounts, which needs root and Linux 6.15 or later")?;
        // Not /proc/self, which is the main thread's namespace.
        group
            .mark(
                MarkFlags::FAN_MARK_ADD | MarkFlags::from_bits_retain(MARK_MNTNS),
                MaskFlags::from_bits_retain(MNT_ATTACH | MNT_DETACH),
                AT_FDCWD,
                Some("/proc/thread-self/ns/mnt"),
            )
            .context("listen to the mounts of this namespace")?;
        Ok(Self(group.into()))
    }

    /// Waits for events and returns them.
    pub fn read(&self) -> Result<Vec<Event>> {
        let mut buffer = [0; 16 << 10];
        let length = read(&self.0, &mut buffer).context("read what was mounted")?;
        parse(&buffer[..length])
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Parses events, each with a record that names the mount.
fn parse(mut bytes: &[u8]) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    while !bytes.is_empty() {
        let length = u32::from_ne_bytes(at(bytes, 0)?) as usize;
        ensure!(length >= EVENT && length <= bytes.len(), "an event of {length} bytes");
        let (event, rest) = bytes.split_at(length);
        bytes = rest;
        let mask = u64::from_ne_bytes(at(event, 8)?);
        ensure!(mask & Q_OVERFLOW == 0, "the kernel has lost events");
        let pid = i32::from_ne_bytes(at(event, 20)?);
        let [kind] = at(event, EVENT)?;
        ensure!(kind == INFO_TYPE_MNT, "a record of kind {kind}");
        let mount = u64::from_ne_bytes(at(event, EVENT + 8)?);
        // A moved mount is detached and attached.
        let changes = [(MNT_DETACH, Change::Unmount), (MNT_ATTACH, Change::Mount)];
        let changes = changes.into_iter().filter(|(bit, _)| mask & bit != 0);
        events.extend(changes.map(|(_, change)| Event { change, mount, pid }));
    }
    Ok(events)
}

fn at<const N: usize>(bytes: &[u8], from: usize) -> Result<[u8; N]> {
    let part = bytes.get(from..).and_then(|part| part.first_chunk());
    part.copied().context("an event that is cut off")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(mask: u64, mount: u64, pid: i32) -> Vec<u8> {
        let mut bytes = vec![40, 0, 0, 0, 3, 0, 24, 0];
        bytes.extend(mask.to_ne_bytes());
        bytes.extend((-1_i32).to_ne_bytes());
        bytes.extend(pid.to_ne_bytes());
        bytes.extend([INFO_TYPE_MNT, 0, 16, 0, 0, 0, 0, 0]);
        bytes.extend(mount.to_ne_bytes());
        bytes
    }

    #[test]
    fn events_have_change_mount_and_pid() {
        let bytes = [event(MNT_ATTACH, 1 << 40, 7), event(MNT_DETACH, 5, 8)].concat();
        let expected = |change, mount, pid| Event { change, mount, pid };
        assert_eq!(
            parse(&bytes).unwrap(),
            [expected(Change::Mount, 1 << 40, 7), expected(Change::Unmount, 5, 8)]
        );
        assert_eq!(parse(&event(MNT_ATTACH | MNT_DETACH, 5, 8)).unwrap().len(), 2);
    }

    #[test]
    fn what_is_lost_or_cut_off_is_an_error() {
        let whole = event(MNT_ATTACH, 5, 8);
        for bytes in [&whole[..39], &whole[..10], &event(Q_OVERFLOW, 5, 8)] {
            assert!(parse(bytes).is_err());
        }
    }
}
