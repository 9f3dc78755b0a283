//! Why an object is still there, as it is told to people: the object, each that the one before it waits for, and what it
//! comes to.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The object that was asked for, and each that the one before it waits for.
    pub objects: Vec<ObjectFacts>,
    /// What it comes to.
    pub end: String,
}

/// What is known of an object.
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

// === impl Why ===

impl Explanation {
    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for (place, it) in self.objects.iter().enumerate() {
            let waits = if place > 0 { "which waits for " } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{waits}{}  uid {}", it.object, it.uid);
            for line in &it.says {
                let _ = writeln!(out, "  {line}");
            }
        }
        let _ = writeln!(out, "\n{}", self.end);
        out
    }
}
