//! References to owners that are there, but not where the references say: somebody meant them, and is told so.

use std::{collections::HashSet, time::Duration};

use super::graph::{Graph, NodeId, State};
use crate::events::Involved;

/// So many are remembered as told of.
const REMEMBERED: usize = 4096;

/// Those to be told of, and those that were.
#[derive(Debug, Default)]
pub struct Misplaced {
    new: Vec<(Involved, String)>,
    /// UIDs of dependents and owners.
    told: HashSet<(String, String)>,
}

// === impl Misplaced ===

impl Misplaced {
    /// These owners of a dependent are not where they should be. Those that are elsewhere are to be told of, once.
    pub fn note(&mut self, graph: &Graph, dependent: NodeId, owners: &[NodeId]) {
        for &owner in owners {
            if graph.node(owner).state.has(State::OBSERVED) || !graph.is_elsewhere(owner) {
                continue;
            }
            if self.told.len() >= REMEMBERED {
                self.told.clear();
            }
            if self.told.insert((graph.uid(dependent), graph.uid(owner))) {
                self.new
                    .push((involved(graph, dependent), message(graph, dependent, owner)));
            }
        }
    }

    /// Those to be told of, each a dependent and what is wrong with it.
    pub fn take(&mut self) -> Vec<(Involved, String)> {
        std::mem::take(&mut self.new)
    }
}

/// Foreground deletions that wait for groups whose servers cannot be reached: those to be told of, and those that were.
#[derive(Debug, Default)]
pub struct Delayed {
    new: Vec<(Involved, String)>,
    /// UIDs.
    told: HashSet<String>,
}

// === impl Delayed ===

impl Delayed {
    /// The deletion of this object waits because of this, so long at most. It is to be told of once.
    pub fn note(&mut self, graph: &Graph, id: NodeId, why: &str, most: Duration) {
        if self.told.len() >= REMEMBERED {
            self.told.clear();
        }
        if self.told.insert(graph.uid(id)) {
            let most = humantime::format_duration(most);
            let message = format!(
                "{why}; the foreground deletion waits until {most} have passed since the first failure, and then ends \
                 without these kinds"
            );
            self.new.push((involved(graph, id), message));
        }
    }

    /// Those to be told of.
    pub fn take(&mut self) -> Vec<(Involved, String)> {
        std::mem::take(&mut self.new)
    }
}

/// The words of kube-controller-manager.
fn message(graph: &Graph, dependent: NodeId, owner: NodeId) -> String {
    let Involved {
        api_version,
        kind,
        name,
        uid,
        ..
    } = involved(graph, owner);
    let namespace = graph.namespace(graph.node(dependent).namespace);
    format!(
        r#"ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace "{namespace}""#
    )
}

fn involved(graph: &Graph, id: NodeId) -> Involved {
    let node = graph.node(id);
    let (group, resource) = (graph.kinds.group(node.kind), graph.kinds.resource(node.kind));
    let version = resource.map_or("", |resource| &resource.version);
    Involved {
        api_version: if group.is_empty() {
            version.to_owned()
        } else {
            format!("{group}/{version}")
        },
        kind: graph.kinds.kind(node.kind).to_owned(),
        namespace: graph.namespace(node.namespace).to_owned(),
        name: node.name.to_string(),
        uid: graph.uid(id),
    }
}
