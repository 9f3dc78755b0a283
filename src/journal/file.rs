//! The journal's file: created, inspected, opened and written.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use nix::fcntl::OFlag;
use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable as _, StorageBackend, TableDefinition,
    TableError,
};
use serde::de::DeserializeOwned;

use super::{
    approval::Approval,
    entries::{LastActive, MaybeActive, PauseRecord, SeenPod, StoredObservation, WatchState},
    error::{self, JournalError, Kind, failed},
    header::{Header, Unusable},
    overlay::Overlay,
    row::{APPROVALS, HEADER, KUBELET, LAST_ACTIVE, NODE_UID, PAUSE, Row, Table, UNSTAGED, WATCH},
};
use crate::{
    model::pod::PodUid,
    node::{identity::Identity, kubelet_process::flags::KubeletFlags},
    teardown::journal::PodEntry,
};

/// File in the state directory.
pub const FILE: &str = "journal.redb";
pub(super) const PODS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("pods-v1");
/// One small row for each pod. Older agents ignore the table.
pub(super) const SEEN: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("seen-v1");
/// One small row for each observed termination. Older agents ignore the table.
pub(super) const OBSERVATIONS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("observations-v1");
pub(super) const NODE: TableDefinition<'_, &str, &str> = TableDefinition::new("node-v1");
/// The journal has a few hundred bytes for each terminating pod. The library's default is a gigabyte.
const CACHE_BYTES: usize = 256 << 10;

/// Content of the journal's path.
pub(super) enum JournalFile {
    /// Nothing.
    Nothing,
    /// A usable journal.
    Journal(Box<Contents>),
    /// Something to quarantine.
    Unusable(Unusable),
}

/// Content of a journal.
#[derive(Debug, Clone, Default)]
pub(super) struct Contents {
    pub header: Option<Header>,
    pub node_uid: Option<String>,
    pub watch: WatchState,
    pub paused: Option<PauseRecord>,
    pub approvals: Vec<Approval>,
    pub last_active: Option<LastActive>,
    pub kubelet: Option<KubeletFlags>,
    pub maybe_active_file_systems: MaybeActive,
    pub pods: HashMap<PodUid, PodEntry>,
    pub seen: BTreeMap<PodUid, SeenPod>,
    pub observations: BTreeMap<PodUid, StoredObservation>,
}

/// Inspects the path without changes. The whole file is checked before it is opened, and what the library writes meanwhile stays in
/// memory: to open it repairs it, and an unrepairable file must stay unchanged. No length is too long: the agent may have written it.
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
    if file.len() == 0 {
        return damaged("it is empty");
    }
    let mut open = File::options();
    // Does not block on a pipe that was created meanwhile.
    let flags = OFlag::O_NONBLOCK.bits();
    let opened = open.read(true).custom_flags(flags).open(path);
    let (overlay, disk) = Overlay::new(opened.map_err(error::io("read"))?, file.len());
    let contents = parse(overlay, machine);
    if let Some(error) = disk.get() {
        return Err(error::io("read")(error));
    }
    Ok(contents.map_or_else(JournalFile::Unusable, |contents| {
        JournalFile::Journal(Box::new(contents))
    }))
}

/// The content of this file, if all of it is undamaged.
pub(super) fn parse(file: impl StorageBackend, machine: &Identity) -> Result<Contents, Unusable> {
    // The library checks little of what it reads, and may panic. It shares no state.
    let read = AssertUnwindSafe(|| {
        let mut database = builder().create_with_backend(file).map_err(failed("open"))?;
        // A damaged page would look like a shorter list of pods.
        match database.check_integrity().map_err(failed("read"))? {
            true => read(&database, machine),
            false => Err(JournalError::damaged().into()),
        }
    });
    catch_unwind(read).unwrap_or_else(|_| Err(JournalError::damaged().into()))
}

/// The content of a database. An unreadable row makes it unusable.
pub(super) fn read(database: &impl ReadableDatabase, machine: &Identity) -> Result<Contents, Unusable> {
    let read = database.begin_read().map_err(failed("read"))?;
    let mut contents = Contents::default();
    match read.open_table(NODE) {
        Err(TableError::TableDoesNotExist(_)) => {}
        node => {
            let node = node.map_err(failed("read"))?;
            let get = |key| -> Result<Option<String>, JournalError> {
                let value = node.get(key).map_err(failed("read"))?;
                Ok(value.map(|value| value.value().to_owned()))
            };
            // Checked first: rows of another format must not be read.
            contents.header = Header::read(get(HEADER)?.as_deref(), machine)?;
            contents.node_uid = get(NODE_UID)?;
            contents.watch = node_row(WATCH, get(WATCH)?)?;
            contents.paused = node_row(PAUSE, get(PAUSE)?)?;
            contents.approvals = node_row(APPROVALS, get(APPROVALS)?)?;
            contents.last_active = node_row(LAST_ACTIVE, get(LAST_ACTIVE)?)?;
            contents.kubelet = node_row(KUBELET, get(KUBELET)?)?;
            contents.maybe_active_file_systems = node_row(UNSTAGED, get(UNSTAGED)?)?;
        }
    }
    contents.pods = pod_rows(&read, PODS, Err)?;
    contents.seen = pod_rows(&read, SEEN, Err)?;
    // No termination depends on them, and a later version may write other ones.
    contents.observations = pod_rows(&read, OBSERVATIONS, |_| Ok(()))?;
    Ok(contents)
}

fn node_row<T: DeserializeOwned + Default>(key: &str, row: Option<String>) -> Result<T, Unusable> {
    let row = row.map(|row| serde_json::from_str(&row)).transpose();
    let row = row.map_err(|error| Unusable::Damaged(format!("its row {key}: {error}")))?;
    Ok(row.unwrap_or_default())
}

/// The rows of a table. `on_damaged` decides whether a row that cannot be read is left out.
fn pod_rows<T: DeserializeOwned, Rows: FromIterator<(PodUid, T)>>(
    read: &ReadTransaction,
    table: TableDefinition<'_, &str, &[u8]>,
    on_damaged: fn(Unusable) -> Result<(), Unusable>,
) -> Result<Rows, Unusable> {
    let rows = match read.open_table(table) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(Rows::from_iter([])),
        rows => rows.map_err(failed("read"))?,
    };
    let rows = rows.iter().map_err(failed("read"))?;
    let read = rows.map(|row| {
        let (uid, bytes) = row.map_err(failed("read"))?;
        let damaged = |error| Unusable::Damaged(format!("its row of the pod with UID {}: {error}", uid.value()));
        match serde_json::from_slice(bytes.value()) {
            Ok(row) => Ok(Some((PodUid::from(uid.value()), row))),
            Err(error) => on_damaged(damaged(error)).map(|()| None),
        }
    });
    read.filter_map(Result::transpose).collect()
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
    {
        let mut terminations = transaction.open_table(PODS).map_err(failed("write"))?;
        let mut seen = transaction.open_table(SEEN).map_err(failed("write"))?;
        let mut observations = transaction.open_table(OBSERVATIONS).map_err(failed("write"))?;
        let mut node = transaction.open_table(NODE).map_err(failed("write"))?;
        if whole {
            terminations.retain(|_, _| false).map_err(failed("write"))?;
            seen.retain(|_, _| false).map_err(failed("write"))?;
            observations.retain(|_, _| false).map_err(failed("write"))?;
        }
        for row in rows {
            match row {
                Row::Pod(table, uid, bytes) => {
                    let table = match table {
                        Table::Terminations => &mut terminations,
                        Table::SeenPod => &mut seen,
                        Table::Observation => &mut observations,
                    };
                    match bytes {
                        Some(bytes) => table.insert(uid.as_str(), bytes.as_slice()),
                        None => table.remove(uid.as_str()),
                    }
                    .map_err(failed("write"))?;
                }
                Row::Node(key, value) => {
                    node.insert(*key, value.as_str()).map_err(failed("write"))?;
                }
            }
        }
    }
    transaction.commit().map_err(failed("write"))
}
