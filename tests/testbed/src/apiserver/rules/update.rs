//! A changed object: what a client may change of it, at the object itself or at its status.

use serde_json::Value;

use super::{create, definitions, leases, normal, owners, pods};
use crate::apiserver::error::{ApiError, Cause};
use crate::apiserver::kinds::Kind;
use crate::apiserver::object;

/// What a pod's status says of its claims. A node may not change it.
pub const CLAIM_STATUSES: [&str; 3] = [
    "resourceClaimStatuses",
    "extendedResourceClaimStatus",
    "nodeAllocatableResourceClaimStatuses",
];

/// Which part of an object a write is addressed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All but the status, if that is a resource of its own.
    Main,
    Status,
}

/// How the wish came, which decides how some mistakes are answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Put,
    Patch,
}

/// The object as it will be stored, from the stored one and what a client wants of it.
pub fn prepare(kind: &'static Kind, old: &Value, mut new: Value, part: Part, by: By) -> Result<Value, ApiError> {
    let name = object::name(old);
    object::drop_type(&mut new);
    check_put(kind, old, &new, by)?;
    check_version(kind, old, &new, by)?;
    keep_claims(kind, old, &mut new, part);
    normal::normalize(kind, &mut new).map_err(|why| match by {
        By::Put => create::undecodable(kind, &why),
        By::Patch => ApiError::invalid(kind, name, vec![Cause::invalid("patch", &why.as_str().into(), &why)]),
    })?;
    compose(kind, old, &mut new, part);
    keep_metadata(old, &mut new);
    owners::drop_duplicates(&mut new);
    let causes = complaints(kind, old, &new, part);
    if !causes.is_empty() {
        return Err(ApiError::invalid(kind, name, causes));
    }
    if kind.generation && part == Part::Main && is_another(kind, old, &new) {
        let generation = object::generation(old) + 1;
        object::metadata_mut(&mut new).insert("generation".to_owned(), generation.into());
    }
    Ok(new)
}

/// Whether the change is counted: of the spec, or of anything but metadata and status of a custom object.
fn is_another(kind: &'static Kind, old: &Value, new: &Value) -> bool {
    if !kind.custom {
        return old.get("spec") != new.get("spec");
    }
    let counted = |object: &Value| {
        let mut object = object.clone();
        if let Value::Object(fields) = &mut object {
            fields.retain(|field, _| field != "metadata" && !(kind.status && field == "status"));
        }
        object
    };
    counted(old) != counted(new)
}

fn check_put(kind: &'static Kind, old: &Value, new: &Value, by: By) -> Result<(), ApiError> {
    let (wanted, uid, name) = (object::uid(new), object::uid(old), object::name(old));
    if by == By::Patch || wanted.is_empty() || wanted == uid {
        return Ok(());
    }
    let folder = if kind.resource == "nodes" {
        "minions"
    } else {
        kind.resource
    };
    let key = kind.key(object::namespace(old), name);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{folder}/{key}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
    );
    Err(ApiError::conflict(kind, name, &why))
}

fn check_version(kind: &'static Kind, old: &Value, new: &Value, by: By) -> Result<(), ApiError> {
    let (wanted, name) = (object::version(new), object::name(old));
    match wanted {
        "" | "0" if kind.versioned_update && by == By::Put => Err(ApiError::version_required(kind, name)),
        "" | "0" => Ok(()),
        wanted if wanted == object::version(old) => Ok(()),
        wanted if wanted.parse::<u64>().is_err() => {
            let cause = Cause::invalid("metadata.resourceVersion", &wanted.into(), "must be a number");
            Err(ApiError::invalid(kind, name, vec![cause]))
        }
        _ => Err(ApiError::modified(kind, name)),
    }
}

/// Keeps what a status leaves out or sets to null of the claims. An empty list clears it, and is only seen as such before
/// the object is normalized.
fn keep_claims(kind: &'static Kind, old: &Value, new: &mut Value, part: Part) {
    if kind.kind != "Pod" || part != Part::Status {
        return;
    }
    for field in CLAIM_STATUSES {
        if let (Some(was), true) = (old["status"].get(field), new["status"][field].is_null()) {
            object::child_mut(new, "status").insert(field.to_owned(), was.clone());
        }
    }
}

/// Takes from the wish only the part that it is addressed to.
fn compose(kind: &'static Kind, old: &Value, new: &mut Value, part: Part) {
    match part {
        Part::Main if kind.status => copy(old, new, "status"),
        Part::Main => {}
        Part::Status => {
            let fields: Vec<String> = old
                .as_object()
                .map(|old| old.keys().cloned().collect())
                .unwrap_or_default();
            if let Value::Object(new) = new {
                new.retain(|field, _| field == "metadata" || field == "status" || old.get(field).is_some());
            }
            for field in fields
                .iter()
                .filter(|field| !["metadata", "status"].contains(&field.as_str()))
            {
                copy(old, new, field);
            }
        }
    }
    if kind.custom && part == Part::Status {
        copy(old, new, "metadata");
    }
    if kind.kind == "Pod" && part == Part::Status {
        let owners = old["metadata"].get("ownerReferences").cloned();
        set(object::metadata_mut(new), "ownerReferences", owners);
        let observed = old["status"].get("observedGeneration").cloned();
        if let (Some(observed), None) = (observed, new["status"].get("observedGeneration")) {
            object::child_mut(new, "status").insert("observedGeneration".to_owned(), observed);
        }
    }
}

fn copy(old: &Value, new: &mut Value, field: &str) {
    if let Value::Object(new) = new {
        set(new, field, old.get(field).cloned());
    }
}

fn set(map: &mut serde_json::Map<String, Value>, field: &str, value: Option<Value>) {
    match value {
        Some(value) => map.insert(field.to_owned(), value),
        None => map.remove(field),
    };
}

/// What every object keeps, whatever the client sends.
fn keep_metadata(old: &Value, new: &mut Value) {
    let deleting = object::deletion_time(old).is_some();
    let was = &old["metadata"];
    let metadata = object::metadata_mut(new);
    for field in ["creationTimestamp", "generation", "resourceVersion", "generateName"] {
        set(metadata, field, was.get(field).cloned());
    }
    if deleting {
        set(metadata, "deletionTimestamp", was.get("deletionTimestamp").cloned());
    }
    for field in ["uid", "name", "namespace", "deletionGracePeriodSeconds"] {
        if metadata.get(field).is_none_or(|value| value == "") {
            set(metadata, field, was.get(field).cloned());
        }
    }
    metadata.remove("managedFields");
    metadata.remove("selfLink");
}

fn complaints(kind: &'static Kind, old: &Value, new: &Value, part: Part) -> Vec<Cause> {
    let mut causes = Vec::new();
    for field in [
        "name",
        "namespace",
        "uid",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        let (was, is) = (&old["metadata"][field], &new["metadata"][field]);
        if was != is {
            let field = format!("metadata.{field}");
            causes.push(Cause::invalid(&field, is, "field is immutable"));
        }
    }
    // The server validates metadata once for every kind and once more for this one.
    causes.extend(causes.clone());
    if object::deletion_time(old).is_some() {
        let present = object::finalizers(old);
        let added: Vec<&str> = object::finalizers(new)
            .into_iter()
            .filter(|name| !present.contains(name))
            .collect();
        if !added.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added
                    .iter()
                    .map(|name| format!("{name:?}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            );
            causes.push(Cause::forbidden("metadata.finalizers", &why));
        }
    }
    causes.extend(owners::complaints(new));
    match (kind.kind, part) {
        _ if kind.custom => {}
        ("CustomResourceDefinition", Part::Main) => causes.extend(definitions::complaints(new)),
        ("Pod", Part::Main) => causes.extend(pods::spec_complaints(old, new)),
        ("Lease", _) => causes.extend(leases::complaints(new)),
        ("Pod", Part::Status) => causes.extend(pods::status_complaints(old, new)),
        _ => {}
    }
    causes
}

/// Whether this write lets an object go that only waited for its finalizers.
pub fn releases(old: &Value, new: &Value) -> bool {
    object::deletion_time(old).is_some()
        && object::deletion_grace(old).unwrap_or_default() == 0
        && object::finalizers(new).is_empty()
}
