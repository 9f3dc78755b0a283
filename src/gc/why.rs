//! Why an object is still there: what the collector knows of it, and of what it waits for, down to the one that everything
//! waits for. Nothing here asks; it tells what is known at one moment.

mod chain;
mod find;
mod words;

#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    core::Core,
    graph::NodeId,
    names::{clipped, visible},
};
use crate::object_name::ObjectName;

use self::{chain::Chain, find::find, words::Words};

/// See the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Why {
    /// The object that was asked for, and each that the one before it waits for.
    pub objects: Vec<Told>,
    /// What it comes to.
    pub end: String,
}

/// What is known of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Told {
    /// `KIND.GROUP NAMESPACE/NAME`.
    pub object: String,
    /// Its UID.
    pub uid: String,
    /// Short sentences.
    pub says: Vec<String>,
}

// === impl Why ===

impl Why {
    /// Of an object that somebody names; an error if the graph has none like it.
    pub fn asked(core: &Core, name: &ObjectName, now: Instant) -> Result<Self, String> {
        find(name, &core.graph).map(|id| Self::of(core, id, now))
    }

    fn of(core: &Core, id: NodeId, now: Instant) -> Self {
        let words = Words { core, now };
        let chain = Chain::from(core, id);
        let told = |&id: &NodeId| Told {
            object: words.called(id),
            uid: visible(&clipped(&core.graph.uid(id))),
            says: words.says(id),
        };
        Self {
            objects: chain.nodes.iter().map(told).collect(),
            end: words.end(&chain),
        }
    }

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
