//! Strategic merge: maps are merged, lists by the rule of their path, and `$` keys are directives.

use serde_json::{Map, Value};

use crate::apiserver::error::ApiError;

/// How a list takes a patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListRule {
    /// The new list replaces the old one.
    Replace,
    /// Items with the same value of this field are one item.
    ByKey(&'static str),
    /// Values that are not there yet are added.
    Set,
}

const DIRECTIVE: &str = "$patch";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
const ELEMENT_ORDER: &str = "$setElementOrder/";
const RETAIN_KEYS: &str = "$retainKeys";

/// The rule for the list at `path`, where indices are left out.
fn rule(kind: &str, path: &[&str]) -> ListRule {
    use ListRule::{ByKey, Replace, Set};
    // Templates hold a pod's spec.
    let inner = match path {
        ["spec", "template", rest @ ..] => rest,
        ["spec", "jobTemplate", "spec", "template", rest @ ..] => rest,
        _ => path,
    };
    match (kind, inner) {
        (_, ["metadata", "ownerReferences"]) => ByKey("uid"),
        (_, ["metadata", "finalizers"]) => Set,
        (_, ["status", "conditions"]) => ByKey("type"),
        ("Pod", ["status", "podIPs" | "hostIPs"]) => ByKey("ip"),
        ("Pod", ["status", "resourceClaimStatuses"]) => ByKey("name"),
        ("Node", ["status", "addresses"]) => ByKey("type"),
        ("Node", ["spec", "podCIDRs"]) => Set,
        ("Service", ["spec", "ports"]) => ByKey("port"),
        ("ServiceAccount", ["secrets"]) => ByKey("name"),
        (
            _,
            [
                "spec",
                "containers" | "initContainers" | "ephemeralContainers",
                inner @ ..,
            ],
        ) => match inner {
            [] | ["env"] | ["resources", "claims"] => ByKey("name"),
            ["ports"] => ByKey("containerPort"),
            ["volumeMounts"] => ByKey("mountPath"),
            ["volumeDevices"] => ByKey("devicePath"),
            _ => Replace,
        },
        (
            _,
            [
                "spec",
                "volumes" | "imagePullSecrets" | "schedulingGates" | "resourceClaims",
            ],
        ) => ByKey("name"),
        (_, ["spec", "hostAliases"]) => ByKey("ip"),
        (_, ["spec", "topologySpreadConstraints"]) => ByKey("topologyKey"),
        _ => Replace,
    }
}

/// Merges `patch` into `object`.
///
/// # Errors
/// An order that is not known, or a list item without the field that identifies it.
pub fn merge(kind: &str, object: &mut Value, patch: &Value) -> Result<(), ApiError> {
    merge_value(kind, &mut Vec::new(), object, patch)
}

fn merge_value<'a>(kind: &str, path: &mut Vec<&'a str>, object: &mut Value, patch: &'a Value) -> Result<(), ApiError> {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => merge_map(kind, path, object, patch),
        (Value::Array(object), Value::Array(patch)) => merge_list(kind, path, object, patch),
        (object, Value::Object(_)) => {
            *object = Value::Object(Map::new());
            merge_value(kind, path, object, patch)
        }
        (object, Value::Array(_)) => {
            *object = Value::Array(Vec::new());
            merge_value(kind, path, object, patch)
        }
        (object, patch) => {
            *object = patch.clone();
            Ok(())
        }
    }
}

fn merge_map<'a>(
    kind: &str,
    path: &mut Vec<&'a str>,
    object: &mut Map<String, Value>,
    patch: &'a Map<String, Value>,
) -> Result<(), ApiError> {
    match directive(patch)? {
        Some(Order::Delete) => {
            object.clear();
            return Ok(());
        }
        Some(Order::Replace) => object.clear(),
        None => {}
    }
    if let Some(Value::Array(keys)) = patch.get(RETAIN_KEYS) {
        object.retain(|key, _| keys.iter().any(|kept| kept == key));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE_PRIMITIVES) {
            remove_all(object, list, value);
        } else if key == DIRECTIVE || key == RETAIN_KEYS || key.starts_with(ELEMENT_ORDER) {
            // Orders are obeyed elsewhere; the order of a list is no promise of this server.
        } else if value.is_null() {
            object.remove(key);
        } else {
            path.push(key);
            merge_value(kind, path, object.entry(key.as_str()).or_insert(Value::Null), value)?;
            path.pop();
        }
    }
    Ok(())
}

fn merge_list<'a>(
    kind: &str,
    path: &mut Vec<&'a str>,
    object: &mut Vec<Value>,
    patch: &'a [Value],
) -> Result<(), ApiError> {
    match rule(kind, path) {
        ListRule::Replace => *object = patch.to_vec(),
        ListRule::Set => {
            for value in patch {
                if !object.contains(value) {
                    object.push(value.clone());
                }
            }
        }
        ListRule::ByKey(key) => {
            for item in patch {
                merge_item(kind, path, key, object, item)?;
            }
        }
    }
    Ok(())
}

fn merge_item<'a>(
    kind: &str,
    path: &mut Vec<&'a str>,
    key: &str,
    object: &mut Vec<Value>,
    item: &'a Value,
) -> Result<(), ApiError> {
    let Value::Object(map) = item else {
        return Err(ApiError::bad_request(format!(
            "a list merged by {key} holds something that is no object"
        )));
    };
    let order = directive(map)?;
    if order == Some(Order::Replace) {
        object.clear();
        return Ok(());
    }
    let Some(id) = map.get(key) else {
        return Err(ApiError::bad_request(format!(
            "map: {item} does not contain declared merge key: {key}"
        )));
    };
    if order == Some(Order::Delete) {
        object.retain(|old| old.get(key) != Some(id));
        return Ok(());
    }
    if let Some(old) = object.iter_mut().find(|old| old.get(key) == Some(id)) {
        return merge_value(kind, path, old, item);
    }
    let mut new = Value::Object(Map::new());
    merge_value(kind, path, &mut new, item)?;
    object.push(new);
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Order {
    Delete,
    Replace,
}

fn directive(patch: &Map<String, Value>) -> Result<Option<Order>, ApiError> {
    match patch.get(DIRECTIVE).map(|order| order.as_str().unwrap_or_default()) {
        None | Some("merge") => Ok(None),
        Some("delete") => Ok(Some(Order::Delete)),
        Some("replace") => Ok(Some(Order::Replace)),
        Some(other) => Err(ApiError::bad_request(format!("unknown patch type: {other}"))),
    }
}

fn remove_all(object: &mut Map<String, Value>, list: &str, values: &Value) {
    if let (Some(Value::Array(list)), Value::Array(values)) = (object.get_mut(list), values) {
        list.retain(|value| !values.contains(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn merged(mut object: Value, patch: &Value) -> Value {
        merge("Pod", &mut object, patch).unwrap();
        object
    }

    #[test]
    fn owner_references_are_one_by_uid() {
        let object =
            json!({ "metadata": { "ownerReferences": [{ "uid": "u", "name": "a" }, { "uid": "v", "name": "b" }] } });
        let patch = json!({ "metadata": { "ownerReferences": [
            { "uid": "u", "blockOwnerDeletion": false }, { "$patch": "delete", "uid": "v" }, { "$patch": "delete", "uid": "w" },
            { "uid": "x", "name": "c" },
        ] } });
        let expected = json!({ "metadata": { "ownerReferences": [
            { "uid": "u", "name": "a", "blockOwnerDeletion": false }, { "uid": "x", "name": "c" },
        ] } });
        assert_eq!(merged(object, &patch), expected);
    }

    #[test]
    fn finalizers_are_a_set_and_go_by_order() {
        let object = json!({ "metadata": { "finalizers": ["a", "b"] } });
        let patch = json!({ "metadata": { "finalizers": ["b", "c"], "$deleteFromPrimitiveList/finalizers": ["a"] } });
        assert_eq!(
            merged(object, &patch),
            json!({ "metadata": { "finalizers": ["b", "c"] } })
        );
    }

    #[test]
    fn conditions_are_one_by_type_and_container_statuses_are_replaced() {
        let object = json!({ "status": {
            "conditions": [{ "type": "Ready", "status": "True" }, { "type": "Other" }],
            "containerStatuses": [{ "name": "a", "ready": true }],
        } });
        let patch = json!({ "status": {
            "conditions": [{ "type": "Ready", "status": "False" }],
            "containerStatuses": [{ "name": "b" }],
            "$setElementOrder/conditions": [{ "type": "Ready" }],
        } });
        let expected = json!({ "status": {
            "conditions": [{ "type": "Ready", "status": "False" }, { "type": "Other" }],
            "containerStatuses": [{ "name": "b" }],
        } });
        assert_eq!(merged(object, &patch), expected);
    }

    #[test]
    fn a_null_in_a_new_map_is_not_stored() {
        assert_eq!(
            merged(json!({}), &json!({ "a": { "b": null, "c": 1 } })),
            json!({ "a": { "c": 1 } })
        );
    }

    #[test]
    fn an_item_without_its_key_is_refused() {
        let patch = json!({ "metadata": { "ownerReferences": [{ "name": "a" }] } });
        assert_eq!(merge("Pod", &mut json!({}), &patch).unwrap_err().code, 400);
    }
}
