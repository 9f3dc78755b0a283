//! Explains why an object still exists: a chain of objects, each waiting for the next, and a conclusion.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use self::cause::Cause;
use crate::words::escape_control_chars;

pub mod cause;
mod finalizers;

/// Why an object still exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The queried object, and the objects that it waits for, in order.
    pub objects: Vec<ObjectFacts>,
    /// What blocks the deletion of the queried object, most urgent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// The conclusion.
    pub end: String,
}

/// Facts about an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ObjectFacts {
    /// `KIND.GROUP NAMESPACE/NAME`.
    pub object: String,
    /// Its UID.
    pub uid: String,
    /// Short sentences.
    pub facts: Vec<String>,
}

// === impl ObjectFacts ===

impl ObjectFacts {
    /// Facts that may contain untrusted texts: control characters are escaped.
    pub fn new(object: &str, uid: &str, facts: &[String]) -> Self {
        Self {
            object: escape_control_chars(object),
            uid: escape_control_chars(uid),
            facts: facts.iter().map(|fact| escape_control_chars(fact)).collect(),
        }
    }
}

// === impl Explanation ===

impl Explanation {
    /// Formats the explanation.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (index, object) in self.objects.iter().enumerate() {
            let waits = if index > 0 { "waits for " } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{waits}{}  uid {}", object.object, object.uid);
            for line in &object.facts {
                let _ = writeln!(out, "  {line}");
            }
        }
        for (index, cause) in self.causes.iter().enumerate() {
            let gap = if index == 0 { "\n" } else { "" };
            let _ = writeln!(out, "{gap}{:<8} {}", cause.severity.label(), cause.message);
            if !cause.remedy.is_empty() {
                let _ = writeln!(out, "{:<8} -> {}", "", cause.remedy);
            }
        }
        let _ = writeln!(out, "\n{}", self.end);
        out
    }
}
