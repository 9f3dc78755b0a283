//! Resolves the object name of a request.

use std::cmp::Reverse;

use crate::{
    collector::{
        graph::{Graph, NodeId, NodeState},
        names::{escape_control_chars, kind, kind_of, qualified_name, truncate},
    },
    object_name::ObjectName,
};

/// Maximum number of objects or kinds that an error names.
const MAX_NAMED: usize = 5;
/// Minimum length of a common prefix of similar kind names.
const MIN_COMMON_PREFIX: usize = 3;

/// The node of this name.
///
/// # Errors
///
/// No node has this name, or several have. The text has the remedy.
pub fn find(name: &ObjectName, graph: &Graph) -> Result<NodeId, String> {
    let mut found: Vec<NodeId> = match name {
        ObjectName::Uid(uid) => graph.with_uid(uid),
        ObjectName::Named { .. } => graph.nodes().filter(|&id| matches_name(name, graph, id)).collect(),
    };
    // Existing objects come before objects that are only named.
    let is_observed = |id: &NodeId| graph.node(*id).state.contains(NodeState::OBSERVED);
    if found.iter().any(is_observed) {
        found.retain(is_observed);
    }
    match (found.as_slice(), name) {
        ([], _) => Err(not_found(name, graph)),
        ([one], _) | ([one, ..], ObjectName::Uid(_)) => Ok(*one),
        (several, ObjectName::Named { .. }) => Err(ambiguous(graph, several)),
    }
}

fn matches_name(name: &ObjectName, graph: &Graph, id: NodeId) -> bool {
    let ObjectName::Named {
        kind,
        group,
        namespace,
        name: object_name,
    } = name
    else {
        return false;
    };
    let node = graph.node(id);
    if *node.name != **object_name {
        return false;
    }
    let kinds = &graph.kinds;
    kinds.matches_name(node.kind, kind)
        && group.as_deref().is_none_or(|group| group == kinds.group(node.kind))
        && namespace
            .as_deref()
            .is_none_or(|it| it == graph.namespace(node.namespace))
}

fn not_found(name: &ObjectName, graph: &Graph) -> String {
    match name {
        ObjectName::Uid(uid) => match graph.isolated_kind(uid) {
            Some(id) => format!(
                "it is a {} without owners and dependents, and is not being deleted: the collector neither blocks nor \
                     deletes it",
                kind(graph.kinds.group(id), graph.kinds.kind(id))
            ),
            None => format!(
                "no object with UID {:?} is known: it is deleted, its kind is not watched, or it never existed",
                truncate(uid)
            ),
        },
        ObjectName::Named { kind, group, .. } if !is_kind(graph, kind, group.as_deref()) => {
            let name_in_request = match group {
                Some(group) => qualified_name(kind, group),
                None => kind.clone(),
            };
            format!(
                "no kind is called {}: none is served, and no owner reference names one{}",
                escape_control_chars(&truncate(&name_in_request)),
                similar_kinds(graph, kind)
            )
        }
        ObjectName::Named { .. } => format!(
            "{} is neither an owner nor a dependent, and is not being deleted; the collector does not keep the names \
                 of such objects. If it exists, the collector does not block it: see its finalizers with kubectl, or \
                 use its UID",
            escape_control_chars(&truncate(&name.to_string()))
        ),
    }
}

fn is_kind(graph: &Graph, name_in_request: &str, group: Option<&str>) -> bool {
    let kinds = &graph.kinds;
    let mut all = kinds.all();
    all.any(|id| kinds.matches_name(id, name_in_request) && group.is_none_or(|group| group == kinds.group(id)))
}

/// A hint at served kinds of the same name in another group, or of a similar name.
fn similar_kinds(graph: &Graph, name_in_request: &str) -> String {
    let kinds = &graph.kinds;
    let name_in_request = name_in_request.to_ascii_lowercase();
    let common_prefix = |name: &str| {
        let pairs = name.bytes().zip(name_in_request.bytes());
        pairs.take_while(|(one, other)| one.eq_ignore_ascii_case(other)).count()
    };
    let served = kinds.served().map(|(id, resource)| {
        let similar = if kinds.matches_name(id, &name_in_request) {
            usize::MAX
        } else {
            common_prefix(&resource.plural)
        };
        (Reverse(similar), qualified_name(&resource.plural, kinds.group(id)))
    });
    let mut similar: Vec<_> = served
        .filter(|(Reverse(similar), _)| *similar >= MIN_COMMON_PREFIX)
        .collect();
    similar.sort();
    let similar: Vec<String> = similar.into_iter().take(MAX_NAMED).map(|(_, name)| name).collect();
    match similar.as_slice() {
        [] => String::new(),
        similar => format!("; there are {}", similar.join(", ")),
    }
}

fn ambiguous(graph: &Graph, several: &[NodeId]) -> String {
    let describe = |&id: &NodeId| {
        let node = graph.node(id);
        let namespace = match graph.namespace(node.namespace) {
            "" => "no namespace".to_owned(),
            namespace => format!("namespace {namespace}"),
        };
        escape_control_chars(&truncate(&format!(
            "{} in {namespace} (uid {})",
            kind_of(graph, id),
            graph.uid(id)
        )))
    };
    let shown: Vec<String> = several.iter().take(MAX_NAMED).map(describe).collect();
    let more = several.len() - shown.len();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("the name is ambiguous, use a UID: {}{more}", shown.join(", "))
}
