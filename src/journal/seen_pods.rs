//! Records of the pods that the API server has shown on this node: leftovers of a deleted pod may be removed only if it is one of
//! these.

use super::{
    Journal,
    contents::{Row, SeenPod, Table},
    writer::Write,
};
use crate::model::pod::{PodRef, PodUid, PodView};

impl Journal {
    /// Records a pod of the API server, and whether it is terminating. Mirror pods are not recorded. It is durable later.
    pub fn record_seen(&self, view: &PodView, terminates: bool) {
        let PodRef { uid, namespace, name } = &view.pod;
        let seen = &mut self.state.lock().contents.seen;
        // Most updates change nothing.
        if view.mirror || seen.get(uid).is_some_and(|seen| seen.terminates == terminates) {
            return;
        }
        let pod = SeenPod {
            namespace: namespace.to_string(),
            name: name.to_string(),
            terminates,
        };
        self.send(Write::Row(Row::new(Table::SeenPods, uid, Some(&pod))));
        seen.insert(uid.clone(), pod);
    }

    /// Records that this pod was deleted while no agent ran, if it was seen.
    pub fn record_deleted(&self, uid: &PodUid) {
        let mut state = self.state.lock();
        if let Some(seen) = state.contents.seen.get_mut(uid).filter(|seen| !seen.terminates) {
            seen.terminates = true;
            self.send(Write::Row(Row::new(Table::SeenPods, uid, Some(seen))));
        }
    }

    /// Whether the API server has shown this pod on this node.
    pub fn has_seen(&self, uid: &PodUid) -> bool {
        self.state.lock().contents.seen.contains_key(uid)
    }

    /// All seen pods that may have leftovers.
    pub fn all_seen(&self) -> Vec<(PodUid, SeenPod)> {
        let state = self.state.lock();
        let seen = state.contents.seen.iter();
        seen.map(|(uid, seen)| (uid.clone(), seen.clone())).collect()
    }

    /// Whether this pod was seen, and was terminating or removed.
    pub fn was_terminating(&self, uid: &PodUid) -> bool {
        self.state
            .lock()
            .contents
            .seen
            .get(uid)
            .is_some_and(|seen| seen.terminates)
    }

    /// Removes a pod without leftovers: what is found under its UID after this is not its own.
    pub fn forget_seen(&self, uid: &PodUid) {
        let mut state = self.state.lock();
        if state.contents.seen.remove(uid).is_some() {
            self.send(Write::Row(Row::new(Table::SeenPods, uid, None::<&SeenPod>)));
        }
    }
}
