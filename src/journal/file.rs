//! The journal's file: how it is made, looked into, opened and written.

use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable as _, StorageBackend as _, TableDefinition, TableError,
    backends::InMemoryBackend,
};
use rustix::fs::OFlags;
use serde::de::DeserializeOwned;

use super::{
    JournalError, PodEntry, WatchMemory,
    aside::Reason,
    error::{self, Kind, failed},
    header::Header,
    kubelet,
    paused::Paused,
    seen::Seen,
    turn::OwnTurn,
    writer::{Row, Table},
};
use crate::{
    model::pod::PodUid,
    node::{identity::Identity, kubelet_process::start::KubeletStart},
};

pub(super) const PODS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("pods-v1");
/// One small row for each pod; agents from before it was there leave it alone.
pub(super) const SEEN: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("seen-v1");
pub(super) const NODE: TableDefinition<'_, &str, &str> = TableDefinition::new("node-v1");
pub(super) const NODE_UID: &str = "uid";
pub(super) const WATCH: &str = "watch";
pub(super) const HEADER: &str = "header";
pub(super) const PAUSE: &str = "paused";
pub(super) const TURN: &str = "turn";
pub(super) const KUBELET: &str = "kubelet";
/// The journal holds a few hundred bytes per ending pod; the library's own default is a gigabyte.
const CACHE_BYTES: usize = 256 << 10;
/// A journal is far smaller. What is longer is none, and need not be read to know that.
const LONGEST: u64 = 256 << 20;

/// What is where the journal should be.
pub(super) enum Found {
    /// Nothing.
    Nothing,
    /// A journal of ours, with the bytes that it is made of.
    Journal(Box<Contents>, Vec<u8>),
    /// Something that cannot be used.
    Useless(Reason),
}

/// All that is in a journal.
#[derive(Debug, Clone, Default)]
pub(super) struct Contents {
    pub header: Option<Header>,
    pub node_uid: Option<String>,
    pub watch: WatchMemory,
    pub paused: Option<Paused>,
    pub turn: Option<OwnTurn>,
    pub kubelet: Option<KubeletStart>,
    pub pods: HashMap<PodUid, PodEntry>,
    pub seen: BTreeMap<PodUid, Seen>,
    /// Entries that cannot be read, as they are.
    pub unreadable: Vec<(Table, String, Vec<u8>)>,
    /// The database was damaged, and went back to what was whole.
    pub repaired: bool,
}

/// Looks at what is there, and changes nothing of it. All of it is checked in a copy in memory before the file is opened:
/// opening repairs, and what cannot be repaired must stay as it was found.
pub(super) fn look(path: &Path, machine: &Identity) -> Result<Found, JournalError> {
    let file = match fs::metadata(path) {
        Ok(file) => file,
        // A link that leads nowhere: a disk that is not mounted yet may hold the journal.
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(path).is_ok() => {
            return Err(JournalError::new(
                "open",
                "it is a link that leads nowhere",
                Kind::Setting,
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error::io("look at")(error)),
    };
    let damaged = |cause: &str| Ok(Found::Useless(Reason::Damaged(cause.to_owned())));
    if !file.is_file() {
        return damaged("it is no file");
    }
    match file.len() {
        0 => return damaged("it is empty"),
        len if len > LONGEST => return damaged(&format!("it is {len} bytes long")),
        _ => {}
    }
    let mut bytes = Vec::new();
    let mut open = File::options();
    // Should something else than a file have taken its place meanwhile, nobody waits for it.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = open.read(true).custom_flags(flags).open(path);
    file.and_then(|file| file.take(LONGEST).read_to_end(&mut bytes))
        .map_err(error::io("read"))?;
    match understand(&bytes, machine) {
        Ok(Ok(contents)) => Ok(Found::Journal(Box::new(contents), bytes)),
        Ok(Err(reason)) => Ok(Found::Useless(reason)),
        Err(error) => Ok(Found::Useless(Reason::Damaged(error.cause))),
    }
}

/// What these bytes hold, if every one of them that counts is as it was written.
pub(super) fn understand(bytes: &[u8], machine: &Identity) -> Result<Result<Contents, Reason>, JournalError> {
    // The library checks little of what it reads, and panics on what cannot be. Nothing is shared with it.
    let read = AssertUnwindSafe(|| {
        let copy = InMemoryBackend::new();
        copy.set_len(bytes.len() as u64)
            .and_then(|()| copy.write(0, bytes))
            .map_err(error::io("copy"))?;
        let mut database = Database::builder().create_with_backend(copy).map_err(failed("open"))?;
        // A page that is wrong in itself would be taken for a shorter list of pods.
        let whole = database.check_integrity().map_err(failed("read"))?;
        read(&database, machine).map(|contents| {
            contents.map(|contents| Contents {
                repaired: !whole,
                ..contents
            })
        })
    });
    catch_unwind(read).unwrap_or_else(|_| Err(JournalError::damaged()))
}

/// All that is in it, or why it is not ours to use.
pub(super) fn read(
    database: &impl ReadableDatabase,
    machine: &Identity,
) -> Result<Result<Contents, Reason>, JournalError> {
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
            // First: nothing else of another format may be read as if it were ours.
            contents.header = match Header::read(get(HEADER)?.as_deref(), machine) {
                Ok(header) => header,
                Err(foreign) => return Ok(Err(foreign.into())),
            };
            contents.node_uid = get(NODE_UID)?;
            if let Some(watch) = get(WATCH)? {
                contents.watch = match serde_json::from_str(&watch) {
                    Ok(watch) => watch,
                    Err(error) => return Ok(Err(Reason::Damaged(format!("what the watch knew: {error}")))),
                };
            }
            contents.paused = get(PAUSE)?.and_then(|told| Paused::read(&told));
            contents.turn = get(TURN)?.and_then(|told| OwnTurn::read(&told));
            contents.kubelet = get(KUBELET)?.and_then(|value| kubelet::read(&value));
        }
    }
    let Contents {
        pods, seen, unreadable, ..
    } = &mut contents;
    each(&read, Table::Ends, unreadable, |uid, entry| {
        pods.insert(uid, entry);
    })?;
    each(&read, Table::Seen, unreadable, |uid, row| {
        seen.insert(uid, row);
    })?;
    Ok(Ok(contents))
}

/// Takes each row of a table that can be read.
fn each<T: DeserializeOwned>(
    read: &ReadTransaction,
    table: Table,
    unreadable: &mut Vec<(Table, String, Vec<u8>)>,
    mut take: impl FnMut(PodUid, T),
) -> Result<(), JournalError> {
    let rows = match read.open_table(table.definition()) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        rows => rows.map_err(failed("read"))?,
    };
    for row in rows.iter().map_err(failed("read"))? {
        let (uid, bytes) = row.map_err(failed("read"))?;
        match serde_json::from_slice(bytes.value()) {
            Ok(row) => take(PodUid::from(uid.value()), row),
            Err(_) => unreadable.push((table, uid.value().to_owned(), bytes.value().to_owned())),
        }
    }
    Ok(())
}

/// Opens the journal at `path`, which is there.
pub(super) fn open(path: &Path) -> Result<Database, JournalError> {
    let open = AssertUnwindSafe(|| {
        Database::builder()
            .set_cache_size(CACHE_BYTES)
            .open(path)
            .map_err(failed("open"))
    });
    catch_unwind(open).unwrap_or_else(|_| Err(JournalError::damaged()))
}

/// Makes a journal that holds these rows at `new`, where a crash may have left half of one. It is a journal once it is
/// given its name: after a crash in between, half of one would open no more.
pub(super) fn make(new: &Path, rows: &[Row]) -> Result<(), JournalError> {
    match fs::remove_file(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error::io("make")(error)),
        _ => {}
    }
    let file = create(new).map_err(error::io("make"))?;
    let made = Database::builder()
        .create_file(file)
        .map_err(failed("make"))
        .and_then(|database| commit(&database, true, rows));
    if made.is_err() {
        // On a full disk every byte counts.
        fs::remove_file(new).ok();
    }
    made
}

/// A new file that names pods, and so is nobody else's to read.
pub(super) fn create(path: &Path) -> io::Result<File> {
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// What was made or named in `dir` is there after a crash.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir).and_then(|dir| dir.sync_all())
}

/// Writes rows; as all there is, if `whole`.
pub(super) fn commit(database: &Database, whole: bool, rows: &[Row]) -> Result<(), JournalError> {
    if rows.is_empty() && !whole {
        return Ok(());
    }
    let transaction = database.begin_write().map_err(failed("write"))?;
    {
        let mut ends = transaction.open_table(PODS).map_err(failed("write"))?;
        let mut seen = transaction.open_table(SEEN).map_err(failed("write"))?;
        let mut node = transaction.open_table(NODE).map_err(failed("write"))?;
        if whole {
            ends.retain(|_, _| false).map_err(failed("write"))?;
            seen.retain(|_, _| false).map_err(failed("write"))?;
        }
        for row in rows {
            match row {
                Row::Pod(table, uid, bytes) => {
                    let table = match table {
                        Table::Ends => &mut ends,
                        Table::Seen => &mut seen,
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

// === impl Table ===

impl Table {
    fn definition(self) -> TableDefinition<'static, &'static str, &'static [u8]> {
        match self {
            Self::Ends => PODS,
            Self::Seen => SEEN,
        }
    }
}
