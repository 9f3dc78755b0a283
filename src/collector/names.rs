//! Names of objects and kinds in messages. Owner references may have strings of any content and length.

use super::{
    graph::{Graph, NodeId},
    kinds::KindId,
};
pub use crate::words::visible;

/// Maximum length of names, namespaces and UIDs of existing objects.
const LONGEST: usize = 253;

/// Cuts a string off at [`LONGEST`] characters.
pub fn clipped(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

/// A kind or plural with its group, such as `deployments.apps`.
pub fn dotted(name: &str, group: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    format!("{name}{dot}{group}")
}

/// A kind with its group; a placeholder if it has no name.
pub fn kind(group: &str, kind: &str) -> String {
    match kind {
        "" => "something unknown".to_owned(),
        kind => dotted(kind, group),
    }
}

/// `NAMESPACE/NAME`; `NAME` for a cluster-scoped object.
pub fn place(namespace: &str, name: &str) -> String {
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{namespace}{slash}{name}")
}

/// `KIND.GROUP NAMESPACE/NAME`, clipped.
pub fn called(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let place = place(graph.namespace(node.namespace), &node.name);
    clipped(format!("{} {place}", kind_of(graph, id)).trim_end())
}

/// The usual reason of [`untold`].
pub const SERVED_NOWHERE: &str = "its kind is not served";

/// Why a named owner cannot be resolved.
pub fn untold(graph: &Graph, id: NodeId) -> &'static str {
    let kind = graph.node(id).kind;
    if kind == KindId::UNKNOWN {
        "the reference to it cannot be resolved"
    } else if graph.kinds.resource(kind).is_some() {
        "its name is invalid"
    } else {
        SERVED_NOWHERE
    }
}

/// The kind of a node, with its group.
pub fn kind_of(graph: &Graph, id: NodeId) -> String {
    let id = graph.node(id).kind;
    kind(graph.kinds.group(id), graph.kinds.kind(id))
}
