//! Holds the agent's answers against their JSON schemas.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use serde_json::Value;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/schema");

/// What in this answer is not as the schema of this name says, also fields that it does not have.
pub fn violations(name: &str, answer: &Value) -> Result<Vec<String>> {
    let path = Path::new(DIR).join(format!("{name}.json"));
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let mut schema: Value = serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))?;
    close(&mut schema);
    let validator = jsonschema::validator_for(&schema).with_context(|| format!("compile {}", path.display()))?;
    let errors = validator.iter_errors(answer);
    Ok(errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect())
}

/// Permits no fields but those of the schema: later versions may have more, this one has not.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            let has_own = members.get("properties").is_some_and(Value::is_object);
            for (key, value) in members.iter_mut() {
                match (key.as_str(), value) {
                    // They describe the same object as the properties beside them.
                    ("oneOf" | "anyOf" | "allOf", Value::Array(parts)) if has_own => {
                        let parts = parts.iter_mut().filter_map(|part| part.get_mut("properties"));
                        parts.for_each(close_each);
                    }
                    ("properties" | "$defs", each) => close_each(each),
                    (_, value) => close(value),
                }
            }
            if has_own {
                members.entry("unevaluatedProperties").or_insert(Value::Bool(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// The same for each value of an object that maps names to schemas.
fn close_each(schemas: &mut Value) {
    if let Value::Object(members) = schemas {
        members.values_mut().for_each(close);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn missing_and_additional_fields_are_violations() {
        let holds = json!({ "blocked": null, "items": [] });
        assert_eq!(violations("holds", &holds).unwrap(), Vec::<String>::new());
        for wrong in [
            json!({ "items": [] }),
            json!({ "blocked": null, "items": [], "more": 1 }),
            json!({ "blocked": null, "items": [{ "item": "absence" }] }),
        ] {
            assert!(!violations("holds", &wrong).unwrap().is_empty(), "{wrong}");
        }
        assert!(violations("nothing", &holds).is_err());
    }
}
