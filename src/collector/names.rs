//! Names of objects and kinds in messages. Owner references may have strings of any content and length.

use super::{
    graph::{Graph, NodeId},
    kinds::KindId,
};
pub use crate::words::escape_control_chars;

/// Length at which names and UIDs in messages are cut off. Nearly all are shorter.
const MAX_LENGTH: usize = 253;

/// Cuts a string off at [`MAX_LENGTH`] characters.
pub fn truncate(text: &str) -> String {
    text.chars().take(MAX_LENGTH).collect()
}

/// A kind or plural with its group, such as `deployments.apps`.
pub fn qualified_name(name: &str, group: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    format!("{name}{dot}{group}")
}

/// `NAMESPACE/NAME`; `NAME` for a cluster-scoped object.
pub fn namespaced_name(namespace: &str, name: &str) -> String {
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{namespace}{slash}{name}")
}

/// `KIND.GROUP NAMESPACE/NAME`, clipped.
pub fn object_label(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let namespaced_name = namespaced_name(&node.namespace, &node.name);
    truncate(format!("{} {namespaced_name}", kind_of(graph, id)).trim_end())
}

/// The usual reason of [`unresolved_reason`].
pub const NOT_SERVED: &str = "its kind is not served";

/// Why a reference cannot be resolved, and the remedy if there is one.
pub fn unresolved_reason(graph: &Graph, id: NodeId) -> &'static str {
    let kind = graph.node(id).kind;
    if kind == KindId::UNKNOWN {
        "the reference to it cannot be resolved"
    } else if graph.kinds.resource(kind).is_some() {
        "its name is invalid"
    } else if graph.kinds.group(kind) == "core" {
        "there is no group core: the apiVersion of its kinds is v1"
    } else {
        NOT_SERVED
    }
}

/// The kind of a node with its group; a placeholder if it has no name.
pub fn kind_of(graph: &Graph, id: NodeId) -> String {
    let id = graph.node(id).kind;
    match graph.kinds.kind(id) {
        "" => "something unknown".to_owned(),
        kind => qualified_name(kind, graph.kinds.group(id)),
    }
}
