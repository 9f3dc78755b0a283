//! Reads the journal without changes, for `check`.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use redb::{DatabaseError, ReadOnlyDatabase};

use super::{
    error::JournalError,
    file::{self, FILE, JournalFile},
    header::Unusable,
    node_file, quarantine,
};
use crate::node::{
    identity::Identity,
    kubelet_process::flags::KubeletFlags,
    lock::{DirLock, LockError},
};

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Peek {
    /// An agent has it open.
    InUse,
    /// It can be used.
    Good {
        /// UID of its Node; `None` if it is new or does not exist.
        node_uid: Option<String>,
    },
    /// The next agent quarantines and replaces it.
    Unusable {
        /// Why.
        reason: Unusable,
        /// UID of the Node, which is known all the same.
        node_uid: Option<String>,
    },
}

/// Reads the journal in `dir`.
pub fn peek(dir: &Path, machine: &Identity) -> Result<Peek, JournalError> {
    let path = dir.join(FILE);
    // Checked first: a file that is being written looks damaged.
    if is_in_use(dir, &path) {
        return Ok(Peek::InUse);
    }
    Ok(match file::inspect(&path, machine)? {
        JournalFile::Nothing => Peek::Good { node_uid: None },
        JournalFile::Journal(contents) => Peek::Good {
            node_uid: contents.node_uid,
        },
        JournalFile::Unusable(reason) => Peek::Unusable {
            node_uid: match reason {
                Unusable::OtherNode(_) => None,
                _ => node_file::read(dir, machine).node_uid,
            },
            reason,
        },
    })
}

/// Flags of the kubelet that was last seen, from the journal in `dir`; `None` if it is in use or cannot be read.
pub fn kubelet(dir: &Path, machine: &Identity) -> Option<KubeletFlags> {
    let path = dir.join(FILE);
    if is_in_use(dir, &path) {
        return None;
    }
    match file::inspect(&path, machine) {
        Ok(JournalFile::Journal(contents)) => contents.kubelet,
        Ok(JournalFile::Nothing | JournalFile::Unusable(_)) | Err(_) => None,
    }
}

fn is_in_use(dir: &Path, path: &Path) -> bool {
    if let Err(LockError::Taken { .. }) = DirLock::acquire(dir, Path::new("/")).map(drop) {
        return true;
    }
    // Older agents lock only the file. The library may panic on a damaged one.
    let open = AssertUnwindSafe(|| matches!(ReadOnlyDatabase::open(path), Err(DatabaseError::DatabaseAlreadyOpen)));
    path.is_file() && catch_unwind(open).unwrap_or(false)
}

/// The quarantined journals in `dir`.
pub fn quarantined(dir: &Path) -> Vec<PathBuf> {
    quarantine::list(dir)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::journal::Journal;

    fn good(node_uid: Option<&str>) -> Peek {
        Peek::Good {
            node_uid: node_uid.map(str::to_owned),
        }
    }

    #[tokio::test]
    async fn peek_finds_the_node_even_after_a_crash_and_changes_nothing() {
        let here = Identity::default();
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(peek(dir.path(), &here).unwrap(), good(None));
        assert!(!dir.path().join(FILE).exists());

        let journal = Journal::open(dir.path(), &here).unwrap();
        journal.set_node_uid("u1").await.unwrap();
        assert_eq!(peek(dir.path(), &here).unwrap(), Peek::InUse);

        // The copy is like that of a killed agent: it was not closed.
        let crashed = tempfile::tempdir().unwrap();
        let file = crashed.path().join(FILE);
        fs::copy(dir.path().join(FILE), &file).unwrap();
        let before = fs::read(&file).unwrap();
        assert_eq!(peek(crashed.path(), &here).unwrap(), good(Some("u1")));
        assert_eq!(fs::read(&file).unwrap(), before);

        let useless = |dir: &Path| {
            matches!(
                peek(dir, &here),
                Ok(Peek::Unusable {
                    reason: Unusable::Damaged(_),
                    ..
                })
            )
        };
        fs::write(&file, "no database").unwrap();
        assert!(useless(crashed.path()));
        assert_eq!(fs::read(&file).unwrap(), b"no database");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(useless(crashed.path()));
        assert!(quarantined(crashed.path()).is_empty());
    }
}
