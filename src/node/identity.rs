//! Identity of this machine, and its comparison with the Node object.

use std::{fs, path::Path};

/// IDs of this machine, as far as they can be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identity {
    /// The machine id.
    pub machine_id: Option<String>,
    /// The system UUID that a kubelet would report here.
    pub system_uuid: Option<String>,
    /// The boot ID, which changes with each boot.
    pub boot_id: Option<String>,
}

/// The Node object names another machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the Node's {what} is {node:?}, this machine's is {}", .here.as_deref().unwrap_or("unknown"))]
pub struct IdentityMismatch {
    /// The ID that differs.
    pub what: &'static str,
    /// The Node object's.
    pub node: String,
    /// This machine's.
    pub here: Option<String>,
}

/// In the kubelet's order.
const MACHINE_ID: [&str; 2] = ["etc/machine-id", "var/lib/dbus/machine-id"];
/// Firmware, then device trees of machines without DMI, then the kubelet's fallback.
const SYSTEM_UUID: [&str; 4] = [
    "sys/class/dmi/id/product_uuid",
    "proc/device-tree/system-id",
    "proc/device-tree/vm,uuid",
    "etc/machine-id",
];
const BOOT_ID: [&str; 1] = ["proc/sys/kernel/random/boot_id"];

// === impl Identity ===

impl Identity {
    /// Reads the IDs below `root`, which is `/` except in tests.
    pub fn read(root: &Path) -> Self {
        Self {
            machine_id: read_first(root, &MACHINE_ID),
            system_uuid: read_first(root, &SYSTEM_UUID),
            boot_id: read_first(root, &BOOT_ID),
        }
    }

    /// Whether the Node object's IDs, where set, are this machine's. An ID that cannot be read here does not match.
    pub fn matches(&self, node_machine_id: &str, node_system_uuid: &str) -> Result<(), IdentityMismatch> {
        same("machineID", node_machine_id, self.machine_id.as_deref())?;
        same("systemUUID", node_system_uuid, self.system_uuid.as_deref())
    }
}

fn same(what: &'static str, node: &str, here: Option<&str>) -> Result<(), IdentityMismatch> {
    // Firmware and kernel differ in the case of UUIDs.
    if node.is_empty() || here.is_some_and(|here| here.eq_ignore_ascii_case(node.trim())) {
        return Ok(());
    }
    Err(IdentityMismatch {
        what,
        node: node.to_owned(),
        here: here.map(str::to_owned),
    })
}

fn read_first(root: &Path, files: &[&str]) -> Option<String> {
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
    fn ids_are_trimmed() {
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
    fn machine_id_replaces_a_missing_firmware_uuid() {
        let here = machine(&[("etc/machine-id", "abc\n")]);
        assert_eq!(here.matches("abc", "abc"), Ok(()));
    }

    #[test]
    fn ids_that_are_set_must_match() {
        let here = Identity {
            machine_id: Some("abc".into()),
            system_uuid: Some("12-AB".into()),
            boot_id: None,
        };
        for (machine_id, uuid) in [("abc", "12-AB"), ("ABC", "12-ab"), ("", "12-ab"), ("abc", ""), ("", "")] {
            assert_eq!(here.matches(machine_id, uuid), Ok(()), "{machine_id} {uuid}");
        }
        let text = here.matches("abd", "12-ab").unwrap_err().to_string();
        assert_eq!(text, "the Node's machineID is \"abd\", this machine's is abc");
        assert_eq!(here.matches("abc", "34").unwrap_err().what, "systemUUID");
    }

    #[test]
    fn machine_without_ids_does_not_match() {
        let here = Identity::default();
        assert_eq!(here.matches("", ""), Ok(()));
        let text = here.matches("abc", "").unwrap_err().to_string();
        assert_eq!(text, "the Node's machineID is \"abc\", this machine's is unknown");
    }
}
