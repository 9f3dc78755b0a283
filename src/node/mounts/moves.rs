//! Whether mounts were moved: fanotify(7) reports it for a mount namespace since Linux 6.15.

use std::{
    fs,
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::Path,
};

use nix::{
    poll::PollFlags,
    sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags},
};

use super::source::is_ready;

// Values of linux/fanotify.h that nix has not yet.
const FAN_REPORT_MNT: u32 = 0x4000;
const FAN_MARK_MNTNS: u32 = 0x110;
const FAN_MNT_ATTACH: u64 = 0x0100_0000;
const FAN_MNT_DETACH: u64 = 0x0200_0000;
/// Both in one event.
const MOVED: u64 = FAN_MNT_ATTACH | FAN_MNT_DETACH;
/// Where an event has its length and its mask, and the length of both.
const LENGTH: usize = 0;
const MASK: usize = 8;
const HEAD: usize = 16;
/// Some hundred events are read at once.
const BUFFER: usize = 16 * 1024;

/// Reports of the kernel about the mounts of one namespace.
#[derive(Debug)]
pub(super) struct Moves {
    events: fs::File,
}

// === impl Moves ===

impl Moves {
    /// Watches this mount namespace, a file below `/proc`, from now on.
    ///
    /// # Errors
    /// If the kernel is older, or a filter of system calls forbids it.
    pub fn watch(namespace: &Path) -> io::Result<Self> {
        let namespace = fs::File::open(namespace)?;
        let flags = InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK | InitFlags::from_bits_retain(FAN_REPORT_MNT);
        let events = Fanotify::init(flags, EventFFlags::empty())?;
        let mark = MarkFlags::FAN_MARK_ADD | MarkFlags::from_bits_retain(FAN_MARK_MNTNS);
        events.mark(mark, MaskFlags::from_bits_retain(MOVED), namespace, None::<&Path>)?;
        Ok(Self {
            events: OwnedFd::from(events).into(),
        })
    }

    /// Whether there are events that [`Self::take_moves`] has not read.
    pub fn has_events(&self) -> bool {
        is_ready(&self.events, PollFlags::POLLIN)
    }

    /// Reads all events. Whether one reports a move, or a loss of events.
    ///
    /// # Errors
    /// If the events cannot be read.
    pub fn take_moves(&mut self) -> io::Result<bool> {
        let mut buffer = [0; BUFFER];
        let mut any = false;
        loop {
            match self.events.read(&mut buffer) {
                Ok(read) => any |= has_move(&buffer[..read])?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(any),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether one of these events reports a move, or a loss of events.
fn has_move(mut events: &[u8]) -> io::Result<bool> {
    let bad = || io::Error::from(io::ErrorKind::InvalidData);
    let mut any = false;
    while !events.is_empty() {
        let (length, mask) = head(events).ok_or_else(bad)?;
        any |= mask & MOVED == MOVED || mask & MaskFlags::FAN_Q_OVERFLOW.bits() != 0;
        events = (length >= HEAD)
            .then(|| events.get(length..))
            .flatten()
            .ok_or_else(bad)?;
    }
    Ok(any)
}

/// Length and mask of the first event.
fn head(event: &[u8]) -> Option<(usize, u64)> {
    let length = u32::from_ne_bytes(*event.get(LENGTH..)?.first_chunk()?);
    let mask = u64::from_ne_bytes(*event.get(MASK..)?.first_chunk()?);
    Some((usize::try_from(length).ok()?, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(mask: u64) -> Vec<u8> {
        let mut event = 40_u32.to_ne_bytes().to_vec();
        event.resize(MASK, 0);
        event.extend(mask.to_ne_bytes());
        event.resize(40, 0);
        event
    }

    #[test]
    fn only_a_move_or_a_loss_of_events_counts() {
        for (masks, counts) in [
            (&[][..], false),
            (&[FAN_MNT_ATTACH, FAN_MNT_DETACH], false),
            (&[FAN_MNT_ATTACH, MOVED, FAN_MNT_DETACH], true),
            (&[FAN_MNT_ATTACH, MaskFlags::FAN_Q_OVERFLOW.bits()], true),
        ] {
            let events: Vec<u8> = masks.iter().flat_map(|&mask| event(mask)).collect();
            assert_eq!(has_move(&events).unwrap(), counts, "{masks:x?}");
        }
    }

    #[test]
    fn incomplete_event_is_an_error() {
        let whole = event(MOVED);
        for length in 1..whole.len() {
            assert!(has_move(&whole[..length]).is_err(), "{length}");
        }
        let without_length = [vec![0; MASK], MOVED.to_ne_bytes().to_vec()].concat();
        assert!(has_move(&without_length).is_err());
    }
}
