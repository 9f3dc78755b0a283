//! The journal's file: how it is made, opened and read.

use std::{
    collections::HashMap,
    fs::{self, File},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::{JournalError, State, Trouble, WatchMemory, failed};
use crate::pod::PodUid;

pub(super) const PODS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("pods-v1");
pub(super) const NODE: TableDefinition<'_, &str, &str> = TableDefinition::new("node-v1");
pub(super) const NODE_UID: &str = "uid";
pub(super) const WATCH: &str = "watch";
/// The journal holds a few hundred bytes per ending pod; the library's own default is a gigabyte.
const CACHE_BYTES: usize = 256 << 10;

/// Opens the journal in the file `path`, and makes it if there is none.
pub(super) fn open(path: &Path) -> Result<Database, JournalError> {
    // A file without contents is one that never was a journal, or whose contents are lost.
    match fs::metadata(path) {
        Ok(file) if file.len() > 0 => {}
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("open")(error)),
        Ok(_) | Err(_) => make(path)?,
    }
    Database::builder()
        .set_cache_size(CACHE_BYTES)
        .open(path)
        .map_err(failed("open"))
}

/// Makes an empty journal under another name first: after a crash in between, a half of one would open no more.
fn make(path: &Path) -> Result<(), JournalError> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("make")(error)),
        _ => {}
    }
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)
        .map_err(failed("make"))?;
    let mut database = Database::builder().create_file(file).map_err(failed("make"))?;
    load(&mut database)?;
    drop(database);
    fs::rename(&new, path).map_err(failed("make"))?;
    let dir = path.parent().unwrap_or(path);
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("make"))
}

/// All that is in it.
pub(super) fn load(database: &mut Database) -> Result<State, JournalError> {
    // A page that is wrong in itself would be taken for a shorter list of pods.
    if !database.check_integrity().map_err(failed("read"))? {
        tracing::error!("Journal was damaged and has been repaired: the last that was written may be lost");
    }
    let write = database.begin_write().map_err(failed("open"))?;
    write.open_table(PODS).map_err(failed("open"))?;
    write.open_table(NODE).map_err(failed("open"))?;
    write.commit().map_err(failed("open"))?;
    let read = database.begin_read().map_err(failed("read"))?;
    let node = read.open_table(NODE).map_err(failed("read"))?;
    let node_uid = node
        .get(NODE_UID)
        .map_err(failed("read"))?
        .map(|uid| uid.value().to_owned());
    let watch = match node.get(WATCH).map_err(failed("read"))? {
        None => WatchMemory::default(),
        Some(json) => serde_json::from_str(json.value()).map_err(failed("read"))?,
    };
    let mut pods = HashMap::new();
    for row in read
        .open_table(PODS)
        .map_err(failed("read"))?
        .iter()
        .map_err(failed("read"))?
    {
        let (uid, bytes) = row.map_err(failed("read"))?;
        match serde_json::from_slice(bytes.value()) {
            Ok(entry) => {
                pods.insert(PodUid::from(uid.value()), entry);
            }
            Err(error) => tracing::error!(pod.uid = uid.value(), %error, "Journal entry is unreadable and is ignored"),
        }
    }
    Ok(State {
        node_uid,
        watch,
        pods,
        trouble: Trouble::default(),
    })
}
