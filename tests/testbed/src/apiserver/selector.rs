//! Which objects a list or a watch is about: labels and fields together.

pub mod fields;
pub mod labels;

use super::error::ApiError;
use super::kinds::Kind;
use super::stored::Stored;
use fields::FieldSelector;
use labels::LabelSelector;

/// A label and a field selector; both empty match everything.
#[derive(Debug, Default)]
pub struct Selector {
    /// By labels.
    pub labels: LabelSelector,
    /// By fields.
    pub fields: FieldSelector,
}

// === impl Selector ===

impl Selector {
    /// Reads both selectors of a request for `kind`.
    ///
    /// # Errors
    /// A selector that cannot be read, or a field that the kind does not offer.
    pub fn parse(kind: &'static Kind, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let labels = LabelSelector::parse(labels)
            .map_err(|why| ApiError::bad_request(format!("unable to parse requirement: {why}")))?;
        Ok(Selector {
            labels,
            fields: FieldSelector::parse(kind, fields)?,
        })
    }

    /// Whether every object matches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether this object matches.
    #[must_use]
    pub fn matches(&self, object: &Stored) -> bool {
        if self.is_empty() {
            return true;
        }
        let object = object.value();
        self.fields.matches(&object) && self.labels.matches(&object)
    }
}
