//! Field selectors: `spec.nodeName=n,status.phase!=Failed`, only on the fields that a kind offers.

use serde_json::Value;

use crate::apiserver::error::ApiError;
use crate::apiserver::kinds::Kind;

/// Terms that must all hold.
#[derive(Debug, Default)]
pub struct FieldSelector(Vec<Term>);

#[derive(Debug)]
struct Term {
    field: String,
    value: String,
    equal: bool,
}

/// Every kind offers these.
const COMMON: [&str; 2] = ["metadata.name", "metadata.namespace"];

// === impl FieldSelector ===

impl FieldSelector {
    /// Reads a selector; the empty one matches everything.
    ///
    /// # Errors
    /// A term without an operator, or a field that the kind does not offer.
    pub fn parse(kind: &'static Kind, text: &str) -> Result<Self, ApiError> {
        let terms = split(text).into_iter().filter(|term| !term.is_empty());
        terms
            .map(|term| Term::parse(kind, &term))
            .collect::<Result<_, _>>()
            .map(FieldSelector)
    }

    /// Whether every object matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the fields of this object match.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        self.0
            .iter()
            .all(|term| field_is(object, &term.field, &term.value) == term.equal)
    }

    /// The one value that `field` must have, if the selector says so.
    #[must_use]
    pub fn required(&self, field: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|term| term.equal && term.field == field)
            .map(|term| term.value.as_str())
    }
}

// === impl Term ===

impl Term {
    fn parse(kind: &'static Kind, term: &str) -> Result<Self, ApiError> {
        let (field, value, equal) = if let Some((field, value)) = term.split_once("!=") {
            (field, value, false)
        } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (field, value, true)
        } else {
            let message = format!("invalid selector: '{term}'; can't understand '{term}'");
            return Err(ApiError::bad_request(message));
        };
        check(kind, field)?;
        let field = if field == "spec.host" { "spec.nodeName" } else { field };
        Ok(Term {
            field: field.to_owned(),
            value: unescape(value),
            equal,
        })
    }
}

fn check(kind: &'static Kind, field: &str) -> Result<(), ApiError> {
    if COMMON.contains(&field) {
        return Ok(());
    }
    match kind.fields {
        Some(fields) if fields.contains(&field) => Ok(()),
        Some(_) => Err(ApiError::bad_request(format!("field label not supported: {field}"))),
        None => Err(ApiError::bad_request(format!(
            "\"{field}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        ))),
    }
}

fn field_is(object: &Value, field: &str, wanted: &str) -> bool {
    let found = field.split('.').try_fold(object, |value, part| value.get(part));
    match (field, found) {
        ("spec.hostNetwork" | "spec.unschedulable", None | Some(Value::Null)) => wanted == "false",
        ("source", Some(source)) => source.get("component").and_then(Value::as_str).unwrap_or_default() == wanted,
        ("status.podIPs", Some(Value::Array(ips))) => ips.iter().any(|ip| ip["ip"] == wanted),
        (_, Some(Value::String(text))) => text == wanted,
        (_, Some(Value::Bool(flag))) => wanted == if *flag { "true" } else { "false" },
        (_, Some(Value::Number(number))) => number.to_string() == wanted,
        (_, _) => wanted.is_empty(),
    }
}

/// Splits at commas that are not escaped.
fn split(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == ',' && !escaped {
            terms.push(String::new());
        } else if let Some(term) = terms.last_mut() {
            term.push(c);
        }
        escaped = c == '\\' && !escaped;
    }
    terms
}

fn unescape(value: &str) -> String {
    let mut plain = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        plain.push(if c == '\\' { chars.next().unwrap_or(c) } else { c });
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::kinds;
    use serde_json::json;

    fn pods(selector: &str) -> Result<FieldSelector, ApiError> {
        FieldSelector::parse(kinds::find("", "v1", "pods").unwrap(), selector)
    }

    #[test]
    fn a_pod_is_found_by_node_phase_and_network() {
        let pod = json!({ "metadata": { "name": "a" }, "spec": { "nodeName": "n" }, "status": { "phase": "Running" } });
        for (selector, expected) in [
            ("spec.nodeName=n", true),
            ("spec.host==n,status.phase!=Failed", true),
            ("spec.nodeName=m", false),
            ("spec.nodeName!=", true),
            ("spec.hostNetwork=false", true),
            ("metadata.name=b", false),
        ] {
            assert_eq!(pods(selector).unwrap().matches(&pod), expected, "{selector}");
        }
    }

    #[test]
    fn an_unknown_field_is_named_in_the_refusal() {
        assert_eq!(
            pods("spec.foo=1").unwrap_err().message,
            "field label not supported: spec.foo"
        );
        let maps = kinds::find("", "v1", "configmaps").unwrap();
        let message = FieldSelector::parse(maps, "data=1").unwrap_err().message;
        assert_eq!(
            message,
            r#""data" is not a known field selector: only "metadata.name", "metadata.namespace""#
        );
    }
}
