//! The pods that the API server has shown on this node. Leftovers of a deleted pod may be removed only if it is one of these.
//! Written lazily.

pub use super::entries::SeenPod;
use super::{
    Journal,
    row::{Row, Table},
    writer::Write,
};
use crate::model::pod::{PodRef, PodUid, PodView};

// === impl Journal ===

impl Journal {
    /// Records a pod of the API server, and whether it is terminating. Mirror pods are not recorded. It is durable later.
    pub fn record_seen(&self, view: &PodView, terminates: bool) {
        if view.mirror {
            return;
        }
        let PodRef { uid, namespace, name } = &view.pod;
        let mut state = self.lock();
        let before = state.seen.get(uid);
        // Most updates change nothing.
        if before.is_some_and(|seen| seen.terminates == terminates) {
            return;
        }
        let seen = SeenPod {
            namespace: namespace.to_string(),
            name: name.to_string(),
            terminates,
        };
        self.send(Write::Row(Row::Pod(Table::SeenPod, uid.clone(), Some(seen.bytes()))));
        state.seen.insert(uid.clone(), seen);
    }

    /// Records that this pod was deleted while no agent ran, if it was seen.
    pub fn record_deleted(&self, uid: &PodUid) {
        let mut state = self.lock();
        if let Some(seen) = state.seen.get_mut(uid).filter(|seen| !seen.terminates) {
            seen.terminates = true;
            self.send(Write::Row(Row::Pod(Table::SeenPod, uid.clone(), Some(seen.bytes()))));
        }
    }

    /// Whether the API server has shown this pod on this node.
    pub fn has_seen(&self, uid: &PodUid) -> bool {
        self.lock().seen.contains_key(uid)
    }

    /// All seen pods that may have leftovers.
    pub fn all_seen(&self) -> Vec<(PodUid, SeenPod)> {
        let state = self.lock();
        state
            .seen
            .iter()
            .map(|(uid, seen)| (uid.clone(), seen.clone()))
            .collect()
    }

    /// Whether this pod was seen, and was terminating or removed.
    pub fn was_terminating(&self, uid: &PodUid) -> bool {
        self.lock().seen.get(uid).is_some_and(|seen| seen.terminates)
    }

    /// Removes a pod without leftovers: what is found under its UID after this is not its own.
    pub fn forget_seen(&self, uid: &PodUid) {
        if self.lock().seen.remove(uid).is_some() {
            self.send(Write::Row(Row::Pod(Table::SeenPod, uid.clone(), None)));
        }
    }
}
