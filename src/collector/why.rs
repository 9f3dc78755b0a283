//! `pod-teardown why`: explains why an object still exists, along the chain of objects that it waits for.

mod chain;
mod find;
mod words;

#[cfg(test)]
mod tests;

use tokio::time::Instant;

use super::{
    core::Core,
    graph::NodeId,
    names::{escape_control_chars, truncate},
};
use crate::{
    explanation::{Explanation, ObjectFacts},
    object_name::ObjectName,
};

pub use self::find::find;
pub(super) use self::words::recreated;
use self::{chain::Chain, words::Explainer};

/// Explains the object with this name.
///
/// # Errors
///
/// The graph has no such object, or several. The text has the remedy.
pub fn explain(core: &Core, name: &ObjectName, now: Instant) -> Result<Explanation, String> {
    find(name, &core.graph).map(|id| explain_node(core, id, now))
}

fn explain_node(core: &Core, id: NodeId, now: Instant) -> Explanation {
    let explainer = Explainer { core, now };
    let chain = Chain::longest_from(core, id);
    let object_facts = |&id: &NodeId| ObjectFacts {
        object: explainer.object_label(id),
        uid: escape_control_chars(&truncate(&core.graph.uid(id))),
        facts: explainer.facts(id),
    };
    Explanation {
        objects: chain.nodes.iter().map(object_facts).collect(),
        causes: Vec::new(),
        end: explainer.conclusion(&chain),
        is_gone: false,
    }
}
