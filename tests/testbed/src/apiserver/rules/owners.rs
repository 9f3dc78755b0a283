//! Rules for owner references and finalizers of any kind.

use serde_json::{Value, json};

use crate::apiserver::error::Cause;
use crate::apiserver::object;

/// Drops owner references that are exact copies of an earlier one.
pub fn drop_duplicates(object: &mut Value) {
    if let Some(Value::Array(owners)) = object::metadata_mut(object).get_mut("ownerReferences") {
        let mut kept: Vec<Value> = Vec::with_capacity(owners.len());
        for owner in owners.drain(..) {
            if !kept.contains(&owner) {
                kept.push(owner);
            }
        }
        *owners = kept;
    }
}

/// Errors of the owner references and finalizers of `object`.
pub fn complaints(object: &Value) -> Vec<Cause> {
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let owners = owners.map(Vec::as_slice).unwrap_or_default();
    let mut causes = Vec::new();
    for (index, owner) in owners.iter().enumerate() {
        let place = format!("metadata.ownerReferences[{index}]");
        for field in ["apiVersion", "kind", "name", "uid"] {
            if owner[field].as_str().unwrap_or_default().is_empty() {
                causes.push(Cause::required(&format!("{place}.{field}"), "must not be empty"));
            }
        }
        if owner["apiVersion"] == "v1" && owner["kind"] == "Event" {
            causes.push(Cause::invalid(
                &place,
                owner,
                "/v1, Kind=Event is disallowed from being an owner",
            ));
        }
    }
    if owners.iter().filter(|owner| owner["controller"] == true).count() > 1 {
        let why = "Only one reference can have Controller set to true";
        causes.push(Cause::invalid("metadata.ownerReferences", &owners.into(), why));
    }
    let finalizers = object::finalizers(object);
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        let why = "finalizers orphan and foregroundDeletion cannot be both set";
        causes.push(Cause::invalid("metadata.finalizers", &json!(finalizers), why));
    }
    causes
}
