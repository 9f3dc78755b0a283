//! Reading and writing the parts of an object that the server cares about.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value};

/// The text at a JSON pointer, empty if it is not there.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// `metadata.name`.
pub fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

/// `metadata.namespace`.
pub fn namespace(object: &Value) -> &str {
    text(object, "/metadata/namespace")
}

/// `metadata.uid`.
pub fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// `metadata.resourceVersion`.
pub fn version(object: &Value) -> &str {
    text(object, "/metadata/resourceVersion")
}

/// `metadata.finalizers`, empty if there are none.
pub fn finalizers(object: &Value) -> Vec<&str> {
    let list = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

/// `metadata.deletionTimestamp`: set means that the object is being deleted.
pub fn deletion_time(object: &Value) -> Option<Timestamp> {
    text(object, "/metadata/deletionTimestamp").parse().ok()
}

/// `metadata.deletionGracePeriodSeconds`.
pub fn deletion_grace(object: &Value) -> Option<i64> {
    object
        .pointer("/metadata/deletionGracePeriodSeconds")
        .and_then(Value::as_i64)
}

/// `metadata.generation`, zero for kinds that have none.
pub fn generation(object: &Value) -> i64 {
    object
        .pointer("/metadata/generation")
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// The node that a pod is bound to, empty if none.
pub fn node_name(pod: &Value) -> &str {
    text(pod, "/spec/nodeName")
}

/// `metadata`, made if it is not there.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(object, "metadata")
}

/// The map at `field` of an object, made if it is not there.
pub fn child_mut<'a>(object: &'a mut Value, field: &str) -> &'a mut Map<String, Value> {
    map_of(map_of(object).entry(field).or_insert(Value::Null))
}

fn map_of(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it was made a map above"),
    }
}

/// Sets `metadata.finalizers`; an empty list is left out.
pub fn set_finalizers(object: &mut Value, finalizers: &[String]) {
    let metadata = metadata_mut(object);
    if finalizers.is_empty() {
        metadata.remove("finalizers");
    } else {
        metadata.insert("finalizers".to_owned(), finalizers.into());
    }
}

/// Marks an object as being deleted.
pub fn set_deletion(object: &mut Value, at: Timestamp, grace: i64) {
    let metadata = metadata_mut(object);
    metadata.insert("deletionTimestamp".to_owned(), stamp(at).into());
    metadata.insert("deletionGracePeriodSeconds".to_owned(), grace.into());
}

/// A time as `metav1.Time` is written: whole seconds, the fraction cut.
pub fn stamp(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `time` moved by whole seconds; out of range counts as not at all.
pub fn shifted(time: Timestamp, seconds: i64) -> Timestamp {
    time.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(time)
}

/// Sets a condition of the status, in place of one of the same type.
pub fn set_condition(object: &mut Value, condition: Value) {
    let conditions = child_mut(object, "status")
        .entry("conditions")
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(conditions) = conditions {
        conditions.retain(|old| old["type"] != condition["type"]);
        conditions.push(condition);
    }
}

/// Leaves out kind and apiVersion, which the table of an object knows.
pub fn drop_type(object: &mut Value) {
    if let Value::Object(map) = object {
        map.remove("kind");
        map.remove("apiVersion");
    }
}
