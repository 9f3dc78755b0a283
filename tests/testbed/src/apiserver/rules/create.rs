//! New objects: their defaults and required fields.

use jiff::Timestamp;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{definitions, leases, normal, owners, pods};
use crate::apiserver::error::{ApiError, Cause};
use crate::apiserver::kinds::Kind;
use crate::apiserver::object;

/// The object to store, from a client's object for `namespace`.
pub fn prepare(kind: &'static Kind, namespace: &str, mut new: Value, now: Timestamp) -> Result<Value, ApiError> {
    if !object::version(&new).is_empty() {
        return Err(ApiError::internal(
            "resourceVersion should not be set on objects to be created",
        ));
    }
    place(kind, namespace, &mut new)?;
    normal::normalize(kind, &mut new).map_err(|why| undecodable(kind, &why))?;
    birth(kind, &mut new, now);
    defaults(kind, &mut new);
    owners::drop_duplicates(&mut new);
    let causes = complaints(kind, &new);
    if causes.is_empty() {
        Ok(new)
    } else {
        Err(ApiError::invalid(kind, object::name(&new), causes))
    }
}

/// The object as given, with only the fields that every stored object has.
pub fn raw(kind: &'static Kind, mut new: Value, now: Timestamp) -> Value {
    let given = object::metadata_mut(&mut new).clone();
    birth(kind, &mut new, now);
    object::metadata_mut(&mut new).extend(given);
    new
}

/// A body that does not fit the kind.
pub fn undecodable(kind: &'static Kind, why: &str) -> ApiError {
    ApiError::bad_request(format!(
        "{0} in version \"{1}\" cannot be handled as a {0}: {why}",
        kind.kind, kind.version
    ))
}

fn place(kind: &'static Kind, namespace: &str, new: &mut Value) -> Result<(), ApiError> {
    let metadata = object::metadata_mut(new);
    if !kind.namespaced {
        metadata.remove("namespace");
        return Ok(());
    }
    let given = metadata.get("namespace").and_then(Value::as_str).unwrap_or_default();
    if !given.is_empty() && given != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    metadata.insert("namespace".to_owned(), namespace.into());
    Ok(())
}

fn birth(kind: &'static Kind, new: &mut Value, now: Timestamp) {
    let metadata = object::metadata_mut(new);
    for field in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "selfLink",
        "managedFields",
    ] {
        metadata.remove(field);
    }
    metadata.insert("uid".to_owned(), Uuid::new_v4().to_string().into());
    metadata.insert("creationTimestamp".to_owned(), object::stamp(now).into());
    if kind.generation {
        metadata.insert("generation".to_owned(), 1.into());
    }
}

fn defaults(kind: &'static Kind, new: &mut Value) {
    if kind.custom {
        if let (true, Value::Object(new)) = (kind.status, new) {
            new.remove("status");
        }
        return;
    }
    match kind.kind {
        "Pod" => pods::defaults(new),
        "Namespace" => {
            new["status"] = json!({ "phase": "Active" });
            new["spec"] = json!({ "finalizers": ["kubernetes"] });
            let name = object::name(new).to_owned();
            object::child_mut(&mut new["metadata"], "labels")
                .insert("kubernetes.io/metadata.name".to_owned(), name.into());
        }
        // A node brings its status along when it registers.
        "Node" => {}
        _ if kind.status => new["status"] = json!({}),
        _ => {}
    }
}

fn complaints(kind: &'static Kind, new: &Value) -> Vec<Cause> {
    let name = object::name(new);
    let mut causes = Vec::new();
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else if !is_subdomain(name) {
        let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                   and must start and end with an alphanumeric character";
        causes.push(Cause::invalid("metadata.name", &name.into(), why));
    }
    causes.extend(owners::complaints(new));
    match kind.kind {
        _ if kind.custom => {}
        "CustomResourceDefinition" => causes.extend(definitions::complaints(new)),
        "Pod" => causes.extend(pods::complaints(new)),
        "Lease" => causes.extend(leases::complaints(new)),
        "Event" if kind.group.is_empty() => causes.extend(stray_event(new)),
        _ => {}
    }
    causes
}

/// An event is in the namespace of its object; those about cluster-scoped objects are in `default`.
fn stray_event(event: &Value) -> Option<Cause> {
    let about = object::text(event, "/involvedObject/namespace");
    let home = object::namespace(event);
    let right = about == home || (about.is_empty() && home == "default");
    (!right).then(|| {
        Cause::invalid(
            "involvedObject.namespace",
            &about.into(),
            "does not match event.namespace",
        )
    })
}

fn is_subdomain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label =
        |label: &str| label.starts_with(plain) && label.ends_with(plain) && label.chars().all(|c| plain(c) || c == '-');
    name.len() <= 253 && name.split('.').all(label)
}
