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

impl Selector {
    /// Reads a selector; the empty one matches everything.
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
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn matches(&self, object: &Stored) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let object = object.value();
        let is = |field: &str| object::text(&object, &format!("/{}", field.replace('.', "/"))).to_owned();
        self.0.iter().all(|(field, value)| is(field) == *value)
    }

    /// The value that `field` must have, if the selector says so.
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
