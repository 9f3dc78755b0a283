//! A reason.

use std::fmt::Display;

/// A reason in words for a person: why a fact is not known, or why something is not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Why(String);

// === impl Why ===

impl Why {
    /// For `map_err`.
    pub fn new(reason: impl Display) -> Self {
        Self(reason.to_string())
    }
}

impl From<String> for Why {
    fn from(reason: String) -> Self {
        Self(reason)
    }
}

impl From<&str> for Why {
    fn from(reason: &str) -> Self {
        Self(reason.to_owned())
    }
}
