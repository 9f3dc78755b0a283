//! What the journal has: one row about the node, and rows about its pods. A copy of it is in memory.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
};

use jiff::Timestamp;
use prometheus_client::metrics::histogram::Histogram;
use redb::TableDefinition;
use serde::{Deserialize, Serialize};

use super::{
    error::{SCHEMA, Trouble, Unusable},
    pod_entry::PodEntry,
};
use crate::{
    clock::Mark,
    histogram,
    model::{
        observation::Observation,
        pause::PauseRecord,
        pod::{PodRef, PodUid},
    },
    node::{identity::Identity, kubelet_process::flags::KubeletFlags, superblock::FileSystem},
};

/// Key of the only row in [`Table::Node`].
const NODE: &str = "node";

/// A row to write.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub table: Table,
    pub key: String,
    /// `None`: the row is removed.
    pub value: Option<Vec<u8>>,
}

/// The tables. Each value is JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// One row: [`NodeRow`].
    Node,
    /// Terminating pods, by UID.
    Terminations,
    /// Pods that the API server has shown, by UID.
    SeenPods,
    /// Observed terminations by the kubelet, by UID.
    Observations,
}

/// The content of a journal.
#[derive(Debug, Clone, Default)]
pub(super) struct Contents {
    pub node: NodeRow,
    pub pods: HashMap<PodUid, PodEntry>,
    pub seen: BTreeMap<PodUid, SeenPod>,
    pub observations: BTreeMap<PodUid, StoredObservation>,
}

/// What the journal has about the node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeRow {
    /// The format. Every later format keeps this field.
    pub schema: u32,
    /// Machine ID of the node that wrote it, if known.
    pub machine_id: Option<String>,
    /// System UUID of that node, if known.
    pub system_uuid: Option<String>,
    /// Boot ID of the last write.
    pub boot_id: Option<String>,
    /// UID of the Node.
    pub node_uid: Option<String>,
    /// State of the watch.
    pub watch: WatchState,
    /// The pause, if the agent is paused. A restart does not end it.
    pub paused: Option<PauseRecord>,
    /// The last approvals of safety holds, the latest last.
    pub approvals: Vec<Approval>,
    /// The last time that this agent was active; `None` if it is on standby.
    pub last_active: Option<LastActive>,
    /// Flags of the kubelet that was last seen.
    pub kubelet: Option<KubeletFlags>,
    /// File systems that may still be active after their volume was unstaged, by the unique name of the volume.
    pub maybe_active_file_systems: BTreeMap<String, Vec<FileSystem>>,
}

/// State of the watch that must survive a restart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WatchState {
    /// The highest resourceVersion seen. A complete list with an older one is of a restored etcd.
    pub highest: u64,
    /// Why absence proves nothing: the first reason of each kind.
    pub absence_hold_reason: Option<String>,
    /// The kinds of these reasons.
    pub absence_hold_kinds: BTreeSet<AbsenceHoldKind>,
    /// Since when.
    pub since: Option<Timestamp>,
}

/// A kind of evidence for which a pod that a list lacks may not have been deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AbsenceHoldKind {
    /// A list is older than a version that was seen before.
    OlderList,
    /// A list was empty.
    EmptyList,
    /// A list lacks many pods.
    MissingPods,
    /// The runtime has many pods that this API server has never shown.
    UnlistedPods,
    /// Another Node was approved.
    OtherNode,
}

/// An approval of a safety hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Approval {
    /// The item, such as `absence` or `pod/NAMESPACE/NAME`.
    pub item: String,
    /// UID of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// When it was given.
    pub at: Timestamp,
    /// Name of the user.
    pub by: String,
    /// Reason of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why the item was on hold.
    pub why: String,
}

/// This agent was active, and no kubelet was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastActive {
    /// The last time.
    pub at: Mark,
    /// The kubelet's Lease when it was last seen. No kubelet has renewed it since.
    pub lease: String,
}

/// A pod that the API server has shown on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// It was terminating or removed at the last update.
    #[serde(default)]
    pub terminates: bool,
}

/// An observation of a termination by the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StoredObservation {
    #[serde(flatten)]
    pub observation: Observation,
    /// The pod was still terminating.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_progress: bool,
    /// Its size in the journal.
    #[serde(skip)]
    pub bytes: usize,
}

/// The copy of the journal in memory.
#[derive(Default)]
pub(super) struct JournalState {
    pub contents: Contents,
    /// Why the recorded Node UID cannot be read.
    pub node_uid_read_error: Option<String>,
    pub trouble: Trouble,
    pub commits: CommitDurations,
    pub quarantined: Vec<PathBuf>,
}

/// Durations of durable writes since the start.
pub(super) struct CommitDurations(pub Histogram);

impl Default for CommitDurations {
    fn default() -> Self {
        Self(histogram::of_requests())
    }
}

// === impl Row ===

impl Row {
    pub fn new(table: Table, uid: &PodUid, value: Option<&impl Serialize>) -> Self {
        Self {
            table,
            key: uid.to_string(),
            value: value.map(|value| serde_json::to_vec(value).unwrap_or_default()),
        }
    }
}

// === impl Table ===

impl Table {
    pub const ALL: [Self; 4] = [Self::Node, Self::Terminations, Self::SeenPods, Self::Observations];

    pub fn definition(self) -> TableDefinition<'static, &'static str, &'static [u8]> {
        TableDefinition::new(match self {
            Self::Node => "node-v3",
            Self::Terminations => "pods-v1",
            Self::SeenPods => "seen-v1",
            Self::Observations => "observations-v1",
        })
    }
}

// === impl Contents ===

impl Contents {
    /// The same on this machine in this boot. IDs that cannot be read now keep their recorded values.
    #[must_use]
    pub fn on(mut self, machine: &Identity) -> Self {
        let node = &mut self.node;
        let is_rebooted = node
            .boot_id
            .as_ref()
            .zip(machine.boot_id.as_ref())
            .is_some_and(|(then, now)| then != now);
        if is_rebooted {
            if !self.pods.is_empty() {
                tracing::info!(
                    pods = self.pods.len(),
                    "Node was rebooted while pods were terminating: the time since then counts as part of their grace periods"
                );
            }
            // No file system is active since an earlier boot.
            node.maybe_active_file_systems.clear();
        }
        node.schema = SCHEMA;
        node.machine_id = machine.machine_id.clone().or(node.machine_id.take());
        node.system_uuid = firmware(machine).cloned().or(node.system_uuid.take());
        node.boot_id.clone_from(&machine.boot_id);
        self
    }

    /// All rows.
    pub fn rows(&self) -> Vec<Row> {
        let pods = self.pods.iter();
        let seen = self.seen.iter();
        [self.node.row()]
            .into_iter()
            .chain(pods.map(|(uid, entry)| Row::new(Table::Terminations, uid, Some(entry))))
            .chain(seen.map(|(uid, seen)| Row::new(Table::SeenPods, uid, Some(seen))))
            .chain(self.observations.values().map(StoredObservation::row))
            .collect()
    }
}

// === impl NodeRow ===

impl NodeRow {
    pub(super) fn row(&self) -> Row {
        // A path that is not UTF-8 cannot be written. Neither the kernel nor a kubelet's flags have one.
        let value = serde_json::to_vec(self).or_else(|_| {
            serde_json::to_vec(&Self {
                kubelet: None,
                maybe_active_file_systems: BTreeMap::new(),
                ..self.clone()
            })
        });
        Row {
            table: Table::Node,
            key: NODE.to_owned(),
            value: value.ok(),
        }
    }

    /// Reads the row. The format is checked first: a later one has other fields.
    pub(super) fn read(bytes: &[u8], machine: &Identity) -> Result<Self, Unusable> {
        #[derive(Deserialize)]
        struct Format {
            schema: u32,
        }
        let unreadable = |error: serde_json::Error| Unusable::Damaged(format!("its row of the node: {error}"));
        let Format { schema } = serde_json::from_slice(bytes).map_err(unreadable)?;
        if schema > SCHEMA {
            return Err(Unusable::Newer(schema));
        }
        let row: Self = serde_json::from_slice(bytes).map_err(unreadable)?;
        row.check_same_node(machine)?;
        Ok(row)
    }

    /// Compares IDs that are known on both sides.
    pub(super) fn check_same_node(&self, machine: &Identity) -> Result<(), Unusable> {
        for (what, recorded, here) in [
            ("machine-id", &self.machine_id, machine.machine_id.as_ref()),
            ("system UUID", &self.system_uuid, firmware(machine)),
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
}

/// The system UUID, unless it is only the machine ID: firmware that cannot always be read does not make another node.
fn firmware(machine: &Identity) -> Option<&String> {
    machine
        .system_uuid
        .as_ref()
        .filter(|uuid| Some(*uuid) != machine.machine_id.as_ref())
}

// === impl WatchState ===

impl WatchState {
    /// Adds a reason why absence proves nothing, if its kind is new. The others stay as they are, so that a user sees no change
    /// without new evidence.
    #[must_use]
    pub fn with_absence_hold(mut self, reason: Option<(AbsenceHoldKind, String)>) -> Self {
        let Some((kind, text)) = reason else {
            return self;
        };
        if self.absence_hold_kinds.insert(kind) {
            self.absence_hold_reason = Some(match self.absence_hold_reason {
                None => text,
                Some(before) => format!("{before}; {text}"),
            });
        }
        self
    }
}

// === impl StoredObservation ===

impl StoredObservation {
    pub fn uid(&self) -> PodUid {
        self.observation.uid.as_str().into()
    }

    pub fn row(&self) -> Row {
        Row::new(Table::Observations, &self.uid(), Some(self))
    }
}

// === impl SeenPod ===

impl SeenPod {
    /// The pod with this UID.
    pub fn pod(&self, uid: &PodUid) -> PodRef {
        PodRef {
            uid: uid.clone(),
            namespace: self.namespace.as_str().into(),
            name: self.name.as_str().into(),
        }
    }
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

    fn written_on(machine: &Identity) -> NodeRow {
        Contents::default().on(machine).node
    }

    #[test]
    fn different_id_shows_another_node_and_unknown_id_does_not() {
        let written = written_on(&machine(Some("m1"), Some("AB-12")));
        let bytes = written.row().value.unwrap();
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
            match NodeRow::read(&bytes, &machine(machine_id, system_uuid)) {
                Ok(row) => assert!(ours && row == written, "{machine_id:?} {system_uuid:?}"),
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
        let node = written_on(&machine(Some("m1"), Some("u1")));
        let now = Contents {
            node,
            ..Contents::default()
        };
        let now = now.on(&machine(None, Some("u1"))).node;
        assert_eq!(now.machine_id.as_deref(), Some("m1"));
    }

    #[test]
    fn later_format_is_detected_by_its_number() {
        let here = machine(Some("m1"), None);
        let later = format!("{{\"schema\":{},\"machineId\":[7]}}", SCHEMA + 1);
        let read = |text: &str| NodeRow::read(text.as_bytes(), &here);
        assert_eq!(read(&later), Err(Unusable::Newer(SCHEMA + 1)));
        for damaged in ["", "{}", "[]", "{\"schema\":3,\"machineId\":[7]}", "{\"schema\":-1}"] {
            assert!(matches!(read(damaged), Err(Unusable::Damaged(_))), "{damaged:?}");
        }
    }
}
