//! Records what the API server has answered.

use tokio::time::Instant;

use super::{Core, MAX_ENTRIES};
use crate::collector::{
    graph::{NodeId, Observed, WorkItem},
    names::{escape_control_chars, object_label, truncate},
    request::Target,
};

/// Effect of a GET answer on the graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetEffect {
    /// The graph is up to date.
    Applied,
    /// The watch has shown a later state. GET it again.
    Stale,
    /// The object exists, but no watch would report its deletion.
    Unwatched,
}

// === impl Core ===

impl Core {
    /// Records that a finalizer of this object is removed.
    pub fn record_finalizer_removal(&mut self, target: &Target, finalizer: &str, unsynced: Option<&str>) {
        self.removable_since.remove(&target.id);
        // The watch may still show the finalizer.
        self.confirmed.remove(&target.id);
        if let Some(why) = unsynced {
            self.counts.removed_unsynced += 1;
            tracing::warn!(
                object = escape_control_chars(&object_label(&self.graph, target.id)),
                uid = escape_control_chars(&truncate(&target.uid)),
                finalizer,
                why,
                "Finalizer removed while a kind is not synced"
            );
        }
    }

    /// Records that a write met a conflict; `object` is the current state.
    pub fn record_conflict(&mut self, target: &Target, object: &Observed) {
        self.counts.conflicts += 1;
        if let Some((times, seen)) = self.contested.get_mut(&target.id)
            && seen.leads_to_same_decision(object)
        {
            *times += 1;
            return;
        }
        if self.contested.len() >= MAX_ENTRIES {
            self.contested.clear();
        }
        self.contested.insert(target.id, (1, object.clone()));
    }

    /// Records that a write succeeded, or that the object is absent.
    pub fn record_write(&mut self, target: &Target) {
        self.contested.remove(&target.id);
    }

    /// Discards confirmed and absent owners, and gets each again: the store may have been restored from a backup.
    pub fn recheck_absent(&mut self) {
        self.confirmed.clear();
        self.graph.recheck_absent();
    }

    /// Records the answer to a DELETE that was sent because these owners are in foreground deletion.
    pub fn record_delete_answer(&mut self, waiting_owners: &[NodeId], now: Instant) {
        for &owner in waiting_owners {
            let Some(in_flight) = self.deletes_in_flight.get_mut(&owner) else {
                continue;
            };
            *in_flight -= 1;
            if *in_flight == 0 {
                self.deletes_in_flight.remove(&owner);
                self.enqueue(WorkItem::Decide(owner), owner, now);
            }
        }
    }

    /// Applies the answer to a GET.
    pub fn apply_get(&mut self, target: &Target, object: &Observed) -> GetEffect {
        if !self.graph.matches(target.id, target.node_uid, target.coordinates()) {
            return GetEffect::Applied;
        }
        if object.uid != target.uid {
            self.set_absent(target);
            return GetEffect::Applied;
        }
        let Some(progress) = self
            .sync_state
            .watched
            .get(&target.kind)
            .filter(|watched| watched.synced)
            .map(|watched| watched.progress)
        else {
            return GetEffect::Unwatched;
        };
        if !self.graph.apply_get(target.id, object, progress) {
            return GetEffect::Stale;
        }
        let node = self.graph.node(target.id);
        if node.state.has_deletion_finalizer() && object.version == node.version {
            if self.confirmed.len() >= MAX_ENTRIES {
                self.confirmed.clear();
            }
            self.confirmed.insert(target.id, object.version);
        }
        GetEffect::Applied
    }

    /// Records that a GET did not find the object.
    pub fn set_absent(&mut self, target: &Target) {
        if self.graph.matches(target.id, target.node_uid, target.coordinates()) {
            self.confirmed.remove(&target.id);
            self.graph.set_absent(target.id);
        }
    }
}
