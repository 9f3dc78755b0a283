//! The copy of the journal in memory.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    approval::{self, Approval},
    entries::{
        LastActive, MaybeActive, PauseRecord, SeenPod, StoredObservation, WatchState, kubelet_row, maybe_active_row,
    },
    error::JournalError,
    file::Contents,
    header::Header,
    row::{NODE_UID, Row, Table},
};
use crate::{
    histogram::{Buckets, REQUEST_BOUNDS},
    model::pod::PodUid,
    node::{identity::Identity, kubelet_process::flags::KubeletFlags},
    teardown::journal::PodEntry,
};

#[derive(Default)]
pub(super) struct JournalState {
    pub header: Option<Header>,
    pub node_uid: Option<String>,
    /// Why the recorded Node UID cannot be read.
    pub node_uid_read_error: Option<String>,
    pub watch: WatchState,
    pub paused: Option<PauseRecord>,
    pub approvals: Vec<Approval>,
    pub last_active: Option<LastActive>,
    pub kubelet: Option<KubeletFlags>,
    pub maybe_active_file_systems: MaybeActive,
    pub pods: HashMap<PodUid, PodEntry>,
    pub seen: BTreeMap<PodUid, SeenPod>,
    pub observations: BTreeMap<PodUid, StoredObservation>,
    pub trouble: Trouble,
    pub commits: CommitDurations,
    pub quarantined: Vec<PathBuf>,
}

/// Durations of durable writes since the start.
pub(super) struct CommitDurations(pub Buckets);

/// Write errors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trouble {
    /// Why the journal cannot be written now.
    pub error: Option<JournalError>,
    /// Failed writes since the start.
    pub failed: u64,
}

impl Default for CommitDurations {
    fn default() -> Self {
        Self(Buckets::empty(REQUEST_BOUNDS))
    }
}

pub(super) fn lock(state: &Mutex<JournalState>) -> MutexGuard<'_, JournalState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl JournalState ===

impl JournalState {
    /// The state in a journal of this node.
    pub fn from_contents(contents: Contents, machine: &Identity) -> Self {
        let written_in = contents.header.as_ref().and_then(|header| header.boot_id.as_ref());
        let is_rebooted = written_in
            .zip(machine.boot_id.as_ref())
            .is_some_and(|(then, now)| then != now);
        Self {
            header: Some(Header::for_next_write(machine, contents.header.as_ref())),
            node_uid: contents.node_uid,
            watch: contents.watch,
            paused: contents.paused,
            approvals: contents.approvals,
            last_active: contents.last_active,
            kubelet: contents.kubelet,
            // No file system is active since an earlier boot.
            maybe_active_file_systems: if is_rebooted {
                MaybeActive::new()
            } else {
                contents.maybe_active_file_systems
            },
            pods: contents.pods,
            seen: contents.seen,
            observations: contents
                .observations
                .into_iter()
                .map(|(uid, it)| (uid, StoredObservation::new(it.observation, it.in_progress)))
                .collect(),
            ..Self::default()
        }
    }

    pub fn rows(&self) -> Vec<Row> {
        let header = self.header.iter().map(Header::row);
        let uid = self.node_uid.iter().map(|uid| Row::Node(NODE_UID, uid.clone()));
        let pods = self.pods.iter();
        let seen = self.seen.iter();
        header
            .chain(uid)
            .chain([
                self.watch.row(),
                PauseRecord::row(self.paused.as_ref()),
                approval::row(&self.approvals),
                LastActive::row(self.last_active.as_ref()),
                kubelet_row(self.kubelet.as_ref()),
                maybe_active_row(&self.maybe_active_file_systems),
            ])
            .chain(pods.map(|(uid, entry)| Row::Pod(Table::Terminations, uid.clone(), Some(entry.bytes()))))
            .chain(seen.map(|(uid, seen)| Row::Pod(Table::SeenPod, uid.clone(), Some(seen.bytes()))))
            .chain(self.observations.values().map(StoredObservation::row))
            .collect()
    }
}
