//! Fields that a kind does not have: a typed server drops them, and says so.

use serde_json::Value;

use crate::apiserver::kinds::Kind;

/// Every object has these.
const COMMON: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Drops the fields of `object` that its kind does not have and answers with a warning for each. Only the outermost
/// fields are known here; what is inside a spec or a status is kept as it is, as is all of a custom object.
pub fn drop_fields(kind: &'static Kind, object: &mut Value) -> Vec<String> {
    let mut warnings = Vec::new();
    if kind.custom {
        return warnings;
    }
    if let Value::Object(map) = object {
        map.retain(|field, _| {
            let known = COMMON.contains(&field.as_str()) || kind.body.contains(&field.as_str());
            if !known {
                warnings.push(format!("unknown field \"{field}\""));
            }
            known
        });
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::kinds;
    use serde_json::json;

    #[test]
    fn a_field_of_another_kind_is_dropped_and_named() {
        let maps = kinds::find("", "v1", "configmaps").unwrap();
        let mut map = json!({ "kind": "ConfigMap", "metadata": {}, "data": {}, "spec": {} });
        assert_eq!(drop_fields(maps, &mut map), [r#"unknown field "spec""#]);
        assert_eq!(map, json!({ "kind": "ConfigMap", "metadata": {}, "data": {} }));
    }
}
