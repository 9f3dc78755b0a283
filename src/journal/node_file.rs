//! A small file with the state that must survive a damaged journal: the UID of the Node, without which any Node would be
//! accepted, the pause, and the absence hold of the watch.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{
    entries::{PauseRecord, WatchState},
    error::{self, JournalError},
    file, header,
};
use crate::node::identity::Identity;

/// Beside the journal.
pub(super) const FILE: &str = "journal.node";

/// Content of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeFile {
    /// UID of the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// The pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseRecord>,
    /// Why absence proves nothing.
    #[serde(default, rename = "held", skip_serializing_if = "Option::is_none")]
    pub absence_hold: Option<WatchState>,
    machine_id: Option<String>,
    system_uuid: Option<String>,
}

/// The content that this node has recorded.
pub(super) fn read(dir: &Path, machine: &Identity) -> NodeFile {
    let bytes = fs::read(dir.join(FILE)).ok();
    let node_file = bytes.and_then(|bytes| serde_json::from_slice::<NodeFile>(&bytes).ok());
    let ours = node_file.filter(|node_file| node_file.check_same_node(machine).is_ok());
    ours.unwrap_or_default()
}

/// Changes the content. That of another node is overwritten: its quarantined journal has the same.
pub(super) fn change(dir: &Path, machine: &Identity, change: impl FnOnce(&mut NodeFile)) -> Result<(), JournalError> {
    let path = dir.join(FILE);
    let bytes = fs::read(&path).unwrap_or_default();
    let before = serde_json::from_slice::<NodeFile>(&bytes).ok();
    let ours = before.filter(|before| before.check_same_node(machine).is_ok());
    let has_ours = ours.is_some();
    let mut node_file = ours.unwrap_or_default();
    change(&mut node_file);
    let header = header::Header::for_next_write(machine, None);
    (node_file.machine_id, node_file.system_uuid) = (header.machine_id, header.system_uuid);
    let text = serde_json::to_vec(&node_file).unwrap_or_default();
    let is_empty = node_file.node_uid.is_none() && node_file.paused.is_none() && node_file.absence_hold.is_none();
    if bytes == text || is_empty && !has_ours {
        return Ok(());
    }
    let new = path.with_extension("node.new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error::io("record the Node")(error)),
        _ => {}
    }
    let written = file::create(&new).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        file::sync_dir(dir)
    });
    written.map_err(error::io("record the Node"))
}

// === impl NodeFile ===

impl NodeFile {
    fn check_same_node(&self, machine: &Identity) -> Result<(), header::Unusable> {
        header::check_same_node(self.machine_id.as_deref(), self.system_uuid.as_deref(), machine)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::journal::entries::Paused;

    fn machine(id: &str) -> Identity {
        Identity {
            machine_id: Some(id.to_owned()),
            ..Identity::default()
        }
    }

    #[test]
    fn node_uid_is_known_only_on_the_node_that_recorded_it() {
        let node_uid = |dir: &Path, machine: &Identity| read(dir, machine).node_uid;
        let record = |dir: &Path, machine: &Identity, uid: &str| {
            change(dir, machine, |node_file| node_file.node_uid = Some(uid.to_owned()))
        };
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(node_uid(dir.path(), &machine("m1")), None);
        record(dir.path(), &machine("m1"), "n1").unwrap();
        assert_eq!(node_uid(dir.path(), &machine("m1")).as_deref(), Some("n1"));
        assert_eq!(node_uid(dir.path(), &machine("m2")), None);
        record(dir.path(), &machine("m2"), "n2").unwrap();
        assert_eq!(node_uid(dir.path(), &machine("m2")).as_deref(), Some("n2"));
        fs::write(dir.path().join(FILE), "torn").unwrap();
        assert_eq!(node_uid(dir.path(), &machine("m2")), None);
    }

    #[test]
    fn change_of_one_field_keeps_the_others_and_empty_state_has_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, ours) = (dir.path(), machine("m1"));
        change(dir, &ours, |node_file| node_file.paused = None).unwrap();
        assert!(!dir.join(FILE).exists());
        let paused = Paused {
            since: jiff::Timestamp::UNIX_EPOCH,
            by: "root".to_owned(),
            reason: None,
            until: None,
        };
        let now = crate::clock::BootClock::of("b", || Duration::from_secs(1)).now();
        let paused = PauseRecord::new(paused, Some(Duration::from_secs(60)), &now);
        change(dir, &ours, |node_file| node_file.paused = Some(paused.clone())).unwrap();
        change(dir, &ours, |node_file| node_file.node_uid = Some("n1".to_owned())).unwrap();
        let found = read(dir, &ours);
        assert_eq!((found.node_uid.as_deref(), found.paused), (Some("n1"), Some(paused)));
        change(dir, &ours, |node_file| node_file.paused = None).unwrap();
        let found = read(dir, &ours);
        assert_eq!((found.node_uid.as_deref(), found.paused), (Some("n1"), None));
    }
}
