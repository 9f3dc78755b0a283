//! Events about single objects, each reported once: owner references to another namespace, and delayed foreground
//! deletions.

use std::collections::HashSet;

use super::{
    graph::{Graph, NodeId, NodeState},
    sync_state::AGGREGATED_HOLD,
};
use crate::events::Involved;

/// Maximum number of reported pairs that are remembered.
const MAX_REPORTED: usize = 4096;

/// Owner references to another namespace.
#[derive(Debug, Default)]
pub struct WrongNamespaceOwners {
    pending: Vec<(Involved, String)>,
    /// UIDs of dependents and owners.
    reported: HashSet<(String, String)>,
}

// === impl WrongNamespaceOwners ===

impl WrongNamespaceOwners {
    /// Reports those of these owners that exist at other coordinates than the references say.
    pub fn report(&mut self, graph: &Graph, dependent: NodeId, owners: &[NodeId]) {
        for &owner in owners {
            if graph.node(owner).state.contains(NodeState::OBSERVED) || !graph.exists_elsewhere(owner) {
                continue;
            }
            if self.reported.len() >= MAX_REPORTED {
                self.reported.clear();
            }
            if self.reported.insert((graph.uid(dependent), graph.uid(owner))) {
                self.pending.push((
                    involved(graph, dependent),
                    invalid_namespace_message(graph, dependent, owner),
                ));
            }
        }
    }

    /// Takes the new reports: dependents and messages.
    pub fn drain(&mut self) -> Vec<(Involved, String)> {
        std::mem::take(&mut self.pending)
    }
}

/// Foreground deletions that wait for an aggregated API that is down, or for objects that cannot be read.
#[derive(Debug, Default)]
pub struct DelayedDeletions {
    pending: Vec<(Involved, String)>,
    /// UIDs.
    reported: HashSet<String>,
}

// === impl DelayedDeletions ===

impl DelayedDeletions {
    /// Reports that the foreground deletion of this object waits for this reason, for at most [`AGGREGATED_HOLD`].
    pub fn report(&mut self, graph: &Graph, id: NodeId, why: &str) {
        if self.reported.len() >= MAX_REPORTED {
            self.reported.clear();
        }
        if self.reported.insert(graph.uid(id)) {
            let max_delay = humantime::format_duration(AGGREGATED_HOLD);
            let message = format!(
                "{why}; the foreground deletion waits until {max_delay} have passed since the first failure, and then ends \
                 without these kinds"
            );
            self.pending.push((involved(graph, id), message));
        }
    }

    /// Takes the new reports: objects and messages.
    pub fn drain(&mut self) -> Vec<(Involved, String)> {
        std::mem::take(&mut self.pending)
    }
}

/// kube-controller-manager: pkg/controller/garbagecollector/graph_builder.go `reportInvalidNamespaceOwnerRef`.
fn invalid_namespace_message(graph: &Graph, dependent: NodeId, owner: NodeId) -> String {
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
