//! Reads the journal without changes, for `check`.

use std::path::Path;

use super::{
    contents::NodeRow,
    error::{JournalError, Unusable},
    file::{self, FILE, JournalFile},
    node_file,
};
use crate::node::{
    identity::Identity,
    lock::{DirLock, LockError},
};

pub use super::quarantine::list as quarantined;

/// Result of a read.
#[derive(Debug, PartialEq, Eq)]
pub enum Peek {
    /// An agent has it open.
    InUse,
    /// It can be used, and has this about the node; the default if it is new or does not exist.
    Good(Box<NodeRow>),
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
    // Checked first: a file that is being written looks damaged.
    if matches!(DirLock::acquire(dir, Path::new("/")), Err(LockError::Taken { .. })) {
        return Ok(Peek::InUse);
    }
    Ok(match file::inspect(&dir.join(FILE), machine)? {
        JournalFile::Nothing => Peek::Good(Box::default()),
        JournalFile::Journal(contents) => Peek::Good(Box::new(contents.node)),
        JournalFile::Unusable(reason) => Peek::Unusable {
            node_uid: match reason {
                Unusable::OtherNode(_) => None,
                _ => node_file::read(dir, machine).node_uid,
            },
            reason,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::journal::Journal;

    fn uid_of(dir: &Path) -> Option<String> {
        match peek(dir, &Identity::default()) {
            Ok(Peek::Good(node)) => node.node_uid,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn peek_finds_the_node_even_after_a_crash_and_changes_nothing() {
        let here = Identity::default();
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(uid_of(dir.path()), None);
        assert!(!dir.path().join(FILE).exists());

        let journal = Journal::open(dir.path(), &here).unwrap();
        journal.set_node_uid("u1").await.unwrap();
        assert_eq!(peek(dir.path(), &here).unwrap(), Peek::InUse);

        // The copy is like that of a killed agent: it was not closed.
        let crashed = tempfile::tempdir().unwrap();
        let file = crashed.path().join(FILE);
        fs::copy(dir.path().join(FILE), &file).unwrap();
        let before = fs::read(&file).unwrap();
        assert_eq!(uid_of(crashed.path()).as_deref(), Some("u1"));
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
