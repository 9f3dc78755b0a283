//! Strategic merge: maps are merged, lists by the key of their path; of the directives, `$patch: delete` of an item.

use serde_json::{Map, Value};

use crate::apiserver::error::ApiError;

const DIRECTIVE: &str = "$patch";
const ELEMENT_ORDER: &str = "$setElementOrder/";

/// The field by which items of the list at `path` are one item, where indices are left out. The items of other lists are
/// replaced as a whole.
fn merge_key(path: &[&str]) -> Result<Option<&'static str>, ApiError> {
    match path {
        ["metadata", "ownerReferences"] => Ok(Some("uid")),
        ["status", "conditions"] => Ok(Some("type")),
        ["status", "podIPs" | "hostIPs"] => Ok(Some("ip")),
        ["status", "resourceClaimStatuses"] => Ok(Some("name")),
        ["status", "addresses"] | ["metadata", "finalizers"] | ["spec", ..] => Err(ApiError::bad_request(format!(
            "this server does not serve a strategic merge of {}",
            path.join(".")
        ))),
        _ => Ok(None),
    }
}

/// Merges `patch` into `object`.
pub fn merge(object: &mut Value, patch: &Value) -> Result<(), ApiError> {
    merge_value(&mut Vec::new(), object, patch)
}

fn merge_value<'a>(path: &mut Vec<&'a str>, object: &mut Value, patch: &'a Value) -> Result<(), ApiError> {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => merge_map(path, object, patch),
        (Value::Array(object), Value::Array(patch)) => merge_list(path, object, patch),
        (object, Value::Object(_)) => {
            *object = Value::Object(Map::new());
            merge_value(path, object, patch)
        }
        (object, Value::Array(_)) => {
            *object = Value::Array(Vec::new());
            merge_value(path, object, patch)
        }
        (object, patch) => {
            *object = patch.clone();
            Ok(())
        }
    }
}

fn merge_map<'a>(
    path: &mut Vec<&'a str>,
    object: &mut Map<String, Value>,
    patch: &'a Map<String, Value>,
) -> Result<(), ApiError> {
    for (key, value) in patch {
        if key.starts_with(ELEMENT_ORDER) {
            // The order of a list is no promise of this server.
        } else if key.starts_with('$') {
            return Err(ApiError::bad_request(format!("this server does not serve {key}")));
        } else if value.is_null() {
            object.remove(key);
        } else {
            path.push(key);
            merge_value(path, object.entry(key.as_str()).or_insert(Value::Null), value)?;
            path.pop();
        }
    }
    Ok(())
}

fn merge_list<'a>(path: &mut Vec<&'a str>, object: &mut Vec<Value>, patch: &'a [Value]) -> Result<(), ApiError> {
    match merge_key(path)? {
        None => *object = patch.to_vec(),
        Some(key) => patch.iter().try_for_each(|item| merge_item(path, key, object, item))?,
    }
    Ok(())
}

fn merge_item<'a>(
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
    let Some(id) = map.get(key) else {
        return Err(ApiError::bad_request(format!(
            "map: {item} does not contain declared merge key: {key}"
        )));
    };
    if map.get(DIRECTIVE).is_some_and(|order| order == "delete") {
        object.retain(|old| old.get(key) != Some(id));
        return Ok(());
    }
    if let Some(old) = object.iter_mut().find(|old| old.get(key) == Some(id)) {
        return merge_value(path, old, item);
    }
    let mut new = Value::Object(Map::new());
    merge_value(path, &mut new, item)?;
    object.push(new);
    Ok(())
}
