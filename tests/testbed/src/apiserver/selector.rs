//! Field selectors: `spec.nodeName=n,metadata.name=a`, only on the fields that a kind offers.

use super::error::ApiError;
use super::kinds::Kind;
use super::object;
use super::stored::Stored;

/// Fields with their required values; without any, everything matches.
#[derive(Debug, Default)]
pub struct Selector(Vec<(String, String)>);

/// Every kind offers these.
const COMMON: [&str; 2] = ["metadata.name", "metadata.namespace"];

// === impl Selector ===

impl Selector {
    /// Reads a selector; the empty one matches everything.
    ///
    /// # Errors
    /// A term without an operator, or a field that the kind does not offer.
    pub fn parse(kind: &'static Kind, text: &str) -> Result<Self, ApiError> {
        let terms = text.split(',').filter(|term| !term.is_empty());
        let read = terms.map(|term| {
            let (field, value) = term.split_once("==").or_else(|| term.split_once('=')).ok_or_else(|| {
                ApiError::bad_request(format!("invalid selector: '{term}'; can't understand '{term}'"))
            })?;
            check(kind, field)?;
            Ok((field.to_owned(), value.to_owned()))
        });
        read.collect::<Result<_, _>>().map(Selector)
    }

    /// Whether every object matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this object matches.
    #[must_use]
    pub fn matches(&self, object: &Stored) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let object = object.value();
        let is = |field: &str| object::text(&object, &format!("/{}", field.replace('.', "/"))).to_owned();
        self.0.iter().all(|(field, value)| is(field) == *value)
    }

    /// The value that `field` must have, if the selector says so.
    #[must_use]
    pub fn required(&self, field: &str) -> Option<&str> {
        let mut terms = self.0.iter();
        terms
            .find(|(required, _)| required == field)
            .map(|(_, value)| value.as_str())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apiserver::kinds;
    use serde_json::json;

    fn pods(selector: &str) -> Result<Selector, ApiError> {
        Selector::parse(kinds::find("", "v1", "pods").unwrap(), selector)
    }

    #[test]
    fn a_pod_is_found_by_node_and_name() {
        let pod = Stored::new(
            "ns/a",
            json!({ "metadata": { "name": "a" }, "spec": { "nodeName": "n" } }),
            1,
        );
        for (selector, expected) in [
            ("", true),
            ("spec.nodeName=n", true),
            ("spec.nodeName==n,metadata.name=a", true),
            ("spec.nodeName=m", false),
            ("spec.nodeName=", false),
            ("metadata.namespace=", true),
            ("metadata.name=b", false),
        ] {
            assert_eq!(pods(selector).unwrap().matches(&pod), expected, "{selector}");
        }
    }

    #[test]
    fn an_unknown_field_is_named_in_the_refusal() {
        for selector in ["spec.foo=1", "spec.nodeName!=n", "spec.nodeName"] {
            assert_eq!(pods(selector).unwrap_err().code, 400, "{selector}");
        }
        let maps = kinds::find("", "v1", "configmaps").unwrap();
        let message = Selector::parse(maps, "data=1").unwrap_err().message;
        assert_eq!(
            message,
            r#""data" is not a known field selector: only "metadata.name", "metadata.namespace""#
        );
    }
}
