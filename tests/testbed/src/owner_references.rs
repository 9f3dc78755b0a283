//! Owner references in tests.

use serde_json::{Value, json};

/// A finalizer that no controller removes.
pub const TEST_FINALIZER: &str = "example.test/held";

/// Owner references and finalizers of an object.
#[derive(Default)]
pub struct ObjectSpec {
    /// Owner references.
    pub owners: Vec<Value>,
    pub finalizers: Vec<&'static str>,
}

/// An owner reference to an object of the API server.
pub fn to(owner: &Value, blocking: bool) -> Value {
    json!({
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocking,
    })
}

/// These owners and no finalizer.
pub fn owned(owners: impl IntoIterator<Item = Value>) -> ObjectSpec {
    ObjectSpec {
        owners: owners.into_iter().collect(),
        finalizers: Vec::new(),
    }
}

/// These owners and [`TEST_FINALIZER`].
pub fn with_finalizer(owners: impl IntoIterator<Item = Value>) -> ObjectSpec {
    ObjectSpec {
        finalizers: vec![TEST_FINALIZER],
        ..owned(owners)
    }
}

/// Names of an object's owners.
pub fn owners_of(object: &Value) -> Vec<&str> {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners
        .into_iter()
        .flatten()
        .filter_map(|owner| owner["name"].as_str())
        .collect()
}
