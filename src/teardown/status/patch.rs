//! The smallest strategic merge patch that gives an object the status that was generated for it. It is sent with the
//! resourceVersion of the object, so that it reverts no change since.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use serde_json::{Map, Value, json, value::RawValue};

use super::normalize::normalize;

/// Own fields of a status besides its lists.
const FIELDS: [&str; 7] = [
    "phase",
    "reason",
    "message",
    "observedGeneration",
    "podIP",
    "podIPs",
    "startTime",
];

/// Fields of a condition that may be absent.
const OPTIONAL: [&str; 5] = [
    "lastProbeTime",
    "lastTransitionTime",
    "message",
    "observedGeneration",
    "reason",
];

/// Body of a `PATCH pods/status` (strategic merge), or `None` if nothing differs.
///
/// `uid` is the pod that the status was generated for. It is the precondition, never the UID of the object. An object with
/// another UID needs no patch. `raw` is its status in the server's JSON, with the fields that this agent does not know.
pub fn patch(api: &Pod, raw: Option<&RawValue>, uid: &str, wanted: &PodStatus) -> Option<Value> {
    if uid.is_empty() || api.metadata.uid.as_deref() != Some(uid) {
        return None;
    }
    let mut live = api.status.clone().unwrap_or_default();
    let no_spec = PodSpec::default();
    normalize(api.spec.as_ref().unwrap_or(&no_spec), &mut live);
    let [live, wanted] = [&live, wanted].map(|status| serde_json::to_value(status).unwrap_or_default());
    let mut status = Map::new();
    // An empty text equals none.
    let field_of = |status: &Value, field| Some(status[field].clone()).filter(|it| *it != "").unwrap_or_default();
    for field in FIELDS {
        let wanted = field_of(&wanted, field);
        if field_of(&live, field) != wanted {
            status.insert(field.to_owned(), wanted);
        }
    }
    // The server merges this list by `type`, in the order that is given with it.
    let all = list(&wanted, "conditions");
    let conditions = changed_conditions(list(&live, "conditions"), all);
    if !conditions.is_empty() {
        status.insert("conditions".to_owned(), Value::Array(conditions));
        let order = all.iter().map(|it| json!({ "type": it["type"] })).collect();
        status.insert("$setElementOrder/conditions".to_owned(), Value::Array(order));
    }
    let raw = raw.and_then(|raw| serde_json::from_str(raw.get()).ok());
    let raw: Value = raw.unwrap_or_default();
    for field in [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ] {
        let (live, entries) = (list(&live, field), list(&wanted, field));
        if live != entries {
            let entries = wanted.get(field).map(|_| with_raw(live, list(&raw, field), entries));
            status.insert(field.to_owned(), json!(entries));
        }
    }
    (!status.is_empty()).then(|| json!({ "metadata": { "uid": uid }, "status": status }))
}

fn list<'a>(status: &'a Value, field: &str) -> &'a [Value] {
    status[field].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The conditions that differ. Absent fields of one that the server has are removed.
fn changed_conditions(live: &[Value], wanted: &[Value]) -> Vec<Value> {
    let without_empty = |condition: &Value| {
        let mut fields = condition.as_object().cloned().unwrap_or_default();
        fields.retain(|field, value| *value != "" || !OPTIONAL.contains(&&**field));
        fields
    };
    let change = |condition: &Value| {
        let old = live.iter().find(|old| old["type"] == condition["type"]);
        let mut change = without_empty(condition);
        if old.map(without_empty).as_ref() == Some(&change) {
            return None;
        }
        if old.is_some() {
            for field in OPTIONAL {
                change.entry(field).or_insert(Value::Null);
            }
        }
        Some(Value::Object(change))
    };
    wanted.iter().filter_map(change).collect()
}

/// The entries of a list that the server replaces as a whole, with all unchanged and unknown fields of its JSON.
fn with_raw(live: &[Value], raw: &[Value], wanted: &[Value]) -> Vec<Value> {
    // A pod may have thousands.
    let by_name = |list: &[Value]| -> HashMap<String, Value> {
        let all = list.iter().rev();
        let named = all.filter_map(|it| Some((it["name"].as_str()?.to_owned(), it.clone())));
        named.collect()
    };
    let (live, raw) = (by_name(live), by_name(raw));
    let merged = |entry: &Value| {
        let mut merged = entry.clone();
        let name = entry["name"].as_str().unwrap_or_default();
        let old = live.get(name);
        let shown = raw.get(name).and_then(Value::as_object);
        for (field, value) in shown.into_iter().flatten() {
            if old.and_then(|old| old.get(field)) == entry.get(field) {
                merged[field] = value.clone();
            }
        }
        merged
    };
    wanted.iter().map(merged).collect()
}
