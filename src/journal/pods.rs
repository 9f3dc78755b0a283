//! Records of the teardown of pods.

use futures::future::{BoxFuture, FutureExt as _};

use super::{
    Journal,
    entries::maybe_active_row,
    row::{Row, Table},
    writer::Write,
};
use crate::{
    model::pod::{PodRef, PodUid},
    node::superblock::FileSystem,
    teardown::journal::{PodEntry, PodJournal, Request},
};

// === impl Journal ===

impl PodJournal for Journal {
    fn read(&self, uid: &PodUid, read: &mut dyn FnMut(&PodEntry)) {
        if let Some(entry) = self.lock().pods.get(uid) {
            read(entry);
        }
    }

    fn change(&self, uid: &PodUid, change: &mut dyn FnMut(&mut Option<PodEntry>)) {
        let mut state = self.lock();
        let mut entry = state.pods.remove(uid);
        let before = entry.clone();
        change(&mut entry);
        if entry != before {
            self.send(Write::Row(Row::Pod(
                Table::Terminations,
                uid.clone(),
                entry.as_ref().map(PodEntry::bytes),
            )));
        }
        if let Some(entry) = entry {
            state.pods.insert(uid.clone(), entry);
        }
    }

    fn pods(&self) -> Vec<PodRef> {
        let state = self.lock();
        let pod = |(uid, entry): (&PodUid, &PodEntry)| PodRef {
            uid: uid.clone(),
            namespace: entry.namespace.as_str().into(),
            name: entry.name.as_str().into(),
        };
        state.pods.iter().map(pod).collect()
    }

    fn maybe_active_file_systems(&self, volume: &str) -> Vec<FileSystem> {
        self.lock()
            .maybe_active_file_systems
            .get(volume)
            .cloned()
            .unwrap_or_default()
    }

    fn set_maybe_active_file_systems(&self, volume: &str, file_systems: Vec<FileSystem>) {
        let mut state = self.lock();
        let before = match file_systems.is_empty() {
            true => state.maybe_active_file_systems.remove(volume),
            false => state.maybe_active_file_systems.insert(volume.to_owned(), file_systems),
        };
        if before.as_ref() != state.maybe_active_file_systems.get(volume) {
            self.send(Write::Row(maybe_active_row(&state.maybe_active_file_systems)));
        }
    }

    fn durable(&self) -> BoxFuture<'_, Result<(), String>> {
        async { self.durable().await.map_err(|error| error.to_string()) }.boxed()
    }
}

impl Journal {
    /// Cancels all stop requests of pods that the API does not show as terminating: a kubelet runs or may run, and restarts what
    /// they have stopped. It is durable later.
    pub fn cancel_requests(&self) {
        let mut state = self.lock();
        for (uid, entry) in &mut state.pods {
            if entry.request.take_if(|request| *request == Request::Active).is_some() {
                entry.request = Some(Request::Canceled);
                self.send(Write::Row(Row::Pod(
                    Table::Terminations,
                    uid.clone(),
                    Some(entry.bytes()),
                )));
            }
        }
    }

    /// All pods whose stop is in progress, as namespace and name.
    pub fn in_progress(&self) -> Vec<String> {
        let state = self.lock();
        let entries = state.pods.values().filter(|entry| entry.in_progress);
        entries
            .map(|entry| format!("{}/{}", entry.namespace, entry.name))
            .collect()
    }
}
