//! A small file with the state that must survive a damaged journal: the UID of the Node, without which any Node would be
//! accepted, the pause, and the absence hold of the watch.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    entries::{PauseRecord, Paused, WatchState},
    error::{self, JournalError},
    file, header,
};
use crate::node::identity::Identity;

/// Beside the journal.
pub(super) const FILE: &str = "journal.node";
/// The reason of a pause or a hold that cannot be read.
const OTHER_VERSION: &str = "recorded by another version of the agent, whose details cannot be read";

/// Content of the file. Each field is read by itself: a value of a later version must not lose the others, and a pause or a hold
/// that cannot be read stays one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NodeFile {
    /// UID of the Node.
    #[serde(default, deserialize_with = "known", skip_serializing_if = "Option::is_none")]
    pub node_uid: Option<String>,
    /// The pause.
    #[serde(default, deserialize_with = "pause", skip_serializing_if = "Option::is_none")]
    pub paused: Option<PauseRecord>,
    /// Why absence proves nothing.
    #[serde(default, deserialize_with = "hold", skip_serializing_if = "Option::is_none")]
    pub absence_hold: Option<WatchState>,
    #[serde(default, deserialize_with = "known")]
    machine_id: Option<String>,
    #[serde(default, deserialize_with = "known")]
    system_uuid: Option<String>,
}

/// The value, or `unknown` in place of one that this version cannot read.
fn read_or<'de, T: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
    unknown: Option<T>,
) -> Result<Option<T>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or(unknown))
}

fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    read_or(deserializer, None)
}

fn pause<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PauseRecord>, D::Error> {
    let paused = Paused {
        since: Timestamp::now(),
        by: "an unknown user".to_owned(),
        reason: Some(OTHER_VERSION.to_owned()),
        until: None,
    };
    read_or(deserializer, Some(PauseRecord { paused, timer: None }))
}

fn hold<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<WatchState>, D::Error> {
    let held = WatchState {
        absence_hold_reason: Some(OTHER_VERSION.to_owned()),
        ..WatchState::default()
    };
    read_or(deserializer, Some(held))
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

    use serde_json::json;

    use super::*;
    use crate::journal::entries::AbsenceHoldKind;

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

    /// As a downgrade may find it.
    #[test]
    fn value_of_a_later_version_loses_no_other_field_and_no_pause_or_hold() {
        let dir = tempfile::tempdir().unwrap();
        let (dir, ours) = (dir.path(), machine("m1"));
        let found = |content: &Value| {
            fs::write(dir.join(FILE), content.to_string()).unwrap();
            read(dir, &ours)
        };
        let paused = json!({ "since": "2026-01-02T03:04:05Z", "by": "root" });
        let hold = json!({
            "highest": 7, "absenceHoldReason": "the list is empty", "absenceHoldKinds": ["emptyList", "later"],
        });
        let all = found(&json!({ "nodeUid": "n1", "machineId": "m1", "paused": paused, "absenceHold": hold }));
        assert_eq!(all.node_uid.as_deref(), Some("n1"));
        assert_eq!(all.paused.map(|it| it.paused.by).as_deref(), Some("root"));
        let hold = all.absence_hold.unwrap();
        assert_eq!(hold.absence_hold_reason.as_deref(), Some("the list is empty"));
        assert_eq!(hold.absence_hold_kinds, [AbsenceHoldKind::EmptyList].into());

        let later = found(&json!({
            "nodeUid": { "is": "n1" }, "machineId": "m1", "paused": { "since": "Tuesday" }, "absenceHold": 7, "more": [],
        }));
        assert_eq!(later.node_uid, None);
        assert!(later.paused.is_some() && later.absence_hold.is_some());
        change(dir, &ours, |node_file| node_file.node_uid = Some("n1".to_owned())).unwrap();
        let changed = read(dir, &ours);
        assert!(changed.paused.is_some() && changed.absence_hold.is_some());
        let nothing = found(&json!({ "machineId": "m1", "paused": null }));
        assert!(nothing.paused.is_none() && nothing.absence_hold.is_none());
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
