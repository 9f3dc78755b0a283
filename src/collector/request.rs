//! Requests of the collector. A request has all it needs, and returns an outcome; it does not access the graph.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    decide::Policy,
    graph::{Coordinates, NodeId, Observed},
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
pub enum Request {
    GetOwner(Target),
    DropReferences {
        target: Target,
        owners: Vec<Owner>,
    },
    Delete {
        target: Target,
        /// Deletion policy for its dependents.
        policy: Policy,
        /// Clear `blockOwnerDeletion` in its references first.
        clear_blocking: bool,
        /// Owners in foreground deletion that wait for this object. They keep their finalizer until the DELETE is
        /// answered.
        waiting_owners: Vec<NodeId>,
    },
    RemoveFinalizer {
        target: Target,
        finalizer: &'static str,
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
pub async fn send(client: &MetadataClient, lane: usize, request: &Request) -> Outcome {
    let writes = Writes { client, lane };
    let result = match request {
        Request::GetOwner(target) => get_object(client, target)
            .await
            .map(Outcome::Exists)
            .map_err(Outcome::Failed),
        Request::DropReferences { target, owners } => writes.drop_references(target, owners).await,
        Request::Delete {
            target,
            policy,
            clear_blocking: false,
            ..
        } => writes.delete_as_decided(target, *policy).await,
        Request::Delete { target, policy, .. } => writes.unblock_and_delete(target, *policy).await,
        Request::RemoveFinalizer { target, finalizer, .. } => writes.remove_finalizer(target, finalizer).await,
    };
    let target = request.target();
    let is_absence = |error: &ApiError| error.is_absence_of(&target.group, &target.plural, &target.name);
    let (Ok(outcome) | Err(outcome)) = result;
    match outcome {
        Outcome::Failed(error) if is_absence(&error) => Outcome::Absent,
        // A precondition failed: the resourceVersion or the UID differs.
        Outcome::Failed(error)
            if matches!(error.code(), Some(409 | 422)) && !matches!(request, Request::GetOwner(_)) =>
        {
            match get_object(client, target).await {
                Ok(current) if current.uid != target.uid => Outcome::Absent,
                Ok(current) if current.version != target.version => Outcome::Changed(current),
                // Both match, so it was refused for another reason.
                Ok(_) => Outcome::Failed(error),
                Err(error) if is_absence(&error) => Outcome::Absent,
                Err(error) => Outcome::Failed(error),
            }
        }
        outcome => outcome,
    }
}

async fn get_object(client: &MetadataClient, target: &Target) -> Result<Observed, ApiError> {
    let object = client.object(&target.path).await?;
    read(target, &object)
}

/// Reads an object from an answer.
///
/// # Errors
///
/// The answer is malformed, or shows an object of another name or namespace.
fn read(target: &Target, object: &Value) -> Result<Observed, ApiError> {
    let unreadable = |why: &dyn std::fmt::Display| ApiError::unreadable("GET", &target.path, why);
    let seen = wire::object(object).map_err(|error| unreadable(&error))?;
    if seen.name == target.name && *seen.namespace == *target.namespace {
        Ok(seen)
    } else {
        Err(unreadable(&"the object has another name or namespace"))
    }
}

struct Writes<'a> {
    client: &'a MetadataClient,
    lane: usize,
}

// === impl Writes ===

impl Writes<'_> {
    async fn delete_as_decided(&self, target: &Target, policy: Policy) -> Result<Outcome, Outcome> {
        if target.contested.is_none() {
            return self.delete(target, policy, Some(target.version)).await;
        }
        // kube-controller-manager since kubernetes/kubernetes#132632: status updates do not prevent a deletion.
        self.get_unchanged(target).await?;
        self.delete(target, policy, None).await
    }

    async fn delete(&self, target: &Target, policy: Policy, version: Option<u64>) -> Result<Outcome, Outcome> {
        let version = version.map_or_else(String::new, |version| format!(r#","resourceVersion":"{version}""#));
        // These strings need no JSON escapes.
        let body = format!(
            r#"{{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"{}","preconditions":{{"uid":{}{version}}}}}"#,
            policy.name(),
            Value::from(&*target.uid),
        );
        self.client
            .write(self.lane, "DELETE", &target.path, JSON, body.into())
            .await?;
        Ok(Outcome::Done)
    }

    async fn drop_references(&self, target: &Target, owners: &[Owner]) -> Result<Outcome, Outcome> {
        let object = self.get_unchanged(target).await?;
        self.change_list(target, &object, "ownerReferences", |references| {
            references.retain(|reference| !owners.iter().any(|owner| refers_to(reference, owner)));
        })
        .await?;
        Ok(Outcome::Done)
    }

    async fn unblock_and_delete(&self, target: &Target, policy: Policy) -> Result<Outcome, Outcome> {
        let object = self.get_unchanged(target).await?;
        let changed = self.change_list(target, &object, "ownerReferences", |references| {
            for reference in references {
                reference["blockOwnerDeletion"] = Value::Bool(false);
            }
        });
        let changed = changed.await?;
        let changed = read(target, &changed)?;
        let version = target.contested.is_none().then_some(changed.version);
        self.delete(target, policy, version).await
    }

    async fn remove_finalizer(&self, target: &Target, finalizer: &str) -> Result<Outcome, Outcome> {
        let object = self.get_unchanged(target).await?;
        self.change_list(target, &object, "finalizers", |finalizers| {
            finalizers.retain(|it| it != finalizer);
        })
        .await?;
        Ok(Outcome::Done)
    }

    /// The object, if it is in the state that was decided on; else the outcome.
    async fn get_unchanged(&self, target: &Target) -> Result<Value, Outcome> {
        let object = self.client.object(&target.path).await?;
        let seen = read(target, &object)?;
        if seen.uid != target.uid {
            Err(Outcome::Absent)
        } else if target.is_unchanged(&seen) {
            Ok(object)
        } else {
            Err(Outcome::Changed(seen))
        }
    }

    /// Changes a list in the metadata of `object` at exactly its resourceVersion. For a contested object: at any version with the
    /// same list.
    async fn change_list(
        &self,
        target: &Target,
        object: &Value,
        field: &str,
        change: impl FnOnce(&mut Vec<Value>),
    ) -> Result<Value, ApiError> {
        let metadata = &object["metadata"];
        let path = format!("/metadata/{field}");
        let mut list = metadata[field].as_array().cloned().unwrap_or_default();
        change(&mut list);
        let (unchanged, value) = match &target.contested {
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
        let body = Bytes::from(patch.to_string());
        let written = self.client.write(self.lane, VERB, &target.path, JSON_PATCH, body);
        api::read(VERB, &target.path, &written.await?)
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

    /// Whether it is in the state that was decided on.
    fn is_unchanged(&self, seen: &Observed) -> bool {
        match &self.contested {
            Some(known) => known.leads_to_same_decision(seen),
            None => seen.version == self.version,
        }
    }
}

// === impl Request ===

impl Request {
    pub fn target(&self) -> &Target {
        match self {
            Self::GetOwner(target)
            | Self::DropReferences { target, .. }
            | Self::Delete { target, .. }
            | Self::RemoveFinalizer { target, .. } => target,
        }
    }

    /// The lane that it takes in the queue.
    pub fn lane(&self) -> Lane {
        Lane {
            kind: self.target().kind,
            is_get: matches!(self, Self::GetOwner(_)),
        }
    }

    /// The step's name in logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::GetOwner(_) => "get_owner",
            Self::DropReferences { .. } => "drop_reference",
            Self::Delete { .. } => "delete",
            Self::RemoveFinalizer { .. } => "remove_finalizer",
        }
    }
}

// === impl Policy ===

impl Policy {
    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}
