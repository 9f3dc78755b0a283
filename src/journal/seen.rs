//! Which pods the API server has shown on this node: what is left of one whose object is gone may be taken away, and of
//! nobody else. Written lazily; nobody waits for it.

use serde::{Deserialize, Serialize};

use super::{
    Journal,
    writer::{Row, Table, Write},
};
use crate::model::pod::{PodRef, PodUid, PodView};

/// A pod that the API server has shown here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// It had a reason to vanish, or has vanished, when it was last heard of.
    #[serde(default)]
    pub ends: bool,
}

// === impl Seen ===

impl Seen {
    /// The pod with this UID.
    pub fn pod(&self, uid: &PodUid) -> PodRef {
        PodRef {
            uid: uid.clone(),
            namespace: self.namespace.as_str().into(),
            name: self.name.as_str().into(),
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

// === impl Journal ===

impl Journal {
    /// Records that the API server has shown this pod, and whether it has a reason to vanish. A mirror is no pod of the API
    /// server. Durable soon, not at once.
    pub fn saw(&self, view: &PodView, ends: bool) {
        if view.mirror {
            return;
        }
        let PodRef { uid, namespace, name } = &view.pod;
        let mut state = self.lock();
        let before = state.seen.get(uid);
        // Most news changes nothing of it.
        if before.is_some_and(|seen| seen.ends == ends) {
            return;
        }
        let seen = Seen {
            namespace: namespace.to_string(),
            name: name.to_string(),
            ends,
        };
        self.send(Write::Row(Row::Pod(Table::Seen, uid.clone(), Some(seen.bytes()))));
        state.seen.insert(uid.clone(), seen);
    }

    /// Records that this pod has vanished while no agent ran, if it was seen: no later agent expects it.
    pub fn saw_vanish(&self, uid: &PodUid) {
        let mut state = self.lock();
        if let Some(seen) = state.seen.get_mut(uid).filter(|seen| !seen.ends) {
            seen.ends = true;
            self.send(Write::Row(Row::Pod(Table::Seen, uid.clone(), Some(seen.bytes()))));
        }
    }

    /// Whether the API server has shown this pod here.
    pub fn has_seen(&self, uid: &PodUid) -> bool {
        self.lock().seen.contains_key(uid)
    }

    /// All pods that were seen and of which something may be left.
    pub fn all_seen(&self) -> Vec<(PodUid, Seen)> {
        let state = self.lock();
        state
            .seen
            .iter()
            .map(|(uid, seen)| (uid.clone(), seen.clone()))
            .collect()
    }

    /// Whether this pod was seen, and had a reason to vanish, or has vanished.
    pub fn saw_end(&self, uid: &PodUid) -> bool {
        self.lock().seen.get(uid).is_some_and(|seen| seen.ends)
    }

    /// Nothing of this pod is left: what is found under its UID from now on is not its own.
    pub fn forget_seen(&self, uid: &PodUid) {
        if self.lock().seen.remove(uid).is_some() {
            self.send(Write::Row(Row::Pod(Table::Seen, uid.clone(), None)));
        }
    }
}
