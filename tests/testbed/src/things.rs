//! A custom kind for tests: `Thing`, in any group.

use serde_json::{Value, json};

/// The path of all definitions.
pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A definition without a schema, with these versions, the first of which is stored.
pub fn definition(group: &str, namespaced: bool, versions: &[&str]) -> Value {
    let version = |name: &&str| {
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let is_first = Some(name) == versions.first();
        json!({"name": name, "served": true, "storage": is_first, "schema": {"openAPIV3Schema": schema}})
    };
    let versions: Vec<Value> = versions.iter().map(version).collect();
    json!({
        "metadata": {"name": format!("things.{group}")},
        "spec": {
            "group": group, "scope": if namespaced { "Namespaced" } else { "Cluster" },
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"}, "versions": versions,
        },
    })
}
