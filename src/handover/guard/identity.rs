//! Whether the Node is the recorded one, of this machine.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::holds::{ABSENCE, NODE_UID, SafetyHold};
use crate::{
    journal::{Journal, JournalError},
    model::{
        blocked::{Blocked, NodeMismatch},
        problems,
    },
    node::identity::Identity,
};
use parking_lot::Mutex;

/// The identity of the Node.
pub struct NodeIdentity {
    machine: Identity,
    journal: Journal,
    state: Mutex<IdentityState>,
}

struct IdentityState {
    result: Result<(), NodeMismatch>,
    /// Since when it is this.
    since: Timestamp,
}

// === impl NodeIdentity ===

impl NodeIdentity {
    /// The Node has not been read.
    pub fn new(machine: Identity, journal: Journal) -> Self {
        Self {
            machine,
            journal,
            state: Mutex::new(IdentityState {
                result: Err(NodeMismatch::new("the Node has not been seen yet")),
                since: Timestamp::now(),
            }),
        }
    }

    /// Whether the last Node was the recorded one.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), Blocked> {
        let result = self.state.lock().result.clone();
        result.map_err(|mismatch| Blocked::Identity(Box::new(mismatch)))
    }

    /// UID of the Node, if only the UID differs from the recorded one. A user can approve it.
    pub fn other_uid(&self) -> Option<String> {
        self.state.lock().other_uid().map(str::to_owned)
    }

    /// Compares a Node with the recorded one and with this machine. If no UID is recorded, this one is.
    ///
    /// # Errors
    /// The mismatch.
    pub(in crate::handover) async fn compare(&self, node: &Node) -> Result<(), NodeMismatch> {
        let name = node.metadata.name.as_deref().unwrap_or("?");
        let uid = node.metadata.uid.as_deref().filter(|uid| !uid.is_empty());
        let uid = uid.ok_or_else(|| NodeMismatch::new(format!("Node {name} has no UID")))?;
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let (machine_id, system_uuid) = info.map_or(("", ""), |info| (&info.machine_id, &info.system_uuid));
        let matches = self.machine.matches(machine_id, system_uuid);
        matches.map_err(|error| NodeMismatch::new(problems::other_machine(name, &error).to_string()))?;
        if let Some(why) = self.journal.node_uid_read_error() {
            return Err(NodeMismatch::new(format!(
                "which Node this agent has recorded cannot be read: {why}; restart the agent once the disk can be read, or move the \
                 journal away to start without one"
            )));
        }
        match self.journal.node_uid() {
            Some(recorded) if recorded == uid => Ok(()),
            Some(recorded) => Err(NodeMismatch::other_uid(name, uid, &recorded)),
            None => {
                // A full disk does not block pods. This run treats the Node as recorded.
                if let Err(error) = self.journal.set_node_uid(uid).await {
                    tracing::error!(%error, uid, "Node UID cannot be recorded yet; it is lost at a restart");
                }
                Ok(())
            }
        }
    }

    /// Sets the result of the last comparison.
    pub(in crate::handover) fn set(&self, result: Result<(), NodeMismatch>) {
        self.state.lock().set(result);
    }

    /// The hold for a Node with another UID.
    pub(super) fn hold(&self) -> Option<SafetyHold> {
        self.state.lock().hold()
    }

    /// UID of the Node, if there is a hold with this digest.
    pub(super) fn uid_to_approve(&self, digest: &str) -> Option<String> {
        let state = self.state.lock();
        state.hold().filter(|hold| hold.digest == digest)?;
        state.other_uid().map(str::to_owned)
    }

    /// Records this UID. A third Node may have been read in between; it is not approved.
    ///
    /// # Errors
    /// The approval is lost at a restart.
    pub(super) async fn approve(&self, uid: &str) -> Result<(), JournalError> {
        let recorded = self.journal.set_node_uid(uid).await;
        let mut state = self.state.lock();
        if state.other_uid() == Some(uid) {
            state.set(Ok(()));
        }
        recorded
    }
}

// === impl IdentityState ===

impl IdentityState {
    fn other_uid(&self) -> Option<&str> {
        self.result.as_ref().err()?.other_uid.as_deref()
    }

    fn hold(&self) -> Option<SafetyHold> {
        let mismatch = self.result.as_ref().err()?;
        let uid = mismatch.other_uid.as_deref()?;
        let hold = SafetyHold {
            item: NODE_UID.to_owned(),
            uid: None,
            since: Some(self.since),
            why: mismatch.to_string(),
            approval_effect: format!(
                "the UID {uid} of this Node is recorded; pods of this node that its lists lack get the safety hold {ABSENCE}"
            ),
            facts: Vec::new(),
            digest: String::new(),
        };
        Some(hold.sealed())
    }

    fn set(&mut self, result: Result<(), NodeMismatch>) {
        if self.result != result {
            match &result {
                Ok(()) => tracing::info!("The Node is the recorded one and describes this machine"),
                Err(why) => tracing::error!(%why, "Node identity mismatch: no pod is touched"),
            }
            self.since = Timestamp::now();
        }
        self.result = result;
    }
}
