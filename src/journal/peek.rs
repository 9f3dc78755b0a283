//! A look at the journal that changes nothing on the disk, for `check`.

use std::{fs, path::Path};

use redb::{
    Database, DatabaseError, ReadOnlyDatabase, ReadableDatabase, StorageBackend as _, TableError,
    backends::InMemoryBackend,
};

use super::{
    FILE, JournalError, failed,
    file::{NODE, NODE_UID},
};

/// What is found.
#[derive(Debug, PartialEq, Eq)]
pub enum Peek {
    /// An agent has it open.
    InUse,
    /// UID of the Node that it was made for; `None` if it is new or not there yet.
    Node(Option<String>),
}

/// Looks into the journal in `dir`.
pub fn peek(dir: &Path) -> Result<Peek, JournalError> {
    let path = dir.join(FILE);
    if !fs::exists(&path).map_err(failed("look"))? {
        return Ok(Peek::Node(None));
    }
    match ReadOnlyDatabase::open(&path) {
        Ok(database) => node_uid(&database).map(Peek::Node),
        Err(DatabaseError::DatabaseAlreadyOpen) => Ok(Peek::InUse),
        // Its agent was killed. The next one repairs it; here a copy in memory is repaired.
        Err(DatabaseError::RepairAborted) => {
            let bytes = fs::read(&path).map_err(failed("read"))?;
            let copy = InMemoryBackend::new();
            copy.set_len(bytes.len() as u64)
                .and_then(|()| copy.write(0, &bytes))
                .map_err(failed("copy"))?;
            let database = Database::builder().create_with_backend(copy);
            node_uid(&database.map_err(failed("repair"))?).map(Peek::Node)
        }
        Err(error) => Err(failed("open")(error)),
    }
}

fn node_uid(database: &impl ReadableDatabase) -> Result<Option<String>, JournalError> {
    let read = database.begin_read().map_err(failed("read"))?;
    let node = match read.open_table(NODE) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(None),
        node => node.map_err(failed("read"))?,
    };
    let uid = node.get(NODE_UID).map_err(failed("read"))?;
    Ok(uid.map(|uid| uid.value().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;

    #[tokio::test]
    async fn a_look_finds_the_node_also_after_a_crash_and_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(peek(dir.path()).unwrap(), Peek::Node(None));
        assert!(!dir.path().join(FILE).exists());

        let journal = Journal::open(dir.path()).unwrap();
        journal.set_node_uid("u1").await.unwrap();
        assert_eq!(peek(dir.path()).unwrap(), Peek::InUse);

        // The copy is what a killed agent leaves: it was never closed.
        let crashed = tempfile::tempdir().unwrap();
        let file = crashed.path().join(FILE);
        fs::copy(dir.path().join(FILE), &file).unwrap();
        let before = fs::read(&file).unwrap();
        assert_eq!(peek(crashed.path()).unwrap(), Peek::Node(Some("u1".to_owned())));
        assert_eq!(fs::read(&file).unwrap(), before);

        fs::write(&file, "no database").unwrap();
        assert!(peek(crashed.path()).is_err());
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(peek(crashed.path()).is_err());
    }
}
