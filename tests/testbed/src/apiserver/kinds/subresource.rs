//! Subresources.

use super::Kind;

/// A subresource with its verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subresource {
    /// Its name, as in the path.
    pub name: &'static str,
    /// Its verbs.
    pub verbs: &'static [&'static str],
    /// Group and version of its body, empty if they are those of the object.
    pub home: (&'static str, &'static str),
    /// The kind of its body.
    pub kind: &'static str,
}

// === impl Kind ===

impl Kind {
    /// The subresources of this kind, by name.
    #[must_use]
    pub fn subresources(&self) -> Vec<Subresource> {
        let mut all = Vec::new();
        if self.group.is_empty() && self.kind == "Pod" {
            all.push(Subresource {
                name: "binding",
                verbs: &["create"],
                home: ("", ""),
                kind: "Binding",
            });
            all.push(Subresource {
                name: "eviction",
                verbs: &["create"],
                home: ("policy", "v1"),
                kind: "Eviction",
            });
        }
        if self.status {
            all.push(Subresource {
                name: "status",
                verbs: &["get", "patch", "update"],
                home: ("", ""),
                kind: self.kind,
            });
        }
        all
    }
}
