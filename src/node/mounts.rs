//! What is mounted below the kubelet's directory, and how it is taken away.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use super::{
    effects::Effects,
    fault::{Cause, Fault, errno},
};

mod hanging;
mod mount;
mod rounds;
mod source;
mod strays;
mod table;
mod unmount;
mod watch;

use source::Source;

pub use hanging::{Hanging, Mounted};
pub(super) use mount::device;
pub use mount::{BadLine, Mount, unescape};
pub use rounds::{StillMounted, UnmountReport, UnmountRounds, UnmountScope, hanging};
pub use table::MountTable;
pub use unmount::unmount;
pub use watch::MountWatch;

/// How long a table is kept. The kernel tells of every mount and unmount, but not of a directory above a mount that is
/// given another name.
const KEPT: Duration = Duration::from_secs(1);

/// The mount table of one mount namespace, as far as it lies at or below one place.
///
/// The kernel writes the whole table for each reader, which costs a millisecond on a node with 700 mounts. So a table is
/// kept as long as the kernel says, when asked after the request, that nothing has changed since it was read. And pods
/// that have asked before a read share it: one that began after the request is a true answer.
#[derive(Debug)]
pub struct Mounts {
    mountinfo: PathBuf,
    scope: PathBuf,
    requests: AtomicU64,
    /// EffectsBlocked while the table is read.
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    source: Source,
    /// Questions with a smaller number were asked before the kernel was.
    serves_below: u64,
    /// When the read of the table began.
    read: Option<Instant>,
    table: Arc<MountTable>,
}

/// A request that was asked of [`Mounts`]: whatever is read after it is a true answer.
#[derive(Debug, Clone, Copy)]
pub struct TableRequest(u64);

// === impl Mounts ===

impl Mounts {
    /// The mounts at or below `scope`, a path without symlinks, as `mountinfo` lists them.
    pub fn new(mountinfo: impl Into<PathBuf>, scope: impl Into<PathBuf>) -> Self {
        let mountinfo = mountinfo.into();
        Self {
            known: Mutex::new(Known {
                source: Source::new(mountinfo.clone()),
                serves_below: 0,
                read: None,
                table: Arc::default(),
            }),
            mountinfo,
            scope: scope.into(),
            requests: AtomicU64::new(0),
        }
    }

    /// All that the kernel's own table says at this moment, word by word. Blocks.
    pub fn text(&self) -> Result<Vec<u8>, Fault> {
        std::fs::read(&self.mountinfo).map_err(|error| Fault::new("read", &self.mountinfo, errno(&error)))
    }

    /// The table as it is now, or was at some moment after the call. Blocks.
    pub fn read(&self) -> Result<Arc<MountTable>, Fault> {
        self.read_since(self.request())
    }

    /// Asks for the table as it is from now on. The later it is answered, the more others have asked by then, and one read
    /// serves them all.
    pub fn request(&self) -> TableRequest {
        TableRequest(self.requests.fetch_add(1, Ordering::SeqCst))
    }

    /// The table as it was at some moment after the request. Blocks.
    pub fn read_since(&self, request: TableRequest) -> Result<Arc<MountTable>, Fault> {
        self.read_locked(&mut self.known(), request)
    }

    fn read_locked(&self, known: &mut Known, request: TableRequest) -> Result<Arc<MountTable>, Fault> {
        if request.0 >= known.serves_below {
            let serves_below = self.requests.load(Ordering::SeqCst);
            if !(known.source.is_unchanged() && known.is_recent()) {
                let began = Instant::now();
                known.table = Arc::new(self.read_now(&mut known.source)?);
                known.read = Some(began);
            }
            known.serves_below = serves_below;
        }
        Ok(Arc::clone(&known.table))
    }

    /// A table of late: good enough to know what to unmount, never that nothing is left. Empty where none can be had.
    /// Blocks.
    fn read_recent(&self) -> Arc<MountTable> {
        let mut known = self.known();
        if known.is_recent() {
            return Arc::clone(&known.table);
        }
        self.read_locked(&mut known, self.request()).unwrap_or_default()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_now(&self, source: &mut Source) -> Result<MountTable, Fault> {
        let fault = |cause: Cause| Fault::new("read", &self.mountinfo, cause);
        let text = source.read().map_err(|error| fault(errno(&error).into()))?;
        MountTable::parse(&text, &self.scope).map_err(|bad| {
            source.forget();
            tracing::warn!(%bad, "The mount table cannot be understood");
            fault(Cause::Errno(nix::errno::Errno::EBADMSG))
        })
    }

    /// Tells changes of the table from now on.
    pub fn watch(&self) -> Result<MountWatch, Fault> {
        MountWatch::on(&self.mountinfo)
    }

    /// UnmountBackend everything below `dir`, but not what is mounted on `dir` itself. Blocks.
    pub fn unmount_all_below(&self, dir: &Path, effects: &Effects) -> Result<UnmountReport, StillMounted> {
        self.unmount_all(UnmountScope::Below(dir.to_owned()), effects)
    }

    /// UnmountBackend everything on one of `places` and below them. Blocks.
    pub fn unmount_all_at<P: AsRef<Path>>(
        &self,
        places: &[P],
        effects: &Effects,
    ) -> Result<UnmountReport, StillMounted> {
        let places = places.iter().map(|place| place.as_ref().to_owned()).collect();
        self.unmount_all(UnmountScope::AtOrBelow(places), effects)
    }

    fn unmount_all(&self, places: UnmountScope, effects: &Effects) -> Result<UnmountReport, StillMounted> {
        let mut rounds = self.start_unmount(places, effects);
        loop {
            match rounds.run_next(self.read(), effects) {
                ControlFlow::Continue(next) => rounds = next,
                ControlFlow::Break(done) => return done,
            }
        }
    }

    /// Begins to unmount everything in these places, by what was mounted there of late. Blocks.
    ///
    /// Others that unmount make each table an old one soon, and what it shows of these places may be true all the same.
    pub fn start_unmount(&self, places: UnmountScope, effects: &Effects) -> UnmountRounds {
        let mut rounds = UnmountRounds::new(places);
        if !effects.is_dry_run() {
            rounds.unmount(&self.read_recent(), effects);
        }
        rounds
    }
}

// === impl Known ===

impl Known {
    fn is_recent(&self) -> bool {
        self.read.is_some_and(|read| read.elapsed() < KEPT)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn mounts(lines: &str) -> (tempfile::NamedTempFile, Mounts) {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), lines).unwrap();
        let mounts = Mounts::new(file.path(), "/no-such-root");
        (file, mounts)
    }

    #[test]
    fn a_later_question_is_answered_by_a_later_read() {
        let (file, mounts) = mounts("");
        assert_eq!(mounts.read().unwrap().all(), []);
        fs::write(file.path(), "7 1 0:5 / /no-such-root/v rw - tmpfs t rw\n").unwrap();
        assert_eq!(mounts.read().unwrap().all().len(), 1);
    }

    #[test]
    fn a_mount_that_no_unmount_reaches_is_reported_and_never_called_gone() {
        let (_file, mounts) = mounts("7 1 0:5 / /no-such-root/v rw - tmpfs t rw\n");
        let left = mounts
            .unmount_all_below(Path::new("/no-such-root"), &Effects::ungated())
            .unwrap_err();
        assert_eq!(
            left.faults,
            [Fault::new("unmount", "/no-such-root/v", Cause::StillMounted)]
        );
    }

    #[test]
    fn a_table_that_cannot_be_read_is_an_error_and_not_an_empty_table() {
        let (_file, unreadable) = mounts("nonsense\n");
        assert!(unreadable.unmount_all_at(&["/x"], &Effects::ungated()).is_err());
        assert!(Mounts::new("/no/such/mountinfo", "/").read().is_err());
    }
}
