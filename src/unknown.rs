//! Why something is not known.

use std::fmt::Display;

/// The reason why a fact could not be had, in words for a person. Nothing is decided by what it says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unknown(String);

// === impl Unknown ===

impl Unknown {
    /// For `map_err`.
    pub fn new(reason: impl Display) -> Self {
        Self(reason.to_string())
    }
}

impl From<String> for Unknown {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

impl From<&str> for Unknown {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}
