//! Requests of the collector. A request has all it needs, and returns an outcome; it does not access the graph.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    decide::{Deletion, Finalizer, Policy},
    graph::{Coordinates, NodeId, Observed, WorkItem},
    kinds::KindId,
    queue::Lane,
    uid::Uid,
    wire,
};
use crate::api::{self, ApiError, MetadataClient};

const JSON_PATCH: &str = "application/json-patch+json";
const JSON: &str = "application/json";

/// The object of a request.
#[derive(Debug, Clone)]
pub struct Target {
    pub id: NodeId,
    pub kind: KindId,
    /// Its namespace; empty for a cluster-scoped object.
    pub namespace: Arc<str>,
    pub path: String,
    pub group: String,
    pub plural: String,
    pub name: String,
    pub uid: String,
    /// UID, as in the graph.
    pub node_uid: Uid,
    /// The resourceVersion that was decided on; 0 if it was never observed.
    pub version: u64,
    /// The object's state, after several conflicts in a row that left the decision unchanged. If set, it is the
    /// precondition of a write, not the resourceVersion.
    pub contested: Option<Box<Observed>>,
}

/// An owner as references name it. Its kind may not be served any more.
#[derive(Debug, Clone)]
pub struct Owner {
    pub group: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

#[derive(Debug)]
pub struct Request {
    pub target: Target,
    pub action: Action,
}

/// What a request does with its target.
#[derive(Debug)]
pub enum Action {
    GetOwner,
    DropReferences(Vec<Owner>),
    Delete(Deletion),
    RemoveFinalizer {
        finalizer: Finalizer,
        /// Which kinds were not synced at the decision, and why.
        unsynced: Option<String>,
    },
}

#[derive(Debug)]
pub enum Outcome {
    /// Success; a watch event follows.
    Done,
    Absent,
    /// The object exists in this state.
    Exists(Observed),
    /// The object is not in the state that was decided on, but in this one.
    Changed(Observed),
    Failed(ApiError),
}

/// Sends a request over the given connection for writes.
pub async fn send(client: &MetadataClient, lane: usize, Request { target, action }: &Request) -> Outcome {
    let sender = Sender { client, lane, target };
    let is_absence = |error: &ApiError| error.is_absence_of(&target.group, &target.plural, &target.name);
    let (Ok(outcome) | Err(outcome)) = sender.send(action).await;
    match outcome {
        Outcome::Failed(error) if is_absence(&error) => Outcome::Absent,
        // A precondition failed: the resourceVersion or the UID differs.
        Outcome::Failed(error) if matches!(error.code(), Some(409 | 422)) && !matches!(action, Action::GetOwner) => {
            match sender.get().await {
                Ok((_, current)) if current.uid != target.uid => Outcome::Absent,
                Ok((_, current)) if current.version != target.version => Outcome::Changed(current),
                // Both match, so it was refused for another reason.
                Ok(_) => Outcome::Failed(error),
                Err(error) if is_absence(&error) => Outcome::Absent,
                Err(error) => Outcome::Failed(error),
            }
        }
        outcome => outcome,
    }
}

/// Sends the requests about one object.
struct Sender<'a> {
    client: &'a MetadataClient,
    lane: usize,
    target: &'a Target,
}

// === impl Sender ===

impl Sender<'_> {
    async fn send(&self, action: &Action) -> Result<Outcome, Outcome> {
        match action {
            Action::GetOwner => return Ok(Outcome::Exists(self.get().await?.1)),
            Action::DropReferences(owners) => {
                let object = self.get_unchanged().await?;
                let is_dropped = |reference: &Value| owners.iter().any(|owner| refers_to(reference, owner));
                let drop_all = |references: &mut Vec<Value>| references.retain(|it| !is_dropped(it));
                self.change_list(&object, "ownerReferences", drop_all).await?;
            }
            Action::RemoveFinalizer { finalizer, .. } => {
                let object = self.get_unchanged().await?;
                let name = finalizer.to_string();
                let remove = |finalizers: &mut Vec<Value>| finalizers.retain(|it| *it != name);
                self.change_list(&object, "finalizers", remove).await?;
            }
            Action::Delete(Deletion {
                policy, clear_blocking, ..
            }) => {
                let is_contested = self.target.contested.is_some();
                let mut version = self.target.version;
                // kube-controller-manager since kubernetes/kubernetes#132632: status updates do not prevent a deletion.
                if is_contested || *clear_blocking {
                    let object = self.get_unchanged().await?;
                    if *clear_blocking {
                        let unblock = |references: &mut Vec<Value>| {
                            for reference in references {
                                reference["blockOwnerDeletion"] = Value::Bool(false);
                            }
                        };
                        let changed = self.change_list(&object, "ownerReferences", unblock).await?;
                        version = self.read(&changed)?.version;
                    }
                }
                self.delete(*policy, (!is_contested).then_some(version)).await?;
            }
        }
        Ok(Outcome::Done)
    }

    async fn get(&self) -> Result<(Value, Observed), ApiError> {
        let object = self.client.object(&self.target.path).await?;
        let seen = self.read(&object)?;
        Ok((object, seen))
    }

    /// Reads the object from an answer.
    ///
    /// # Errors
    ///
    /// The answer is malformed, or shows an object of another name or namespace.
    fn read(&self, object: &Value) -> Result<Observed, ApiError> {
        let target = self.target;
        let seen = wire::object(object).map_err(|error| ApiError::unreadable("GET", &target.path, error))?;
        if seen.name == target.name && *seen.namespace == *target.namespace {
            return Ok(seen);
        }
        let why = "the object has another name or namespace";
        Err(ApiError::unreadable("GET", &target.path, why))
    }

    async fn delete(&self, policy: Policy, version: Option<u64>) -> Result<(), ApiError> {
        let version = version.map_or_else(String::new, |version| format!(r#","resourceVersion":"{version}""#));
        // These strings need no JSON escapes.
        let body = format!(
            r#"{{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"{policy}","preconditions":{{"uid":{}{version}}}}}"#,
            Value::from(&*self.target.uid),
        );
        let path = &self.target.path;
        let deleted = self.client.write(self.lane, "DELETE", path, JSON, body.into());
        deleted.await.map(drop)
    }

    /// The object, if it is in the state that was decided on; else the outcome.
    async fn get_unchanged(&self) -> Result<Value, Outcome> {
        let (object, seen) = self.get().await?;
        let is_unchanged = match &self.target.contested {
            Some(known) => known.leads_to_same_decision(&seen),
            None => seen.version == self.target.version,
        };
        if seen.uid != self.target.uid {
            Err(Outcome::Absent)
        } else if is_unchanged {
            Ok(object)
        } else {
            Err(Outcome::Changed(seen))
        }
    }

    /// Changes a list in the metadata of `object` at exactly its resourceVersion. For a contested object: at any version with the
    /// same list.
    async fn change_list(
        &self,
        object: &Value,
        field: &str,
        change: impl FnOnce(&mut Vec<Value>),
    ) -> Result<Value, ApiError> {
        let metadata = &object["metadata"];
        let path = format!("/metadata/{field}");
        let mut list = metadata[field].as_array().cloned().unwrap_or_default();
        change(&mut list);
        let (unchanged, value) = match &self.target.contested {
            None => ("/metadata/resourceVersion", &metadata["resourceVersion"]),
            Some(_) => (&*path, &metadata[field]),
        };
        let patch = json!([
            { "op": "test", "path": "/metadata/uid", "value": metadata["uid"] },
            { "op": "test", "path": unchanged, "value": value },
            match list.is_empty() {
                true => json!({ "op": "remove", "path": path }),
                false => json!({ "op": "replace", "path": path, "value": list }),
            },
        ]);
        const VERB: &str = "PATCH";
        let (path, body) = (&self.target.path, Bytes::from(patch.to_string()));
        let written = self.client.write(self.lane, VERB, path, JSON_PATCH, body);
        api::read(VERB, path, &written.await?)
    }
}

/// Whether a reference names this owner, in any version of its group. The kind may be in lower case.
fn refers_to(reference: &Value, owner: &Owner) -> bool {
    let is = |field: &str, value: &str| reference[field].as_str() == Some(value);
    let version = reference["apiVersion"].as_str().unwrap_or_default();
    let group = version.rsplit_once('/').map_or("", |(group, _)| group);
    let is_kind = is("kind", &owner.kind) || is("kind", &owner.kind.to_ascii_lowercase());
    is("uid", &owner.uid) && is("name", &owner.name) && is_kind && group == owner.group
}

impl From<ApiError> for Outcome {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

// === impl Target ===

impl Target {
    pub fn coordinates(&self) -> Coordinates<'_> {
        Coordinates {
            kind: self.kind,
            namespace: &self.namespace,
            name: &self.name,
        }
    }
}

// === impl Request ===

impl Request {
    /// Its item in the queue.
    pub fn item(&self) -> WorkItem {
        match self.action {
            Action::GetOwner => WorkItem::GetOwner(self.target.id),
            Action::DropReferences(_) | Action::Delete(_) | Action::RemoveFinalizer { .. } => {
                WorkItem::Decide(self.target.id)
            }
        }
    }

    /// The lane that it takes in the queue.
    pub fn lane(&self) -> Lane {
        Lane::of(self.item(), self.target.kind)
    }

    /// The step's name in logs and counters.
    pub fn name(&self) -> &'static str {
        match self.action {
            Action::GetOwner => "get_owner",
            Action::DropReferences(_) => "drop_reference",
            Action::Delete(_) => "delete",
            Action::RemoveFinalizer { .. } => "remove_finalizer",
        }
    }
}
