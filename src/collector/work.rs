//! What takes requests. Each is told all it needs, and answers what came of it; nothing here knows the graph.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    decide::Policy,
    graph::{Coordinates, NodeId, Observed, SpaceId},
    kinds::KindId,
    queue::Lane,
    uid::Uid,
    wire,
};
use crate::api::{self, ApiError, MetadataClient, Written};

const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const TESTED: &str = "application/json-patch+json";
const JSON: &str = "application/json";
/// Where owner references stand in the metadata.
const OWNERS: &str = "ownerReferences";

/// An object that a request is about.
#[derive(Debug, Clone)]
pub struct Target {
    /// Its node.
    pub id: NodeId,
    /// Its kind.
    pub kind: KindId,
    /// Its namespace.
    pub namespace: SpaceId,
    /// The name of that.
    pub space: String,
    /// Where it is.
    pub path: String,
    /// API group.
    pub group: String,
    /// The resource.
    pub plural: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// The same, as the graph knows it.
    pub key: Uid,
    /// The version that was decided on; 0 if it was never seen.
    pub version: u64,
    /// State of the object after several conflicts in a row that change nothing the decision rests on. If set, it is the
    /// precondition of a write, not the version.
    pub contested: Option<Box<Observed>>,
}

/// An owner as references name it; it may be of a kind that is served no more.
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

/// Something to do.
#[derive(Debug)]
pub enum Work {
    /// See whether it is there.
    Ask(Target),
    /// Take out the references to these owners.
    Release {
        /// Of whom.
        target: Target,
        /// To whom.
        owners: Vec<Owner>,
        /// By their UIDs alone; the server has to know how.
        strategic: bool,
    },
    /// Delete it.
    Delete {
        /// What.
        target: Target,
        /// How its own dependents fare.
        policy: Policy,
        /// Lift its blocking references first.
        unblock: bool,
        /// Owners that wait for its end. Until it has its answer they go on waiting.
        because: Vec<NodeId>,
    },
    /// Take this finalizer off.
    Finish {
        /// Off what.
        target: Target,
        /// Which.
        finalizer: &'static str,
    },
}

/// What came of it.
#[derive(Debug)]
pub enum Outcome {
    /// It is done; an event will show it.
    Done,
    /// It is gone by it.
    Deleted,
    /// It is not there.
    Absent,
    /// It is there, like this.
    Found(Observed),
    /// It is not as it was decided on, but like this.
    Changed(Observed),
    /// The server does not know how to take out references by their UIDs here.
    NotStrategic,
    /// A dry run kept it back.
    Withheld,
    /// It failed.
    Failed(ApiError),
}

/// Does it, over one of the connections for writes.
pub async fn perform(client: &MetadataClient, lane: usize, work: &Work) -> Outcome {
    let writes = Writes { client, lane };
    let done = match work {
        Work::Ask(target) => look(client, target).await.map(Outcome::Found),
        Work::Release {
            target,
            owners,
            strategic: true,
        } if target.contested.is_none() => writes.release_by_uid(target, owners).await,
        Work::Release { target, owners, .. } => writes.release(target, owners).await,
        Work::Delete {
            target,
            policy,
            unblock: false,
            ..
        } => writes.delete_as_decided(target, *policy).await,
        Work::Delete { target, policy, .. } => writes.unblock_and_delete(target, *policy).await,
        Work::Finish { target, finalizer } => writes.finish(target, finalizer).await,
    };
    let target = work.target();
    match done {
        Ok(outcome) => outcome,
        Err(error) if error.is_absence_of(&target.group, &target.plural, &target.name) => Outcome::Absent,
        // A version or UID that is no longer its own.
        Err(error) if matches!(error.code(), Some(409 | 422)) && !matches!(work, Work::Ask(_)) => {
            match look(client, target).await {
                Ok(now) if now.uid != target.uid => Outcome::Absent,
                Ok(now) if now.version != target.version.to_string() => Outcome::Changed(now),
                // Refused for another reason than that.
                Ok(_) => Outcome::Failed(error),
                Err(gone) if gone.is_absence_of(&target.group, &target.plural, &target.name) => Outcome::Absent,
                Err(error) => Outcome::Failed(error),
            }
        }
        Err(error) => Outcome::Failed(error),
    }
}

async fn look(client: &MetadataClient, target: &Target) -> Result<Observed, ApiError> {
    let object = client.object(&target.path).await?;
    read(target, &object)
}

/// What an answer shows of an object. One that shows another object than was asked for proves nothing of either.
fn read(target: &Target, object: &Value) -> Result<Observed, ApiError> {
    let unreadable = |why: &dyn std::fmt::Display| ApiError::unreadable("GET", &target.path, why);
    let seen = wire::object(object).map_err(|error| unreadable(&error))?;
    if seen.name == target.name && seen.namespace == target.space {
        Ok(seen)
    } else {
        Err(unreadable(&"it shows an object of another name or namespace"))
    }
}

struct Writes<'a> {
    client: &'a MetadataClient,
    lane: usize,
}

/// An object that was looked at to be changed.
enum Looked {
    /// As it was decided on.
    Same(Value),
    /// Not so.
    Other(Outcome),
}

// === impl Writes ===

impl Writes<'_> {
    async fn delete_as_decided(&self, target: &Target, policy: Policy) -> Result<Outcome, ApiError> {
        if target.contested.is_none() {
            return self.delete(target, policy, Some(&target.version.to_string())).await;
        }
        // kube-controller-manager since its pull request 132632: whoever changes nothing but its status does not keep it.
        match self.look_again(target).await? {
            Looked::Same(_) => self.delete(target, policy, None).await,
            Looked::Other(outcome) => Ok(outcome),
        }
    }

    async fn delete(&self, target: &Target, policy: Policy, version: Option<&str>) -> Result<Outcome, ApiError> {
        let version = version.map_or_else(String::new, |version| format!(r#","resourceVersion":"{version}""#));
        // Names and numbers that need no escapes.
        let body = format!(
            r#"{{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"{}","preconditions":{{"uid":{}{version}}}}}"#,
            policy.name(),
            Value::from(&*target.uid),
        );
        let written = self
            .client
            .write(self.lane, "DELETE", &target.path, JSON, body.into())
            .await?;
        Ok(match written {
            Written::Withheld => Outcome::Withheld,
            Written::Done(answer) if is_success(&answer) => Outcome::Deleted,
            Written::Done(_) => Outcome::Done,
        })
    }

    /// The server finds the references by their UIDs, among those of exactly this version.
    async fn release_by_uid(&self, target: &Target, owners: &[Owner]) -> Result<Outcome, ApiError> {
        let references: Vec<Value> = owners
            .iter()
            .map(|owner| json!({ "$patch": "delete", "uid": owner.uid }))
            .collect();
        let body = json!({ "metadata": {
            "uid": target.uid,
            "resourceVersion": target.version.to_string(),
            "ownerReferences": references,
        } });
        match self.patch(target, STRATEGIC, &body).await {
            Err(error) if error.code() == Some(415) => Ok(Outcome::NotStrategic),
            Err(error) => Err(error),
            Ok(None) => Ok(Outcome::Withheld),
            Ok(Some(_)) => Ok(Outcome::Done),
        }
    }

    async fn release(&self, target: &Target, owners: &[Owner]) -> Result<Outcome, ApiError> {
        let object = match self.look_again(target).await? {
            Looked::Same(object) => object,
            Looked::Other(outcome) => return Ok(outcome),
        };
        let mut references = references(&object);
        references.retain(|reference| !owners.iter().any(|owner| names(reference, owner)));
        self.change(target, &object, OWNERS, references)
            .await
            .map(|written| written.map_or(Outcome::Withheld, |_| Outcome::Done))
    }

    async fn unblock_and_delete(&self, target: &Target, policy: Policy) -> Result<Outcome, ApiError> {
        let object = match self.look_again(target).await? {
            Looked::Same(object) => object,
            Looked::Other(outcome) => return Ok(outcome),
        };
        let mut references = references(&object);
        for reference in &mut references {
            reference["blockOwnerDeletion"] = Value::Bool(false);
        }
        let changed = self.change(target, &object, OWNERS, references).await?;
        let Some(changed) = changed else {
            return Ok(Outcome::Withheld);
        };
        let changed = read(target, &changed)?;
        let version = target.contested.is_none().then_some(&*changed.version);
        self.delete(target, policy, version).await
    }

    async fn finish(&self, target: &Target, finalizer: &str) -> Result<Outcome, ApiError> {
        let object = match self.look_again(target).await? {
            Looked::Same(object) => object,
            Looked::Other(outcome) => return Ok(outcome),
        };
        let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        finalizers.retain(|it| it != finalizer);
        self.change(target, &object, "finalizers", finalizers)
            .await
            .map(|written| written.map_or(Outcome::Withheld, |_| Outcome::Done))
    }

    async fn look_again(&self, target: &Target) -> Result<Looked, ApiError> {
        let object = self.client.object(&target.path).await?;
        let seen = read(target, &object)?;
        Ok(if seen.uid != target.uid {
            Looked::Other(Outcome::Absent)
        } else if target.is_unchanged(&seen) {
            Looked::Same(object)
        } else {
            Looked::Other(Outcome::Changed(seen))
        })
    }

    /// Replaces a list of the metadata of exactly this version; of a contested object, of any version with the same list.
    async fn change(
        &self,
        target: &Target,
        object: &Value,
        field: &str,
        list: Vec<Value>,
    ) -> Result<Option<Value>, ApiError> {
        let metadata = &object["metadata"];
        if target.contested.is_none() {
            let change = json!({ "metadata": {
                "uid": metadata["uid"],
                "resourceVersion": metadata["resourceVersion"],
                field: none_if_empty(list),
            } });
            return self.patch(target, MERGE, &change).await;
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
        self.patch(target, TESTED, &change).await
    }

    async fn patch(&self, target: &Target, how: &'static str, body: &Value) -> Result<Option<Value>, ApiError> {
        const VERB: &str = "PATCH";
        let body = Bytes::from(body.to_string());
        let written = self.client.write(self.lane, VERB, &target.path, how, body);
        let Written::Done(answer) = written.await? else {
            return Ok(None);
        };
        api::read(VERB, &target.path, &answer).map(Some)
    }
}

fn references(object: &Value) -> Vec<Value> {
    object["metadata"]["ownerReferences"]
        .as_array()
        .cloned()
        .unwrap_or_default()
}

/// Whether a reference leads to this owner, in whatever version of its kind, and with its kind in lower case, too.
fn names(reference: &Value, owner: &Owner) -> bool {
    let is = |field: &str, value: &str| reference[field].as_str() == Some(value);
    let version = reference["apiVersion"].as_str().unwrap_or_default();
    let group = version.rsplit_once('/').map_or("", |(group, _)| group);
    let is_kind = is("kind", &owner.kind) || is("kind", &owner.kind.to_ascii_lowercase());
    is("uid", &owner.uid) && is("name", &owner.name) && is_kind && group == owner.group
}

/// An empty list stays as an empty list; null takes it out.
fn none_if_empty(list: Vec<Value>) -> Value {
    if list.is_empty() {
        Value::Null
    } else {
        Value::Array(list)
    }
}

/// Whether the answer to a DELETE is that it is done, and not the object that stays.
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
    /// Where it stands.
    pub fn at(&self) -> Coordinates<'_> {
        Coordinates {
            kind: self.kind,
            namespace: self.namespace,
            name: &self.name,
        }
    }

    /// Whether it is as it was decided on.
    fn is_unchanged(&self, seen: &Observed) -> bool {
        match &self.contested {
            Some(known) => known.decides_like(seen),
            None => seen.version == self.version.to_string(),
        }
    }
}

// === impl Work ===

impl Work {
    /// What it is about.
    pub fn target(&self) -> &Target {
        match self {
            Self::Ask(target)
            | Self::Release { target, .. }
            | Self::Delete { target, .. }
            | Self::Finish { target, .. } => target,
        }
    }

    /// Whose turn it takes.
    pub fn lane(&self) -> Lane {
        Lane {
            kind: self.target().kind,
            asks: matches!(self, Self::Ask(_)),
        }
    }

    /// What it is called in logs and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ask(_) => "ask",
            Self::Release { .. } => "release",
            Self::Delete { .. } => "delete",
            Self::Finish { .. } => "finish",
        }
    }

    /// Why it is done, for people.
    pub fn why(&self) -> &'static str {
        match self {
            Self::Ask(_) => "nobody knows whether it is there",
            Self::Release { .. } => "owners that it names are gone, or go; others are there, or it is left behind",
            Self::Delete { because, .. } if because.is_empty() => "none of its owners is there",
            Self::Delete { .. } => "an owner waits for its end",
            Self::Finish {
                finalizer: "orphan", ..
            } => "no dependent names it any more",
            Self::Finish { .. } => "no dependent that blocks its end is left",
        }
    }

    /// How its own dependents fare, if it is to be deleted.
    pub fn policy(&self) -> Option<Policy> {
        match self {
            Self::Delete { policy, .. } => Some(*policy),
            Self::Ask(_) | Self::Release { .. } | Self::Finish { .. } => None,
        }
    }
}

// === impl Policy ===

impl Policy {
    /// As the API server calls it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}
