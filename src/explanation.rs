//! Explains why an object still exists: a chain of objects, each of which waits for the next, and a conclusion.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// Why an object still exists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The queried object, and the objects that it waits for, in order.
    pub objects: Vec<ObjectFacts>,
    /// The conclusion.
    pub end: String,
}

/// Facts about an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObjectFacts {
    /// `KIND.GROUP NAMESPACE/NAME`.
    pub object: String,
    /// Its UID.
    pub uid: String,
    /// Short sentences.
    pub says: Vec<String>,
}

// === impl Explanation ===

impl Explanation {
    /// Formats the explanation.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (index, facts) in self.objects.iter().enumerate() {
            let waits = if index > 0 { "which waits for " } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{waits}{}  uid {}", facts.object, facts.uid);
            for line in &facts.says {
                let _ = writeln!(out, "  {line}");
            }
        }
        let _ = writeln!(out, "\n{}", self.end);
        out
    }
}
