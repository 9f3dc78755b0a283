//! Which machine this is, compared with what the Node object says of its own.

use std::{fs, path::Path};

/// What identifies this machine, as far as it can be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The machine id.
    pub machine_id: Option<String>,
    /// What a kubelet here would report as system UUID.
    pub system_uuid: Option<String>,
    /// Differs after each boot.
    pub boot_id: Option<String>,
}

/// The Node object speaks of another machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the node's {what} is {node:?}, this machine's is {}", .here.as_deref().unwrap_or("unknown"))]
pub struct IdentityMismatch {
    /// Which of the marks differs.
    pub what: &'static str,
    /// The Node object's.
    pub node: String,
    /// This machine's.
    pub here: Option<String>,
}

/// In the order in which the kubelet tries them.
const MACHINE_ID: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];
/// Firmware, then device trees of machines without DMI, then what the kubelet falls back on.
const SYSTEM_UUID: [&str; 4] = [
    "sys/class/dmi/id/product_uuid",
    "proc/device-tree/system-id",
    "proc/device-tree/vm,uuid",
    "etc/machine-id",
];
const BOOT_ID: [&str; 1] = ["proc/sys/kernel/random/boot_id"];

// === impl Identity ===

impl Identity {
    /// Reads it below `root`, which is `/` but in tests.
    pub fn read(root: &Path) -> Self {
        Self {
            machine_id: first(root, &MACHINE_ID),
            system_uuid: first(root, &SYSTEM_UUID),
            boot_id: first(root, &BOOT_ID),
        }
    }

    /// Whether the Node object's ids, where they are set, are this machine's. What cannot be read here does not match.
    pub fn matches(&self, node_machine_id: &str, node_system_uuid: &str) -> Result<(), IdentityMismatch> {
        same("machineID", node_machine_id, self.machine_id.as_deref())?;
        same("systemUUID", node_system_uuid, self.system_uuid.as_deref())
    }
}

fn same(what: &'static str, node: &str, here: Option<&str>) -> Result<(), IdentityMismatch> {
    // Firmware and kernel do not agree on the case of UUIDs.
    if node.is_empty() || here.is_some_and(|here| here.eq_ignore_ascii_case(node.trim())) {
        return Ok(());
    }
    Err(IdentityMismatch {
        what,
        node: node.to_owned(),
        here: here.map(str::to_owned),
    })
}

fn first(root: &Path, files: &[&str]) -> Option<String> {
    let read = |file: &&str| {
        let text = fs::read_to_string(root.join(file)).ok()?;
        let id = text.trim_matches(|c: char| c == '\0' || c.is_whitespace());
        (!id.is_empty()).then(|| id.to_owned())
    };
    files.iter().find_map(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Identity {
        let temp = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = temp.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Identity::read(temp.path())
    }

    #[test]
    fn ids_are_read_without_what_surrounds_them() {
        let here = machine(&[
            ("etc/machine-id", "\n"),
            ("var/lib/dbus/machine-id", "abc\n"),
            ("proc/device-tree/vm,uuid", "1-2\0"),
            ("proc/sys/kernel/random/boot_id", "b\n"),
        ]);
        let expected = Identity {
            machine_id: Some("abc".into()),
            system_uuid: Some("1-2".into()),
            boot_id: Some("b".into()),
        };
        assert_eq!(here, expected);
    }

    #[test]
    fn a_machine_without_firmware_uuid_is_known_by_its_machine_id_as_with_the_kubelet() {
        let here = machine(&[("etc/machine-id", "abc\n")]);
        assert_eq!(here.matches("abc", "abc"), Ok(()));
    }

    #[test]
    fn whatever_is_set_must_match() {
        let here = Identity {
            machine_id: Some("abc".into()),
            system_uuid: Some("12-AB".into()),
            boot_id: None,
        };
        for (machine_id, uuid) in [("abc", "12-AB"), ("ABC", "12-ab"), ("", "12-ab"), ("abc", ""), ("", "")] {
            assert_eq!(here.matches(machine_id, uuid), Ok(()), "{machine_id} {uuid}");
        }
        let text = here.matches("abd", "12-ab").unwrap_err().to_string();
        assert_eq!(text, "the node's machineID is \"abd\", this machine's is abc");
        assert_eq!(here.matches("abc", "34").unwrap_err().what, "systemUUID");
    }

    #[test]
    fn a_machine_that_knows_nothing_of_itself_is_not_the_node() {
        let here = Identity::default();
        assert_eq!(here.matches("", ""), Ok(()));
        let text = here.matches("abc", "").unwrap_err().to_string();
        assert_eq!(text, "the node's machineID is \"abc\", this machine's is unknown");
    }
}
