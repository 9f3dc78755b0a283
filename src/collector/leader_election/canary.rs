//! An object without an owner, which any collector at work deletes, and nobody else.

use std::{
    collections::VecDeque,
    sync::{Arc, PoisonError, RwLock},
};

use serde_json::{Value, json};

/// The label by which canaries are known, also those of agents that have crashed.
pub(super) const LABEL: (&str, &str) = ("app.kubernetes.io/component", "pod-teardown-gc-canary");
/// As many are remembered; one lives for about a minute, and ours is done with it then.
const REMEMBERED: usize = 16;

/// Tells canaries from other objects; all clones are the same.
///
/// Ask it for the object's UID and for those of its owners: the collector may see a canary before the one who laid it
/// is told its UID, while the owner's UID is known before.
#[derive(Debug, Clone, Default)]
pub struct Canary(Arc<RwLock<VecDeque<String>>>);

/// One that was laid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Laid {
    pub name: String,
    pub uid: String,
}

// === impl Canary ===

impl Canary {
    /// Whether this is the UID of a canary of this agent, or of the owner that one names: keep it.
    pub fn is_canary(&self, uid: &str) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        known.iter().any(|it| it == uid)
    }

    pub(super) fn remember(&self, uid: &str) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        while known.len() >= 2 * REMEMBERED {
            known.pop_front();
        }
        known.push_back(uid.to_owned());
    }
}

/// A canary as it is laid.
pub(super) fn object(id: &str, owner_uid: &str, identity: &str) -> Value {
    let owner = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "pod-teardown-gc-canary-an-owner-that-never-existed",
        "uid": owner_uid,
    });
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": format!("pod-teardown-gc-canary-{id}"),
            "labels": { LABEL.0: LABEL.1 },
            "annotations": {
                "kubernetes.io/description": "Whoever deletes this collects garbage; pod-teardown stands by while somebody does.",
            },
            "ownerReferences": [owner],
        },
        "spec": { "holderIdentity": identity },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canaries_are_forgotten_one_by_one_and_late() {
        let canary = Canary::default();
        for number in 0..40 {
            canary.remember(&number.to_string());
        }
        assert!(canary.is_canary("39") && canary.is_canary("8") && !canary.is_canary("7") && !canary.is_canary("x"));
    }
}
