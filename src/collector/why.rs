//! Why an object is still there: what the collector knows of it, and of what it waits for, down to the one that everything
//! waits for. Nothing here asks; it tells what is known at one moment.

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

/// Of an object that somebody names; an error if the graph has none like it.
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
