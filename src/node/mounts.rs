//! What is mounted below the kubelet's directory, and how it is taken away.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
};

mod table;
mod unmount;

pub use table::{BadLine, Mount, MountTable, unescape};
pub use unmount::unmount;

/// Rounds of unmounting before something that keeps mounting is left to the next attempt.
const ROUNDS: usize = 16;

/// The mount table of one mount namespace, as far as it lies at or below one place.
///
/// The kernel writes the whole table for each reader, which costs a millisecond on a node with 700 mounts. So pods
/// that ask while a read is under way share the next one: a read that began after the question is a true answer.
#[derive(Debug)]
pub struct Mounts {
    mountinfo: PathBuf,
    scope: PathBuf,
    questions: AtomicU64,
    last: Mutex<Answer>,
}

#[derive(Debug, Default)]
struct Answer {
    /// Questions with a smaller number were asked before the read began.
    serves_below: u64,
    table: Arc<MountTable>,
}

/// What a round of unmounting did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnmountReport {
    /// How many mounts were unmounted by hand; propagation may have taken others along.
    pub unmounted: usize,
    /// How many a dry run kept back.
    pub withheld: usize,
    /// What was mounted when nothing was left to do.
    pub table: Arc<MountTable>,
}

/// What stayed mounted although it was tried, and what is known of the reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StillMounted {
    /// One for every mount that is left, with its path.
    pub faults: Vec<Fault>,
    /// What went well before.
    pub report: UnmountReport,
}

// === impl Mounts ===

impl Mounts {
    /// The mounts at or below `scope`, a path without symlinks, as `mountinfo` lists them.
    pub fn new(mountinfo: impl Into<PathBuf>, scope: impl Into<PathBuf>) -> Self {
        Self {
            mountinfo: mountinfo.into(),
            scope: scope.into(),
            questions: AtomicU64::new(0),
            last: Mutex::default(),
        }
    }

    /// The table as it is now, or was at some moment after the call. Blocks.
    pub fn read(&self) -> Result<Arc<MountTable>, Fault> {
        let question = self.questions.fetch_add(1, Ordering::SeqCst);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if question < last.serves_below {
            return Ok(last.table.clone());
        }
        let serves_below = self.questions.load(Ordering::SeqCst);
        let table = Arc::new(self.read_now()?);
        *last = Answer {
            serves_below,
            table: table.clone(),
        };
        Ok(table)
    }

    fn read_now(&self) -> Result<MountTable, Fault> {
        let fault = |cause: Cause| Fault::new("read", &self.mountinfo, cause);
        let text = fs::read(&self.mountinfo).map_err(|error| fault(errno(&error).into()))?;
        MountTable::parse(&text, &self.scope).map_err(|bad| {
            tracing::warn!(%bad, "The mount table cannot be understood");
            fault(Cause::Errno(rustix::io::Errno::BADMSG))
        })
    }

    /// Unmounts everything below `dir`, but not what is mounted on `dir` itself. Blocks.
    pub fn unmount_all_below(&self, dir: &Path, effects: &Effects) -> Result<UnmountReport, StillMounted> {
        self.unmount_where(|table| table.below(dir), effects)
    }

    /// Unmounts everything on one of `places` and below them. Blocks.
    pub fn unmount_all_at<P: AsRef<Path>>(
        &self,
        places: &[P],
        effects: &Effects,
    ) -> Result<UnmountReport, StillMounted> {
        self.unmount_where(|table| table.at_or_below(places), effects)
    }

    /// In rounds, each on a fresh table, because one unmount may take others along, or uncover a mount.
    fn unmount_where(
        &self,
        choose: impl Fn(&MountTable) -> Vec<Mount>,
        effects: &Effects,
    ) -> Result<UnmountReport, StillMounted> {
        let mut report = UnmountReport::default();
        let mut faults: HashMap<u64, Fault> = HashMap::new();
        let mut tried: Vec<u64> = Vec::new();
        for round in 0..=ROUNDS {
            report.table = match self.read() {
                Ok(table) => table,
                Err(fault) => {
                    return Err(StillMounted {
                        faults: vec![fault],
                        report,
                    });
                }
            };
            let left = choose(&report.table);
            let ids: Vec<u64> = left.iter().map(|mount| mount.id).collect();
            let stuck = ids == tried || round == ROUNDS || faults.values().any(Fault::is_held);
            if left.is_empty() {
                return Ok(report);
            }
            if stuck {
                let unexplained = |mount: &Mount| Fault::new("unmount", &mount.path, Cause::StillMounted);
                let faults = left
                    .iter()
                    .map(|m| faults.remove(&m.id).unwrap_or_else(|| unexplained(m)))
                    .collect();
                return Err(StillMounted { faults, report });
            }
            faults.clear();
            for mount in &left {
                match unmount(&mount.path, effects) {
                    Ok(Outcome::Done) => report.unmounted += 1,
                    Ok(Outcome::Nothing) => {}
                    Ok(Outcome::Withheld) => report.withheld += 1,
                    Err(fault) => drop(faults.insert(mount.id, fault)),
                }
            }
            if report.withheld > 0 {
                return Ok(report);
            }
            tried = ids;
        }
        Ok(report)
    }
}

/// The kernel's error number, `EIO` where the library made the error up.
pub(crate) fn errno(error: &std::io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(error).unwrap_or(rustix::io::Errno::IO)
}

#[cfg(test)]
mod tests {
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
