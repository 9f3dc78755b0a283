//! Mounts below the kubelet's root directory, and their removal.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use nix::errno::Errno;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::fault::{Fault, errno};

pub(super) mod cover;
pub(super) mod hanging;
pub(super) mod mount;
mod rounds;
mod source;
mod strays;
pub(super) mod table;
mod unmount;

pub use cover::Cover;
pub use hanging::{Hanging, Mounted};
pub use mount::{BadLine, Mount, MountedOn};
pub use rounds::hanging;
pub use strays::Strays;
pub use table::MountTable;
pub use unmount::unmount;

/// Maximum age of a table that is good enough to choose what to unmount.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The mount table of one mount namespace, restricted to a scope.
///
/// The kernel writes the whole table for each reader, which takes a millisecond with 700 mounts. So requests made before a read
/// share its result: a read that started after the request is current for it.
#[derive(Debug)]
pub struct Mounts {
    mountinfo: PathBuf,
    scope: PathBuf,
    requests: AtomicU64,
    /// Locked while the table is read.
    cache: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    /// Requests with a smaller number were made before the read.
    current_below: u64,
    /// When the table was read, at the earliest.
    read: Option<Instant>,
    table: Arc<MountTable>,
}

// === impl Mounts ===

impl Mounts {
    /// The mounts at or below `scope`, a path without symlinks, from `mountinfo`.
    pub fn new(mountinfo: impl Into<PathBuf>, scope: impl Into<PathBuf>) -> Self {
        Self {
            mountinfo: mountinfo.into(),
            cache: Mutex::default(),
            scope: scope.into(),
            requests: AtomicU64::new(0),
        }
    }

    /// The table at a moment after this call. Blocks.
    pub fn read(&self) -> Result<Arc<MountTable>, Fault> {
        let request = self.requests.fetch_add(1, Ordering::SeqCst);
        let mut cache = self.cache.lock();
        if request >= cache.current_below {
            let (current_below, began) = (self.requests.load(Ordering::SeqCst), Instant::now());
            cache.table = Arc::new(self.read_now()?);
            (cache.read, cache.current_below) = (Some(began), current_below);
        }
        Ok(Arc::clone(&cache.table))
    }

    /// A recent table: good enough to choose what to unmount, but no proof that nothing is mounted. Empty if it cannot be
    /// read. Blocks.
    fn read_recent(&self) -> Arc<MountTable> {
        let cache = self.cache.lock();
        if cache.read.is_some_and(|read| read.elapsed() < MAX_AGE) {
            return Arc::clone(&cache.table);
        }
        drop(cache);
        self.read().unwrap_or_default()
    }

    fn read_now(&self) -> Result<MountTable, Fault> {
        let fault = |errno| Fault::new("read", &self.mountinfo, errno);
        let text = source::read(&self.mountinfo).map_err(|error| fault(errno(&error)))?;
        MountTable::parse(&text, &self.scope).map_err(|bad| {
            tracing::warn!(%bad, "Mount table cannot be parsed");
            fault(Errno::EBADMSG)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::node::{effects::Effects, fault::Cause};

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
        assert_eq!(still, [Fault::new("unmount", "/no-such-root/v", Cause::StillMounted)]);
    }

    #[test]
    fn unreadable_table_is_an_error() {
        let (_file, unreadable) = mounts("nonsense\n");
        assert!(unreadable.unmount_all_at(&["/x"], &Effects::ungated()).is_err());
        assert!(Mounts::new("/no/such/mountinfo", "/").read().is_err());
    }
}
