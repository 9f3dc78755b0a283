//! Rules for definitions of custom kinds.

use serde_json::Value;

use crate::apiserver::error::Cause;
use crate::apiserver::object::{self, text};

/// Errors of a definition.
pub fn complaints(definition: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let right = format!(
        "{}.{}",
        text(definition, "/spec/names/plural"),
        text(definition, "/spec/group")
    );
    let name = object::name(definition);
    if name != right {
        let why = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", &name.into(), why));
    }
    let versions = definition.pointer("/spec/versions").and_then(Value::as_array);
    let stored = versions
        .into_iter()
        .flatten()
        .filter(|version| version["storage"] == true);
    if stored.count() != 1 {
        let versions = &definition["spec"]["versions"];
        let why = "must have exactly one version marked as storage version";
        causes.push(Cause::invalid("spec.versions", versions, why));
    }
    for field in ["/spec/names/kind", "/spec/scope"] {
        if text(definition, field).is_empty() {
            causes.push(Cause::required(&field[1..].replace('/', "."), ""));
        }
    }
    causes
}
