//! A small file beside the journal with the part of its row of the node that must survive a damaged journal: the UID of the Node,
//! without which any Node would be accepted, the pause, and the absence hold of the watch.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    contents::{NodeRow, WatchState},
    error::{self, JournalError},
    file,
};
use crate::{
    model::pause::{PauseRecord, Paused},
    node::identity::Identity,
};

const FILE: &str = "journal.node";
/// The reason of a pause or a hold that cannot be read.
const OTHER_VERSION: &str = "recorded by another version of the agent, whose details cannot be read";

/// The content that this node has recorded; nothing else is set.
pub(super) fn read(dir: &Path, machine: &Identity) -> NodeRow {
    read_ours(dir, machine).unwrap_or_default()
}

/// Each field is read by itself: a value of a later version must not lose the others, and a pause or a hold that cannot be read stays
/// one.
fn read_ours(dir: &Path, machine: &Identity) -> Option<NodeRow> {
    let fields: Map<String, Value> = serde_json::from_slice(&fs::read(dir.join(FILE)).ok()?).ok()?;
    let paused = Paused {
        since: Timestamp::now(),
        by: "an unknown user".to_owned(),
        reason: Some(OTHER_VERSION.to_owned()),
        until: None,
    };
    let hold = WatchState {
        absence_hold_reason: Some(OTHER_VERSION.to_owned()),
        ..WatchState::default()
    };
    let node = NodeRow {
        schema: field(&fields, "schema", 0),
        machine_id: field(&fields, "machineId", None),
        system_uuid: field(&fields, "systemUuid", None),
        node_uid: field(&fields, "nodeUid", None),
        paused: field(&fields, "paused", Some(PauseRecord::from(paused))),
        watch: field(&fields, "watch", hold),
        ..NodeRow::default()
    };
    node.check_same_node(machine).ok().map(|()| node)
}

/// The value of a field, or `unknown` in place of one that this version cannot read.
fn field<T: DeserializeOwned + Default>(fields: &Map<String, Value>, name: &str, unknown: T) -> T {
    let value = fields.get(name).map(T::deserialize);
    value.map_or_else(T::default, |value| value.unwrap_or(unknown))
}

/// Records this row. The content of another node is overwritten: its quarantined journal has the same. A Node UID stays if the row has
/// none.
pub(super) fn record(dir: &Path, machine: &Identity, node: &NodeRow) -> Result<(), JournalError> {
    let before = read_ours(dir, machine);
    let node_uid = node.node_uid.clone();
    let now = NodeRow {
        schema: node.schema,
        machine_id: node.machine_id.clone(),
        system_uuid: node.system_uuid.clone(),
        node_uid: node_uid.or_else(|| before.as_ref()?.node_uid.clone()),
        paused: node.paused.clone(),
        watch: absence_hold(&node.watch),
        ..NodeRow::default()
    };
    let is_empty = now.node_uid.is_none() && now.paused.is_none() && now.watch == WatchState::default();
    if before.as_ref() == Some(&now) || is_empty && before.is_none() {
        return Ok(());
    }
    let path = dir.join(FILE);
    let new = path.with_extension("node.new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error::io("record the Node")(error)),
        _ => {}
    }
    let text = serde_json::to_vec(&now).unwrap_or_default();
    let written = file::create(&new).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        file::sync_dir(dir)
    });
    written.map_err(error::io("record the Node"))
}

/// The part of the watch's state that blocks conclusions from absence. The rest needs the journal.
fn absence_hold(watch: &WatchState) -> WatchState {
    let is_held = watch.absence_hold_reason.is_some();
    let hold = is_held.then(|| WatchState {
        highest: 0,
        ..watch.clone()
    });
    hold.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::journal::contents::{AbsenceHoldKind, Contents};

    fn machine(id: &str) -> Identity {
        Identity {
            machine_id: Some(id.to_owned()),
            ..Identity::default()
        }
    }

    #[test]
    fn node_uid_is_known_only_on_the_node_that_recorded_it() {
        let node_uid = |dir: &Path, id: &str| read(dir, &machine(id)).node_uid;
        let write = |dir: &Path, id: &str, uid: Option<&str>| {
            let node = NodeRow {
                node_uid: uid.map(str::to_owned),
                ..Contents::default().on(&machine(id)).node
            };
            record(dir, &machine(id), &node).unwrap();
        };
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "m1", None);
        assert!(!dir.path().join(FILE).exists(), "nothing is recorded");
        write(dir.path(), "m1", Some("n1"));
        assert_eq!(node_uid(dir.path(), "m1").as_deref(), Some("n1"));
        assert_eq!(node_uid(dir.path(), "m2"), None);
        write(dir.path(), "m2", Some("n2"));
        write(dir.path(), "m2", None);
        assert_eq!(node_uid(dir.path(), "m2").as_deref(), Some("n2"));
        fs::write(dir.path().join(FILE), "torn").unwrap();
        assert_eq!(node_uid(dir.path(), "m2"), None);
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
        let hold = json!({ "absenceHoldReason": "the list is empty", "absenceHoldKinds": ["emptyList"] });
        let all = found(&json!({ "nodeUid": "n1", "machineId": "m1", "paused": paused, "watch": hold }));
        assert_eq!(all.node_uid.as_deref(), Some("n1"));
        assert_eq!(all.paused.map(|it| it.paused.by).as_deref(), Some("root"));
        assert_eq!(all.watch.absence_hold_reason.as_deref(), Some("the list is empty"));
        assert_eq!(all.watch.absence_hold_kinds, [AbsenceHoldKind::EmptyList].into());

        let hold = json!({ "absenceHoldReason": "the list is empty", "absenceHoldKinds": ["later"] });
        let later = found(&json!({
            "schema": "4", "nodeUid": "n1", "machineId": "m1", "paused": { "since": "Tuesday" }, "watch": hold, "more": [],
        }));
        assert_eq!(later.node_uid.as_deref(), Some("n1"));
        assert!(later.paused.is_some() && later.watch.absence_hold_reason.is_some());
        let later = found(&json!({ "nodeUid": { "is": "n1" }, "machineId": "m1", "paused": paused, "watch": 7 }));
        assert_eq!(later.node_uid, None);
        assert!(later.paused.is_some() && later.watch.absence_hold_reason.is_some());
        let nothing = found(&json!({ "machineId": "m1", "paused": null }));
        assert!(nothing.paused.is_none() && nothing.watch == WatchState::default());
    }
}
