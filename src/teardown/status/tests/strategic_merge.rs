//! The server's strategic merge, as far as a pod status needs it.

use serde_json::{Map, Value};

const ORDER: &str = "$setElementOrder/";

/// The server's merge key of a list. Lists without one are replaced.
fn merge_key(field: &str) -> Option<&'static str> {
    match field {
        "conditions" => Some("type"),
        "podIPs" | "hostIPs" => Some("ip"),
        _ => None,
    }
}

/// The object after the patch.
pub(super) fn apply(object: Value, patch: &Value) -> Value {
    let (Value::Object(mut object), Value::Object(patch)) = (object, patch) else {
        return patch.clone();
    };
    for (field, value) in patch.iter().filter(|(field, _)| !field.starts_with(ORDER)) {
        let old = object.remove(field).unwrap_or_default();
        let new = match (merge_key(field), value) {
            (_, Value::Null) => continue,
            (Some(key), Value::Array(changes)) => Value::Array(merge_list(old, key, changes)),
            (_, Value::Object(_)) if old.is_object() => apply(old, value),
            (_, value) => without_nulls(value),
        };
        object.insert(field.clone(), new);
    }
    for (field, order) in patch
        .iter()
        .filter_map(|(field, order)| Some((field.strip_prefix(ORDER)?, order)))
    {
        sort_list(&mut object, field, order, patch.get(field));
    }
    Value::Object(object)
}

fn merge_list(old: Value, key: &str, changes: &[Value]) -> Vec<Value> {
    let mut list = if let Value::Array(list) = old { list } else { Vec::new() };
    for change in changes {
        let place = list.iter().position(|element| element[key] == change[key]);
        match (place, change["$patch"] == "delete") {
            (Some(place), true) => drop(list.remove(place)),
            (Some(place), false) => list[place] = apply(list[place].take(), change),
            (None, true) => {}
            (None, false) => list.push(without_nulls(change)),
        }
    }
    list
}

/// Like the server, rejects a patch whose changes are not in the requested order.
fn sort_list(object: &mut Map<String, Value>, field: &str, order: &Value, changes: Option<&Value>) {
    let key = merge_key(field).expect("only lists with a merge key have an order");
    let order: Vec<&Value> = order.as_array().unwrap().iter().map(|element| &element[key]).collect();
    let place = |element: &Value| order.iter().position(|wanted| **wanted == element[key]);
    let changes = changes.and_then(Value::as_array).into_iter().flatten();
    let places: Vec<usize> = changes
        .filter(|change| change["$patch"] != "delete")
        .map(|change| place(change).unwrap_or_else(|| panic!("{change} is not in the order of {field}")))
        .collect();
    assert!(places.is_sorted(), "{field} is not in the order it asks for");
    if let Some(Value::Array(list)) = object.get_mut(field) {
        list.sort_by_key(|element| place(element).unwrap_or(usize::MAX));
    }
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map
                .iter()
                .filter(|(field, value)| !value.is_null() && !field.starts_with('$'));
            Value::Object(
                kept.map(|(field, value)| (field.clone(), without_nulls(value)))
                    .collect(),
            )
        }
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    }
}
