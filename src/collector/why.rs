//! `gc why`: explains why an object still exists, along the chain of objects that it waits for.

mod chain;
mod find;
mod words;

#[cfg(test)]
mod tests;

use tokio::time::Instant;

use super::{
    core::Core,
    graph::NodeId,
    names::{clipped, visible},
};
use crate::{
    object_name::ObjectName,
    why::{Told, Why},
};

use self::{chain::Chain, find::find, words::Words};

/// Explains the object with this name.
///
/// # Errors
///
/// The graph has no such object, or several. The text says what to do.
pub fn asked(core: &Core, name: &ObjectName, now: Instant) -> Result<Why, String> {
    find(name, &core.graph).map(|id| of(core, id, now))
}

fn of(core: &Core, id: NodeId, now: Instant) -> Why {
    let words = Words { core, now };
    let chain = Chain::from(core, id);
    let told = |&id: &NodeId| Told {
        object: words.called(id),
        uid: visible(&clipped(&core.graph.uid(id))),
        says: words.says(id),
    };
    Why {
        objects: chain.nodes.iter().map(told).collect(),
        end: words.end(&chain),
    }
}
