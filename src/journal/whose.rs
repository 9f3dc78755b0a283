//! Which Node the journal was made for, once more in a small file of its own: a journal that is damaged must not make
//! this node take any Node for its own.

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
};

use serde::{Deserialize, Serialize};

use super::{aside, error, error::JournalError, file, header};
use crate::node::identity::Identity;

/// Beside the journal.
pub(super) const FILE: &str = "journal.node";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Whose {
    node_uid: String,
    machine_id: Option<String>,
    system_uuid: Option<String>,
}

/// UID of the Node, if this machine recorded one.
pub(super) fn node_uid(dir: &Path, machine: &Identity) -> Option<String> {
    let whose: Whose = serde_json::from_slice(&fs::read(dir.join(FILE)).ok()?).ok()?;
    let same = header::same_machine(whose.machine_id.as_deref(), whose.system_uuid.as_deref(), machine);
    same.is_ok().then_some(whose.node_uid)
}

/// Records the Node, unless that is what is recorded. One of another machine is kept aside.
pub(super) fn record(dir: &Path, machine: &Identity, node_uid: &str) -> Result<(), JournalError> {
    let header = header::Header::of(machine, None);
    let whose = Whose {
        node_uid: node_uid.to_owned(),
        machine_id: header.machine_id,
        system_uuid: header.system_uuid,
    };
    let text = serde_json::to_vec(&whose).unwrap_or_default();
    let path = dir.join(FILE);
    if fs::read(&path).is_ok_and(|before| before == text) {
        return Ok(());
    }
    let before = fs::read(&path)
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Whose>(&bytes).ok());
    if let Some(before) = before
        && let Err(foreign) = header::same_machine(before.machine_id.as_deref(), before.system_uuid.as_deref(), machine)
    {
        aside::keep(&path, &foreign.into())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(id: &str) -> Identity {
        Identity {
            machine_id: Some(id.to_owned()),
            ..Identity::default()
        }
    }

    #[test]
    fn the_node_is_known_to_the_machine_that_recorded_it_and_to_no_other() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(node_uid(dir.path(), &machine("m1")), None);
        record(dir.path(), &machine("m1"), "n1").unwrap();
        assert_eq!(node_uid(dir.path(), &machine("m1")).as_deref(), Some("n1"));
        assert_eq!(node_uid(dir.path(), &machine("m2")), None);
        record(dir.path(), &machine("m2"), "n2").unwrap();
        assert_eq!(node_uid(dir.path(), &machine("m2")).as_deref(), Some("n2"));
        let kept: Vec<_> = aside::list(dir.path()).into_iter().map(|kept| kept.path).collect();
        let [kept] = &kept[..] else { panic!("{kept:?}") };
        let name = kept.file_name().unwrap().to_string_lossy();
        assert!(name.starts_with("journal.node.other-machine-"), "{name}");
        fs::write(dir.path().join(FILE), "torn").unwrap();
        assert_eq!(node_uid(dir.path(), &machine("m2")), None);
    }
}
