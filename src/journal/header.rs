//! Header of a journal: format, node, and boot of the last write. Pure.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::node::identity::Identity;

/// The format of this agent. Journals without a header have format 1.
pub(super) const SCHEMA: u32 = 2;

/// Header of a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// The format. Every later format keeps this field.
    pub schema: u32,
    /// Machine ID of the node that wrote it, if known.
    #[serde(default)]
    pub machine_id: Option<String>,
    /// System UUID of that node, if known.
    #[serde(default)]
    pub system_uuid: Option<String>,
    /// Boot ID of the last write.
    #[serde(default)]
    pub boot_id: Option<String>,
}

#[derive(Deserialize)]
struct Schema {
    schema: u32,
}

/// Why a journal is quarantined.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unusable {
    /// It is not a journal, or is damaged.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// A later version of this agent wrote it, with this format.
    #[error("it has format {0} of a later version of this agent, which reads formats up to {SCHEMA}")]
    Newer(u32),
    /// Another node wrote it: the disk was cloned.
    #[error("{0}: was this disk cloned?")]
    OtherNode(String),
    /// The disk could not be read when the agent started.
    #[error("it could not be read when the agent started")]
    Unread,
}

// === impl Header ===

impl Header {
    /// The header of the next write. IDs that cannot be read now keep their recorded values.
    pub(super) fn for_next_write(machine: &Identity, before: Option<&Self>) -> Self {
        let kept = |here: Option<&String>, before: Option<&String>| here.or(before).cloned();
        Self {
            schema: SCHEMA,
            machine_id: kept(
                machine.machine_id.as_ref(),
                before.and_then(|before| before.machine_id.as_ref()),
            ),
            system_uuid: kept(firmware(machine), before.and_then(|before| before.system_uuid.as_ref())),
            boot_id: machine.boot_id.clone(),
        }
    }

    /// Reads the header. `None` if the journal has none.
    pub(super) fn read(text: Option<&str>, machine: &Identity) -> Result<Option<Self>, Unusable> {
        let Some(text) = text else { return Ok(None) };
        let unreadable = |error: serde_json::Error| Unusable::Damaged(format!("its header: {error}"));
        let Schema { schema } = serde_json::from_str(text).map_err(unreadable)?;
        if schema > SCHEMA {
            return Err(Unusable::Newer(schema));
        }
        let header: Self = serde_json::from_str(text).map_err(unreadable)?;
        check_same_node(header.machine_id.as_deref(), header.system_uuid.as_deref(), machine)?;
        Ok(Some(header))
    }
}

/// The system UUID, unless it is only the machine ID: firmware that cannot always be read does not make another node.
fn firmware(machine: &Identity) -> Option<&String> {
    machine
        .system_uuid
        .as_ref()
        .filter(|uuid| Some(*uuid) != machine.machine_id.as_ref())
}

/// Compares IDs that are known on both sides.
pub(super) fn check_same_node(
    machine_id: Option<&str>,
    system_uuid: Option<&str>,
    machine: &Identity,
) -> Result<(), Unusable> {
    for (what, recorded, here) in [
        ("machine-id", machine_id, machine.machine_id.as_deref()),
        ("system UUID", system_uuid, firmware(machine).map(String::as_str)),
    ] {
        if let (Some(recorded), Some(here)) = (recorded, here)
            && !recorded.eq_ignore_ascii_case(here)
        {
            return Err(Unusable::OtherNode(format!(
                "it was written by the node with {what} {recorded}, and this node's is {here}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(machine_id: Option<&str>, system_uuid: Option<&str>) -> Identity {
        Identity {
            machine_id: machine_id.map(str::to_owned),
            system_uuid: system_uuid.map(str::to_owned),
            boot_id: Some("boot".to_owned()),
        }
    }

    fn read(header: &Header, here: &Identity) -> Result<Option<Header>, Unusable> {
        Header::read(Some(&serde_json::to_string(header).unwrap()), here)
    }

    #[test]
    fn different_id_shows_another_node_and_unknown_id_does_not() {
        let written = Header::for_next_write(&machine(Some("m1"), Some("AB-12")), None);
        for (machine_id, system_uuid, ours) in [
            (Some("m1"), Some("AB-12"), true),
            (Some("M1"), Some("ab-12"), true),
            (None, None, true),
            (Some("m1"), None, true),
            (None, Some("ab-12"), true),
            (Some("m2"), Some("AB-12"), false),
            (Some("m1"), Some("CD-34"), false),
            (None, Some("CD-34"), false),
            // Without readable firmware the machine ID replaces the UUID.
            (Some("m1"), Some("m1"), true),
        ] {
            let read = read(&written, &machine(machine_id, system_uuid));
            match read {
                Ok(header) => assert!(
                    ours && header.as_ref() == Some(&written),
                    "{machine_id:?} {system_uuid:?}"
                ),
                Err(Unusable::OtherNode(why)) => {
                    assert!(!ours, "{machine_id:?} {system_uuid:?}");
                    let here = [machine_id, system_uuid].into_iter().flatten();
                    assert!(here.into_iter().any(|id| why.contains(id)), "{why}");
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn known_id_of_the_node_is_kept() {
        let before = Header::for_next_write(&machine(Some("m1"), Some("u1")), None);
        let now = Header::for_next_write(&machine(None, Some("u1")), Some(&before));
        assert_eq!(now.machine_id.as_deref(), Some("m1"));
    }

    #[test]
    fn later_format_is_detected_by_its_number() {
        let here = machine(Some("m1"), None);
        assert_eq!(Header::read(None, &here), Ok(None));
        let later = format!("{{\"schema\":{},\"machineId\":[7]}}", SCHEMA + 1);
        assert_eq!(Header::read(Some(&later), &here), Err(Unusable::Newer(SCHEMA + 1)));
        for damaged in ["", "{}", "[]", "{\"schema\":2,\"machineId\":[7]}", "{\"schema\":-1}"] {
            let read = Header::read(Some(damaged), &here);
            assert!(matches!(read, Err(Unusable::Damaged(_))), "{damaged:?}: {read:?}");
        }
    }
}
