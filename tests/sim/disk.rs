//! An in-memory disk for the journal. After a crash it keeps synced writes, and a random part of the others.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use redb::{Database, DatabaseError, StorageBackend};
use testbed::dice::Dice;
use tokio::sync::Notify;

/// Error for a run of the agent that has crashed.
pub const GONE: &str = "this run has crashed";
/// Error of a full disk.
pub const FULL: &str = "the disk is full";

/// Clones share the disk.
#[derive(Debug, Clone)]
pub struct Disk(Arc<Mutex<Platter>>);

#[derive(Debug, Default)]
struct Platter {
    bytes: Vec<u8>,
    /// The former content of each write since the last sync.
    unsynced: Vec<(usize, Vec<u8>)>,
    fails: bool,
    /// It has rejected a write that may not have been repeated since.
    behind: bool,
    /// Writes until the present run crashes.
    cut: Option<usize>,
    /// The present run; earlier ones cannot write.
    owner: u64,
    /// Notified when the present run crashes.
    died: Arc<Notify>,
}

/// The disk of one run of the agent.
#[derive(Debug)]
struct Drive {
    disk: Disk,
    owner: u64,
}

// === impl Disk ===

impl Disk {
    /// A disk with an empty database: creating one takes longer than most runs.
    pub fn new(died: Arc<Notify>) -> Self {
        static EMPTY: OnceLock<Vec<u8>> = OnceLock::new();
        let disk = Self(Arc::default());
        let made = EMPTY.get_or_init(|| {
            let making = Self(Arc::default());
            drop(making.open(0).expect("a database in memory"));
            std::mem::take(&mut making.now().bytes)
        });
        disk.now().bytes.clone_from(made);
        disk.now().died = died;
        disk
    }

    /// Opens the database for this run of the agent.
    pub fn opener(&self, owner: u64) -> pod_teardown::journal::SimulatedDisk {
        let disk = self.clone();
        disk.now().owner = owner;
        let reads = disk.clone();
        pod_teardown::journal::SimulatedDisk {
            read: Arc::new(move || Ok(reads.now().bytes.clone())),
            open: Arc::new(move || disk.open(owner)),
        }
    }

    fn open(&self, owner: u64) -> Result<Database, DatabaseError> {
        let drive = Drive {
            disk: self.clone(),
            owner,
        };
        Database::builder().set_cache_size(256 << 10).create_with_backend(drive)
    }

    /// Makes all writes fail, or succeed again.
    pub fn fail(&self, fails: bool) {
        self.now().fails = fails;
    }

    /// Crashes the present run after this many writes.
    pub fn cut(&self, after: Option<usize>) {
        self.now().cut = after;
    }

    /// Whether this run of the agent has not crashed.
    pub fn serves(&self, owner: u64) -> bool {
        self.now().owner == owner
    }

    /// All rejected writes have been repeated.
    pub fn made_up(&self) {
        let mut platter = self.now();
        platter.behind &= platter.fails;
    }

    /// Whether a rejected write was not repeated; resets that.
    pub fn take_behind(&self) -> bool {
        std::mem::take(&mut self.now().behind)
    }

    /// Crashes the present run: each write that was not synced is lost at random.
    pub fn crash(&self, dice: &mut Dice) {
        let mut platter = self.now();
        platter.owner = 0;
        let unsynced = std::mem::take(&mut platter.unsynced);
        let mut kept: Vec<std::ops::Range<usize>> = Vec::new();
        for (at, before) in unsynced.into_iter().rev() {
            let range = at..at + before.len();
            let covered = kept
                .iter()
                .any(|later| later.start < range.end && range.start < later.end);
            if covered || dice.one_in(2) {
                kept.push(range);
            } else {
                platter.bytes[range].copy_from_slice(&before);
            }
        }
    }

    fn now(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Drive ===

impl Drive {
    fn platter(&self) -> io::Result<MutexGuard<'_, Platter>> {
        let platter = self.disk.now();
        if platter.owner == self.owner {
            Ok(platter)
        } else {
            Err(io::Error::other(GONE))
        }
    }

    fn writable(&self) -> io::Result<MutexGuard<'_, Platter>> {
        let mut platter = self.platter()?;
        if platter.fails {
            platter.behind = true;
            return Err(io::Error::other(FULL));
        }
        // A write that was lost before cannot be distinguished from this one.
        if !platter.behind {
            match &mut platter.cut {
                Some(0) => {
                    platter.cut = None;
                    platter.owner = 0;
                    platter.died.notify_one();
                    return Err(io::Error::other(GONE));
                }
                Some(left) => *left -= 1,
                None => {}
            }
        }
        Ok(platter)
    }
}

fn range(at: u64, len: usize, all: usize) -> io::Result<std::ops::Range<usize>> {
    let at = usize::try_from(at).map_err(io::Error::other)?;
    let end = at.checked_add(len).filter(|end| *end <= all);
    end.map(|end| at..end)
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

impl StorageBackend for Drive {
    fn len(&self) -> io::Result<u64> {
        Ok(self.platter()?.bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.platter()?;
        let range = range(offset, out.len(), platter.bytes.len())?;
        out.copy_from_slice(&platter.bytes[range]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(io::Error::other)?;
        let mut platter = self.writable()?;
        platter.unsynced.retain(|(at, before)| at + before.len() <= len);
        platter.bytes.resize(len, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.writable()?.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.writable()?;
        let range = range(offset, data.len(), platter.bytes.len())?;
        let before = platter.bytes[range.clone()].to_vec();
        platter.unsynced.push((range.start, before));
        platter.bytes[range].copy_from_slice(data);
        Ok(())
    }
}
