//! What objects and kinds are called for people. References may hold any text, of any length.

use super::{
    graph::{Graph, NodeId},
    kinds::KindId,
};
pub use crate::words::visible;

/// No name, namespace or UID of an object that is there is longer.
const LONGEST: usize = 253;

/// As much of it as may be told.
pub fn clipped(text: &str) -> String {
    text.chars().take(LONGEST).collect()
}

/// A kind or its plural, as `kubectl` takes it.
pub fn dotted(name: &str, group: &str) -> String {
    let dot = if group.is_empty() { "" } else { "." };
    format!("{name}{dot}{group}")
}

/// A kind as `kubectl` takes it.
pub fn kind(group: &str, kind: &str) -> String {
    match kind {
        "" => "something unknown".to_owned(),
        kind => dotted(kind, group),
    }
}

/// Where an object is, among those of its kind.
pub fn place(namespace: &str, name: &str) -> String {
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{namespace}{slash}{name}")
}

/// What an object is called: `KIND.GROUP NAMESPACE/NAME`, as much of it as may be told.
pub fn called(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let place = place(graph.namespace(node.namespace), &node.name);
    clipped(format!("{} {place}", kind_of(graph, id)).trim_end())
}

/// Why nobody can tell of some.
pub const SERVED_NOWHERE: &str = "its kind is not served";

/// Why nobody can tell whether something is there that is only named.
pub fn untold(graph: &Graph, id: NodeId) -> &'static str {
    let kind = graph.node(id).kind;
    if kind == KindId::UNKNOWN {
        "the reference to it cannot be followed"
    } else if graph.kinds.resource(kind).is_some() {
        "nothing can have its name"
    } else {
        SERVED_NOWHERE
    }
}

/// Its kind.
pub fn kind_of(graph: &Graph, id: NodeId) -> String {
    let id = graph.node(id).kind;
    kind(graph.kinds.group(id), graph.kinds.kind(id))
}
