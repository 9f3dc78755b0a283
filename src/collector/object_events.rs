//! Events about single objects, each reported once: owner references to another namespace, and delayed foreground
//! deletions.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::ObjectReference;

use super::{
    graph::{Graph, NodeId, NodeState},
    sync_state::AGGREGATED_HOLD,
};
use crate::model::event::Reason;

/// Maximum number of reports that are remembered.
const MAX_REPORTED: usize = 4096;

#[derive(Debug, Default)]
pub struct ObjectEvents {
    /// The new events: objects, reasons and messages.
    pub pending: Vec<(ObjectReference, Reason, String)>,
    /// UIDs of objects, each with that of an owner in another namespace; none for a delayed deletion.
    reported: HashSet<(String, Option<String>)>,
}

// === impl ObjectEvents ===

impl ObjectEvents {
    /// Reports those of these owners that exist at other coordinates than the references say.
    pub fn report_owners(&mut self, graph: &Graph, dependent: NodeId, owners: &[NodeId]) {
        for &owner in owners {
            if !graph.node(owner).state.contains(NodeState::OBSERVED)
                && graph.exists_elsewhere(owner)
                && self.is_new((graph.uid(dependent), Some(graph.uid(owner))))
            {
                let message = invalid_namespace_message(graph, dependent, owner);
                let dependent = involved(graph, dependent);
                self.pending
                    .push((dependent, Reason::OwnerRefInvalidNamespace, message));
            }
        }
    }

    /// Reports that the foreground deletion of this object waits for this reason, for at most [`AGGREGATED_HOLD`].
    pub fn report_delayed_deletion(&mut self, graph: &Graph, id: NodeId, why: &str) {
        if self.is_new((graph.uid(id), None)) {
            let max_delay = humantime::format_duration(AGGREGATED_HOLD);
            let message = format!(
                "{why}; the foreground deletion waits until {max_delay} have passed since the first failure, and then ends \
                 without these kinds"
            );
            self.pending
                .push((involved(graph, id), Reason::ForegroundDeletionDelayed, message));
        }
    }

    fn is_new(&mut self, report: (String, Option<String>)) -> bool {
        if self.reported.len() >= MAX_REPORTED {
            self.reported.clear();
        }
        self.reported.insert(report)
    }
}

/// kube-controller-manager: pkg/controller/garbagecollector/graph_builder.go `reportInvalidNamespaceOwnerRef`.
fn invalid_namespace_message(graph: &Graph, dependent: NodeId, owner: NodeId) -> String {
    let owner = involved(graph, owner);
    let [api_version, kind, name, uid] =
        [owner.api_version, owner.kind, owner.name, owner.uid].map(Option::unwrap_or_default);
    let namespace = &graph.node(dependent).namespace;
    format!(
        r#"ownerRef [{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}] does not exist in namespace "{namespace}""#
    )
}

fn involved(graph: &Graph, id: NodeId) -> ObjectReference {
    let node = graph.node(id);
    let (group, resource) = (graph.kinds.group(node.kind), graph.kinds.resource(node.kind));
    let version = resource.map_or("", |resource| &resource.version);
    let slash = if group.is_empty() { "" } else { "/" };
    ObjectReference {
        api_version: Some(format!("{group}{slash}{version}")),
        kind: Some(graph.kinds.kind(node.kind).to_owned()),
        namespace: Some(node.namespace.to_string()).filter(|namespace| !namespace.is_empty()),
        name: Some(node.name.to_string()),
        uid: Some(graph.uid(id)),
        ..ObjectReference::default()
    }
}
