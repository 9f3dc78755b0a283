//! The journal's file: created, inspected, opened and written.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable as _, StorageBackend as _, TableError,
    backends::InMemoryBackend,
};
use serde::de::DeserializeOwned;

use super::{
    contents::{Contents, NodeRow, Row, StoredObservation, Table},
    error::{self, JournalError, Kind, Unusable, failed},
};
use crate::{model::pod::PodUid, node::identity::Identity};

/// File in the state directory.
pub const FILE: &str = "journal.redb";
/// The journal has a few hundred bytes for each terminating pod. The library's default is a gigabyte.
const CACHE_BYTES: usize = 256 << 10;
/// No agent writes more: most are observations, which are limited to 8 MiB, and the file may be several times as long.
const MAX_BYTES: u64 = 128 << 20;

/// Content of the journal's path.
pub(super) enum JournalFile {
    /// Nothing.
    Nothing,
    /// A usable journal.
    Journal(Box<Contents>),
    /// Something to quarantine.
    Unusable(Unusable),
}

/// Inspects the path without changes: a copy in memory is checked. To open the file would repair it, and an unrepairable file must
/// stay unchanged.
pub(super) fn inspect(path: &Path, machine: &Identity) -> Result<JournalFile, JournalError> {
    let file = match fs::metadata(path) {
        Ok(file) => file,
        // A dangling link: the journal may be on a disk that is not mounted yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_ok() => {
            return Err(JournalError::new("open", "it is a dangling symlink", Kind::Setting));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(JournalFile::Nothing),
        Err(error) => return Err(error::io("stat")(error)),
    };
    let damaged = |cause: &str| Ok(JournalFile::Unusable(Unusable::Damaged(cause.to_owned())));
    if !file.is_file() {
        return damaged("it is not a regular file");
    }
    match file.len() {
        0 => return damaged("it is empty"),
        MAX_BYTES.. => return damaged("it is longer than any journal"),
        _ => {}
    }
    let bytes = fs::read(path).map_err(error::io("read"))?;
    Ok(parse(&bytes, machine).map_or_else(JournalFile::Unusable, |contents| {
        JournalFile::Journal(Box::new(contents))
    }))
}

/// The content of these bytes on this machine, if all of them are undamaged.
pub(super) fn parse(bytes: &[u8], machine: &Identity) -> Result<Contents, Unusable> {
    // The library checks little of what it reads, and may panic. It shares no state.
    let read = AssertUnwindSafe(|| {
        let copy = InMemoryBackend::new();
        copy.set_len(bytes.len() as u64)
            .and_then(|()| copy.write(0, bytes))
            .map_err(error::io("copy"))?;
        let mut database = builder().create_with_backend(copy).map_err(failed("open"))?;
        // A damaged page would look like a shorter list of pods.
        match database.check_integrity().map_err(failed("read"))? {
            true => read(&database, machine),
            false => Err(JournalError::damaged().into()),
        }
    });
    catch_unwind(read).unwrap_or_else(|_| Err(JournalError::damaged().into()))
}

/// The content of a database on this machine. An unreadable row makes it unusable.
pub(super) fn read(database: &impl ReadableDatabase, machine: &Identity) -> Result<Contents, Unusable> {
    let read = database.begin_read().map_err(failed("read"))?;
    if read.list_tables().map_err(failed("read"))?.next().is_none() {
        return Ok(Contents::default().on(machine));
    }
    // Checked first: rows of another format must not be read.
    let header = rows(&read, Table::Node)?.pop();
    let (_, header) = header.ok_or_else(|| Unusable::Damaged("it has no row of the node".to_owned()))?;
    let observations = rows(&read, Table::Observations)?.into_iter();
    let contents = Contents {
        node: NodeRow::read(&header, machine)?,
        pods: pod_rows(&read, Table::Terminations)?,
        seen: pod_rows(&read, Table::SeenPods)?,
        // No termination depends on them, and a later version may write other ones. Their sizes count for the limit.
        observations: observations
            .filter_map(|(uid, bytes)| {
                let read: StoredObservation = serde_json::from_slice(&bytes).ok()?;
                let stored = StoredObservation::new(read.observation, read.in_progress);
                Some((uid.as_str().into(), stored))
            })
            .collect(),
    };
    Ok(contents.on(machine))
}

fn pod_rows<T: DeserializeOwned, Rows: FromIterator<(PodUid, T)>>(
    read: &ReadTransaction,
    table: Table,
) -> Result<Rows, Unusable> {
    let parse = |(uid, bytes): (String, Vec<u8>)| match serde_json::from_slice(&bytes) {
        Ok(row) => Ok((PodUid::from(uid.as_str()), row)),
        Err(error) => Err(Unusable::Damaged(format!("its row of the pod with UID {uid}: {error}"))),
    };
    rows(read, table)?.into_iter().map(parse).collect()
}

/// The keys and values of a table.
fn rows(read: &ReadTransaction, table: Table) -> Result<Vec<(String, Vec<u8>)>, JournalError> {
    let table = match read.open_table(table.definition()) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        table => table.map_err(failed("read"))?,
    };
    let rows = table.iter().map_err(failed("read"))?.map(|row| {
        let (key, value) = row.map_err(failed("read"))?;
        Ok((key.value().to_owned(), value.value().to_vec()))
    });
    rows.collect()
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Opens the existing journal at `path`.
pub(super) fn open(path: &Path) -> Result<Database, JournalError> {
    let open = AssertUnwindSafe(|| builder().open(path).map_err(failed("open")));
    catch_unwind(open).unwrap_or_else(|_| Err(JournalError::damaged()))
}

/// Creates a journal with these rows at `new`, replacing a partial one of a crash. It is renamed when it is complete: a partial
/// journal cannot be opened.
pub(super) fn create_journal(new: &Path, rows: &[Row]) -> Result<(), JournalError> {
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error::io("create")(error)),
        _ => {}
    }
    let file = create(new).map_err(error::io("create"))?;
    let made = builder()
        .create_file(file)
        .map_err(failed("create"))
        .and_then(|database| commit(&database, true, rows));
    if made.is_err() {
        // On a full disk every byte counts.
        fs::remove_file(new).ok();
    }
    made
}

/// Creates a file that only its owner can read: it names pods.
pub(super) fn create(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Makes names in `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all())
}

/// Writes rows. With `whole` they replace all others.
pub(super) fn commit(database: &Database, whole: bool, rows: &[Row]) -> Result<(), JournalError> {
    if rows.is_empty() && !whole {
        return Ok(());
    }
    let transaction = database.begin_write().map_err(failed("write"))?;
    for table in Table::ALL {
        let mut written = transaction.open_table(table.definition()).map_err(failed("write"))?;
        if whole {
            written.retain(|_, _| false).map_err(failed("write"))?;
        }
        for row in rows.iter().filter(|row| row.table == table) {
            match &row.value {
                Some(value) => written.insert(row.key.as_str(), value.as_slice()),
                None => written.remove(row.key.as_str()),
            }
            .map_err(failed("write"))?;
        }
    }
    transaction.commit().map_err(failed("write"))
}
