//! Requests of the collector. A request has all it needs, and returns an outcome; it does not access the graph.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    decide::Policy,
    graph::{Coordinates, NamespaceId, NodeId, Observed},
    kinds::KindId,
    queue::Lane,
    uid::Uid,
    wire,
};
use crate::api::{self, ApiError, MetadataClient};

const MERGE_PATCH: &str = "application/merge-patch+json";
const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const JSON: &str = "application/json";
/// Metadata field of owner references.
const OWNERS: &str = "ownerReferences";

/// The object of a request.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its node.
    pub id: NodeId,
    /// Its kind.
    pub kind: KindId,
    /// Its namespace.
    pub namespace: NamespaceId,
    /// Name of its namespace.
    pub namespace_name: String,
    /// URL path.
    pub path: String,
    /// API group.
    pub group: String,
    /// Plural name of the resource.
    pub plural: String,
    /// Name.
    pub name: String,
    /// UID.
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
    /// API group.
    pub group: String,
    /// Name of the kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// A request.
#[derive(Debug)]
pub enum Request {
    /// GET the object.
    GetOwner(Target),
    /// Remove the references to these owners.
    DropReferences {
        /// The dependent.
        target: Target,
        /// The owners.
        owners: Vec<Owner>,
        /// With a strategic merge patch, which selects references by UID. Not all kinds support it.
        by_uid: bool,
    },
    /// DELETE the object.
    Delete {
        /// The object.
        target: Target,
        /// Deletion policy for its dependents.
        policy: Policy,
        /// Clear `blockOwnerDeletion` in its references first.
        clear_blocking: bool,
        /// Owners in foreground deletion that wait for this object. They keep their finalizer until the DELETE is
        /// answered.
        waiting_owners: Vec<NodeId>,
    },
    /// Remove this finalizer.
    RemoveFinalizer {
        /// The object.
        target: Target,
        /// The finalizer.
        finalizer: &'static str,
        /// Which kinds were not synced at the decision, and why.
        unsynced: Option<String>,
    },
}

/// Outcome of a request.
#[derive(Debug)]
pub enum Outcome {
    /// Success; a watch event follows.
    Done,
    /// The object is deleted.
    Deleted,
    /// The object does not exist.
    Absent,
    /// The object exists in this state.
    Exists(Observed),
    /// The object is not in the state that was decided on, but in this one.
    Changed(Observed),
    /// The kind does not support strategic merge patches.
    StrategicPatchUnsupported,
    /// The request failed.
    Failed(ApiError),
}

/// Sends a request over the given connection for writes.
pub async fn send(client: &MetadataClient, lane: usize, request: &Request) -> Outcome {
    let writes = Writes { client, lane };
    let result = match request {
        Request::GetOwner(target) => get_object(client, target).await.map(Outcome::Exists),
        Request::DropReferences {
            target,
            owners,
            by_uid: true,
        } if target.contested.is_none() => writes.drop_references_by_uid(target, owners).await,
        Request::DropReferences { target, owners, .. } => writes.drop_references(target, owners).await,
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
    match result {
        Ok(outcome) => outcome,
        Err(error) if error.is_absence_of(&target.group, &target.plural, &target.name) => Outcome::Absent,
        // A precondition failed: the resourceVersion or the UID differs.
        Err(error) if matches!(error.code(), Some(409 | 422)) && !matches!(request, Request::GetOwner(_)) => {
            match get_object(client, target).await {
                Ok(current) if current.uid != target.uid => Outcome::Absent,
                Ok(current) if current.version != target.version.to_string() => Outcome::Changed(current),
                // Both match, so it was refused for another reason.
                Ok(_) => Outcome::Failed(error),
                Err(error) if error.is_absence_of(&target.group, &target.plural, &target.name) => Outcome::Absent,
                Err(error) => Outcome::Failed(error),
            }
        }
        Err(error) => Outcome::Failed(error),
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
    if seen.name == target.name && seen.namespace == target.namespace_name {
        Ok(seen)
    } else {
        Err(unreadable(&"the object has another name or namespace"))
    }
}

struct Writes<'a> {
    client: &'a MetadataClient,
    lane: usize,
}

/// Result of the GET before a write.
enum CurrentState {
    /// The object is in the state that was decided on.
    Unchanged(Value),
    /// It is not.
    Changed(Outcome),
}

// === impl Writes ===

impl Writes<'_> {
    async fn delete_as_decided(&self, target: &Target, policy: Policy) -> Result<Outcome, ApiError> {
        if target.contested.is_none() {
            return self.delete(target, policy, Some(&target.version.to_string())).await;
        }
        // kube-controller-manager since kubernetes/kubernetes#132632: status updates do not prevent a deletion.
        match self.get_unchanged(target).await? {
            CurrentState::Unchanged(_) => self.delete(target, policy, None).await,
            CurrentState::Changed(outcome) => Ok(outcome),
        }
    }

    async fn delete(&self, target: &Target, policy: Policy, version: Option<&str>) -> Result<Outcome, ApiError> {
        let version = version.map_or_else(String::new, |version| format!(r#","resourceVersion":"{version}""#));
        // These strings need no JSON escapes.
        let body = format!(
            r#"{{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"{}","preconditions":{{"uid":{}{version}}}}}"#,
            policy.name(),
            Value::from(&*target.uid),
        );
        let written = self
            .client
            .write(self.lane, "DELETE", &target.path, JSON, body.into())
            .await?;
        Ok(match is_success(&written) {
            true => Outcome::Deleted,
            false => Outcome::Done,
        })
    }

    /// The API server selects the references by UID, at exactly this resourceVersion.
    async fn drop_references_by_uid(&self, target: &Target, owners: &[Owner]) -> Result<Outcome, ApiError> {
        let references: Vec<Value> = owners
            .iter()
            .map(|owner| json!({ "$patch": "delete", "uid": owner.uid }))
            .collect();
        let body = json!({ "metadata": {
            "uid": target.uid,
            "resourceVersion": target.version.to_string(),
            "ownerReferences": references,
        } });
        match self.patch(target, STRATEGIC_PATCH, &body).await {
            Err(error) if error.code() == Some(415) => Ok(Outcome::StrategicPatchUnsupported),
            Err(error) => Err(error),
            Ok(_) => Ok(Outcome::Done),
        }
    }

    async fn drop_references(&self, target: &Target, owners: &[Owner]) -> Result<Outcome, ApiError> {
        let object = match self.get_unchanged(target).await? {
            CurrentState::Unchanged(object) => object,
            CurrentState::Changed(outcome) => return Ok(outcome),
        };
        let mut references = references(&object);
        references.retain(|reference| !owners.iter().any(|owner| refers_to(reference, owner)));
        self.replace_list(target, &object, OWNERS, references)
            .await
            .map(|_| Outcome::Done)
    }

    async fn unblock_and_delete(&self, target: &Target, policy: Policy) -> Result<Outcome, ApiError> {
        let object = match self.get_unchanged(target).await? {
            CurrentState::Unchanged(object) => object,
            CurrentState::Changed(outcome) => return Ok(outcome),
        };
        let mut references = references(&object);
        for reference in &mut references {
            reference["blockOwnerDeletion"] = Value::Bool(false);
        }
        let changed = self.replace_list(target, &object, OWNERS, references).await?;
        let changed = read(target, &changed)?;
        let version = target.contested.is_none().then_some(&*changed.version);
        self.delete(target, policy, version).await
    }

    async fn remove_finalizer(&self, target: &Target, finalizer: &str) -> Result<Outcome, ApiError> {
        let object = match self.get_unchanged(target).await? {
            CurrentState::Unchanged(object) => object,
            CurrentState::Changed(outcome) => return Ok(outcome),
        };
        let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        finalizers.retain(|it| it != finalizer);
        self.replace_list(target, &object, "finalizers", finalizers)
            .await
            .map(|_| Outcome::Done)
    }

    async fn get_unchanged(&self, target: &Target) -> Result<CurrentState, ApiError> {
        let object = self.client.object(&target.path).await?;
        let seen = read(target, &object)?;
        Ok(if seen.uid != target.uid {
            CurrentState::Changed(Outcome::Absent)
        } else if target.is_unchanged(&seen) {
            CurrentState::Unchanged(object)
        } else {
            CurrentState::Changed(Outcome::Changed(seen))
        })
    }

    /// Replaces a list in the metadata at exactly this resourceVersion. For a contested object: at any version with the
    /// same list.
    async fn replace_list(
        &self,
        target: &Target,
        object: &Value,
        field: &str,
        list: Vec<Value>,
    ) -> Result<Value, ApiError> {
        let metadata = &object["metadata"];
        if target.contested.is_none() {
            let change = json!({ "metadata": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                field: none_if_empty(list),
            } });
            return self.patch(target, MERGE_PATCH, &change).await;
        }
        let path = format!("/metadata/{field}");
        let replaced = match none_if_empty(list) {
            Value::Null => json!({ "op": "remove", "path": path }),
            list => json!({ "op": "replace", "path": path, "value": list }),
        };
        let change = json!([
            { "op": "test", "path": "/metadata/uid", "value": metadata["uid"] },
            { "op": "test", "path": path, "value": metadata[field] },
            replaced,
        ]);
        self.patch(target, JSON_PATCH, &change).await
    }

    async fn patch(&self, target: &Target, content_type: &'static str, body: &Value) -> Result<Value, ApiError> {
        const VERB: &str = "PATCH";
        let body = Bytes::from(body.to_string());
        let written = self.client.write(self.lane, VERB, &target.path, content_type, body);
        api::read(VERB, &target.path, &written.await?)
    }
}

fn references(object: &Value) -> Vec<Value> {
    object["metadata"]["ownerReferences"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

/// Whether a reference names this owner, in any version of its group. The kind may be in lower case.
fn refers_to(reference: &Value, owner: &Owner) -> bool {
    let is = |field: &str, value: &str| reference[field].as_str() == Some(value);
    let version = reference["apiVersion"].as_str().unwrap_or_default();
    let group = version.rsplit_once('/').map_or("", |(group, _)| group);
    let is_kind = is("kind", &owner.kind) || is("kind", &owner.kind.to_ascii_lowercase());
    is("uid", &owner.uid) && is("name", &owner.name) && is_kind && group == owner.group
}

/// A merge patch removes a field by null; an empty list would stay.
fn none_if_empty(list: Vec<Value>) -> Value {
    if list.is_empty() {
        Value::Null
    } else {
        Value::Array(list)
    }
}

/// Whether the answer to a DELETE is a `Status`: the object is deleted. Otherwise it is the object, which has
/// finalizers.
fn is_success(answer: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Answer<'a> {
        #[serde(borrow, default)]
        kind: std::borrow::Cow<'a, str>,
    }
    serde_json::from_slice::<Answer<'_>>(answer).is_ok_and(|answer| answer.kind == "Status")
}

// === impl Target ===

impl Target {
    /// Its coordinates.
    pub fn coordinates(&self) -> Coordinates<'_> {
        Coordinates {
            kind: self.kind,
            namespace: self.namespace,
            name: &self.name,
        }
    }

    /// Whether it is in the state that was decided on.
    fn is_unchanged(&self, seen: &Observed) -> bool {
        match &self.contested {
            Some(known) => known.leads_to_same_decision(seen),
            None => seen.version == self.version.to_string(),
        }
    }
}

// === impl Request ===

impl Request {
    /// The object of the request.
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

    /// The reason for the request, for logs.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::GetOwner(_) => "it is unknown whether the object exists",
            Self::DropReferences { .. } => {
                "an owner is absent or being deleted, and another owner exists or the object is orphaned"
            }
            Self::Delete { waiting_owners, .. } if waiting_owners.is_empty() => "none of its owners exists",
            Self::Delete { .. } => "an owner in foreground deletion waits for it",
            Self::RemoveFinalizer {
                finalizer: "orphan", ..
            } => "no known dependent names it",
            Self::RemoveFinalizer { .. } => "no known dependent blocks its deletion",
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
