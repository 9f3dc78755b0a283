//! Owners and dependents: what tests write of them, and read.

use serde_json::{Value, json};

/// A finalizer that no controller takes off.
pub const HELD: &str = "example.test/held";

/// An object's references, and its finalizers.
#[derive(Default)]
pub struct Like {
    /// The references.
    pub owners: Vec<Value>,
    /// The finalizers.
    pub finalizers: Vec<&'static str>,
}

/// A reference to an object as it was returned.
pub fn to(owner: &Value, blocking: bool) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocking,
    })
}

/// No finalizers, and these owners.
pub fn owned(owners: impl IntoIterator<Item = Value>) -> Like {
    Like {
        owners: owners.into_iter().collect(),
        finalizers: Vec::new(),
    }
}

/// [`HELD`], and these owners.
pub fn held(owners: impl IntoIterator<Item = Value>) -> Like {
    Like {
        finalizers: vec![HELD],
        ..owned(owners)
    }
}

/// Names of the owners that an object names.
pub fn owners_of(object: &Value) -> Vec<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners
        .into_iter()
        .flatten()
        .filter_map(|owner| owner["name"].as_str())
        .collect()
}
