//! Mounts below the kubelet's root directory, and their removal.

use std::{
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;

use super::{
    effects::Effects,
    fault::{Cause, Fault, errno},
    host::MOUNTINFO,
};

mod by_id;
pub(super) mod cover;
pub(super) mod hanging;
pub(super) mod mount;
mod moves;
mod path_order;
mod rounds;
mod source;
mod strays;
pub(super) mod table;
mod unmount;

use by_id::{KnownMounts, MAX_AGE};
use source::Source;

pub use cover::Cover;
pub use hanging::{Hanging, Mounted};
pub use mount::{BadLine, Mount, MountedOn};
use path_order::plain;
pub use rounds::{StillMounted, UnmountReport, UnmountRounds, UnmountScope, hanging};
pub use table::MountTable;
pub use unmount::unmount;

/// Mount tables of this process.
const OWN_MOUNTINFO: [&str; 2] = [MOUNTINFO, "/proc/thread-self/mountinfo"];

/// The mount table of one mount namespace, restricted to a scope.
///
/// The kernel writes the whole table for each reader, which takes a millisecond with 700 mounts. So the table is cached
/// as long as the kernel reports no change since it was read. Requests made before a read share its result: a read that started
/// after the request is current for it.
#[derive(Debug)]
pub struct Mounts {
    mountinfo: PathBuf,
    scope: PathBuf,
    requests: AtomicU64,
    /// Locked while the table is read.
    cache: Mutex<Cache>,
}

#[derive(Debug)]
struct Cache {
    source: Source,
    /// `None` if the text is read.
    known: Option<KnownMounts>,
    /// Requests with a smaller number were made before the kernel was polled.
    current_below: u64,
    /// When the mounts in the table were read, at the earliest.
    read: Option<Instant>,
    table: Arc<MountTable>,
}

/// A request for the table: any read that starts after it answers it.
#[derive(Debug, Clone, Copy)]
pub struct TableRequest(u64);

// === impl Mounts ===

impl Mounts {
    /// The mounts at or below `scope`, a path without symlinks, from `mountinfo`.
    pub fn new(mountinfo: impl Into<PathBuf>, scope: impl Into<PathBuf>) -> Self {
        let mountinfo = mountinfo.into();
        Self {
            cache: Mutex::new(Cache {
                source: Source::new(mountinfo.clone()),
                known: None,
                current_below: 0,
                read: None,
                table: Arc::default(),
            }),
            mountinfo,
            scope: plain(&scope.into()),
            requests: AtomicU64::new(0),
        }
    }

    /// Reads mounts by ID where the kernel can.
    ///
    /// A move may be missed until its system call has returned. So such a table is for directories that the kernel does not remove
    /// while something is mounted there, and never proves that a volume may be detached.
    #[must_use]
    pub fn read_by_id(mut self) -> Self {
        // The system calls show this process's mounts.
        if OWN_MOUNTINFO.iter().any(|own| self.mountinfo == Path::new(own)) {
            let known = KnownMounts::new(&self.mountinfo);
            let in_text = |error| tracing::debug!(%error, "The kernel does not show mounts by ID: mountinfo is read");
            self.cache.get_mut().unwrap_or_else(PoisonError::into_inner).known = known.map_err(in_text).ok();
        }
        self
    }

    /// The text of mountinfo now. Blocks.
    pub fn text(&self) -> Result<Vec<u8>, Fault> {
        std::fs::read(&self.mountinfo).map_err(|error| Fault::new("read", &self.mountinfo, errno(&error)))
    }

    /// The table at a moment after this call. Blocks.
    pub fn read(&self) -> Result<Arc<MountTable>, Fault> {
        self.read_since(self.request())
    }

    /// Requests the table as of now. A later [`Self::read_since`] can share the read of other requests.
    pub fn request(&self) -> TableRequest {
        TableRequest(self.requests.fetch_add(1, Ordering::SeqCst))
    }

    /// The table at a moment after the request. Blocks.
    pub fn read_since(&self, request: TableRequest) -> Result<Arc<MountTable>, Fault> {
        self.read_locked(&mut self.cache(), request)
    }

    fn read_locked(&self, cache: &mut Cache, request: TableRequest) -> Result<Arc<MountTable>, Fault> {
        if request.0 >= cache.current_below {
            let current_below = self.requests.load(Ordering::SeqCst);
            if !(cache.is_recent() && cache.is_unchanged()) {
                let (table, read) = self.read_now(cache)?;
                (cache.table, cache.read) = (Arc::new(table), Some(read));
            }
            cache.current_below = current_below;
        }
        Ok(Arc::clone(&cache.table))
    }

    /// A recent table: good enough to choose what to unmount, but no proof that nothing is mounted. Empty if it cannot be
    /// read. Blocks.
    fn read_recent(&self) -> Arc<MountTable> {
        let mut cache = self.cache();
        if cache.is_recent() {
            return Arc::clone(&cache.table);
        }
        self.read_locked(&mut cache, self.request()).unwrap_or_default()
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The table, and when the mounts in it were read, at the earliest.
    fn read_now(&self, cache: &mut Cache) -> Result<(MountTable, Instant), Fault> {
        let began = Instant::now();
        let Cache { source, table, .. } = cache;
        if let Some(known) = &mut cache.known {
            match source.read_by(|| known.read(&self.scope, table)) {
                Ok(read) => return Ok(read),
                Err(error) => tracing::debug!(%error, "Mounts cannot be read by ID: mountinfo is read"),
            }
        }
        let fault = |cause: Cause| Fault::new("read", &self.mountinfo, cause);
        let text = source.read().map_err(|error| fault(errno(&error).into()))?;
        let table = MountTable::parse(&text, &self.scope).map_err(|bad| {
            source.invalidate();
            tracing::warn!(%bad, "Mount table cannot be parsed");
            fault(Cause::Errno(nix::errno::Errno::EBADMSG))
        })?;
        Ok((table, began))
    }

    /// Unmounts everything below `dir`, but not `dir` itself. Blocks.
    pub fn unmount_all_below(&self, dir: &Path, effects: &Effects) -> Result<UnmountReport, StillMounted> {
        self.unmount_all(UnmountScope::Below(dir.to_owned()), effects)
    }

    /// Unmounts everything at or below `paths`. Blocks.
    pub fn unmount_all_at<P: AsRef<Path>>(
        &self,
        paths: &[P],
        effects: &Effects,
    ) -> Result<UnmountReport, StillMounted> {
        let paths = paths.iter().map(|path| path.as_ref().to_owned()).collect();
        self.unmount_all(UnmountScope::AtOrBelow(paths), effects)
    }

    fn unmount_all(&self, what: UnmountScope, effects: &Effects) -> Result<UnmountReport, StillMounted> {
        let mut rounds = self.start_unmount(what, effects);
        loop {
            match rounds.run_next(self.read(), effects) {
                ControlFlow::Continue(next) => rounds = next,
                ControlFlow::Break(done) => return done,
            }
        }
    }

    /// Starts to unmount everything in this scope, based on a recent table. Blocks.
    ///
    /// The table may be outdated because of other unmounts, and still be right about this scope.
    pub fn start_unmount(&self, what: UnmountScope, effects: &Effects) -> UnmountRounds {
        let mut rounds = UnmountRounds::new(what);
        rounds.unmount(&self.read_recent(), effects);
        rounds
    }
}

// === impl Cache ===

impl Cache {
    fn is_unchanged(&mut self) -> bool {
        let has_moved = self.known.as_ref().is_some_and(KnownMounts::may_have_moved);
        self.source.is_unchanged() && !has_moved
    }

    fn is_recent(&self) -> bool {
        self.read.is_some_and(|read| read.elapsed() < MAX_AGE)
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
    fn later_request_gets_a_later_read() {
        let (file, mounts) = mounts("");
        assert_eq!(mounts.read().unwrap().all().count(), 0);
        fs::write(file.path(), "7 1 0:5 / /no-such-root/v rw - tmpfs t rw\n").unwrap();
        assert_eq!(mounts.read().unwrap().all().count(), 1);
    }

    #[test]
    fn unreachable_mount_is_reported_as_still_mounted() {
        let (_file, mounts) = mounts("7 1 0:5 / /no-such-root/v rw - tmpfs t rw\n");
        let still = mounts
            .unmount_all_below(Path::new("/no-such-root"), &Effects::ungated())
            .unwrap_err();
        assert_eq!(
            still.faults,
            [Fault::new("unmount", "/no-such-root/v", Cause::StillMounted)]
        );
    }

    #[test]
    fn unreadable_table_is_an_error() {
        let (_file, unreadable) = mounts("nonsense\n");
        assert!(unreadable.unmount_all_at(&["/x"], &Effects::ungated()).is_err());
        assert!(Mounts::new("/no/such/mountinfo", "/").read().is_err());
    }
}
