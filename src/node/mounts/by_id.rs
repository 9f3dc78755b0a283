//! Reads the mounts of this process by their IDs, with listmount(2) and statmount(2) of Linux 6.15 and later.
//!
//! The kernel writes the whole of mountinfo for each reader. Here a mount that is known costs no more than its ID: a node has
//! hundreds of mounts of other pods. IDs are unique until the next boot. Every read lists all IDs. All mounts are read again after a
//! move, after a second, and when the list shows no other IDs.

use std::{io, path::Path, time::Duration};

use tokio::time::Instant;

use super::{
    moves::Moves,
    table::{MountTable, PlacedMount},
};

mod syscalls;

use syscalls::{Shown, list, stat};

/// Maximum age of what is known of a mount. The kernel reports mounts and unmounts, but not the rename of a directory above a
/// mount.
pub(super) const MAX_AGE: Duration = Duration::from_secs(1);
/// Room for IDs in the first call.
const FIRST_IDS: usize = 1024;
/// How often mounts are read that change meanwhile.
const MAX_READS: usize = 10;

/// The mounts that are known.
#[derive(Debug)]
pub(super) struct KnownMounts {
    moves: Moves,
    /// By ID. `None`: it has no place in the table.
    known: Vec<(u64, Option<PlacedMount>)>,
    /// When all were last read.
    all_read: Option<Instant>,
    ids: Vec<u64>,
}

/// The places of mounts that are known no more, and of those that are known now.
#[derive(Debug, Default)]
struct Changes {
    removed: Vec<Option<PlacedMount>>,
    new: Vec<Option<PlacedMount>>,
}

// === impl KnownMounts ===

impl KnownMounts {
    /// Knows nothing yet. `mountinfo` is this process's.
    ///
    /// # Errors
    /// If the kernel is older, or a filter of system calls forbids to watch for moves.
    pub fn new(mountinfo: &Path) -> io::Result<Self> {
        Ok(Self {
            moves: Moves::watch(&mountinfo.with_file_name("ns/mnt"))?,
            known: Vec::new(),
            all_read: None,
            ids: vec![0; FIRST_IDS],
        })
    }

    /// Whether a mount may have moved since the last read.
    pub fn may_have_moved(&self) -> bool {
        self.moves.has_events()
    }

    /// The current table, after `last` and a change, and when all mounts in it were read: those of `last` that are still listed and
    /// have not moved are not read again.
    ///
    /// # Errors
    /// If the kernel refuses to show a mount, or mounts change too fast.
    pub fn read(&mut self, scope: &Path, last: &MountTable) -> io::Result<(MountTable, Instant)> {
        // Taken away, so that all are read again after an error.
        if let Some(read) = self.all_read.take().filter(|read| read.elapsed() < MAX_AGE)
            && !self.moves.take_moves()?
            && let Some(table) = self.update(scope, last)?
            && !self.moves.take_moves()?
        {
            self.all_read = Some(read);
            return Ok((table, read));
        }
        for _ in 0..MAX_READS {
            let began = Instant::now();
            self.moves.take_moves()?;
            self.known.clear();
            self.refresh(scope)?;
            // A mount may have moved from a place that was read later to one that was read before.
            if !self.moves.take_moves()? {
                self.all_read = Some(began);
                return Ok((self.table(scope), began));
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Reads only new mounts; `None` if known ones may show something else now.
    fn update(&mut self, scope: &Path, last: &MountTable) -> io::Result<Option<MountTable>> {
        let Changes { removed, new } = self.refresh(scope)?;
        // The change was perhaps a move that is not reported yet.
        if removed.is_empty() && new.is_empty() {
            return Ok(None);
        }
        let placed = |found: &[Option<PlacedMount>]| found.iter().flatten().cloned().collect::<Vec<_>>();
        let (removed, new) = (placed(&removed), placed(&new));
        // A mount beneath or upon another may have another parent from now on.
        let is_alone = |found: &PlacedMount, at_most| {
            found
                .in_scope()
                .is_none_or(|mount| last.mounts_on(&mount.path).len() <= at_most)
        };
        if !removed.iter().all(|found| is_alone(found, 1)) || !new.iter().all(|found| is_alone(found, 0)) {
            return Ok(None);
        }
        // New IDs are mostly larger, but a mount gets its ID before it is attached.
        let is_sorted = self.known.is_sorted_by_key(|(id, _)| *id);
        let changed = is_sorted.then(|| last.with_changes(&removed, &new)).flatten();
        Ok(Some(changed.unwrap_or_else(|| self.table(scope))))
    }

    /// Lists the mounts and reads those that are not known.
    ///
    /// All is done again if a listed mount is gone when it is read: one that has replaced it may not be in the list. So the known
    /// mounts are those of one moment, the last list.
    fn refresh(&mut self, scope: &Path) -> io::Result<Changes> {
        let mut changes = Changes::default();
        for _ in 0..MAX_READS {
            list(&mut self.ids)?;
            let ids = self.compare(&mut changes);
            if self.read_new(ids, scope, &mut changes)? {
                return Ok(changes);
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn table(&mut self, scope: &Path) -> MountTable {
        self.known.sort_by_key(|(id, _)| *id);
        MountTable::new(scope, self.known.iter().filter_map(|(_, found)| found.clone()))
    }

    /// Reads these mounts. `false` if one of them is gone.
    fn read_new(&mut self, ids: Vec<u64>, scope: &Path, changes: &mut Changes) -> io::Result<bool> {
        let mut buffer = Vec::new();
        for id in ids {
            let place = match stat(id, &mut buffer)? {
                Shown::Mount(mount) => PlacedMount::of(mount, scope),
                Shown::Elsewhere => None,
                Shown::Unmounted => return Ok(false),
            };
            changes.new.push(place.clone());
            self.known.push((id, place));
        }
        Ok(true)
    }

    /// Forgets the mounts that are not listed. Returns the listed IDs that are not known.
    fn compare(&mut self, changes: &mut Changes) -> Vec<u64> {
        let mut listed = self.ids.iter().copied().peekable();
        let mut new = Vec::new();
        let missing = self.known.extract_if(.., |(id, _)| {
            while let Some(unknown) = listed.next_if(|listed| *listed < *id) {
                new.push(unknown);
            }
            listed.next_if_eq(id).is_none()
        });
        changes.removed.extend(missing.map(|(_, found)| found));
        new.extend(listed);
        new
    }
}
