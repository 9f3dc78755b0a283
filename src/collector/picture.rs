//! `gc graph`: objects with their owners and dependents in DOT, for Graphviz. A picture's size and the time to make it are
//! limited, however many objects there are.

use std::fmt::Write as _;

use indexmap::IndexSet;

use super::{
    decide::{Step, decide},
    graph::{Graph, Link, NodeId, NodeState},
    names::{kind_of, namespaced_name},
    why::words::{decision, describe_state},
};
use crate::words::{format_count, truncate_middle};

#[cfg(test)]
mod tests;

/// Maximum number of objects: one or two screens.
const MAX_OBJECTS: usize = 200;
/// Maximum number of links followed from one object in each direction.
const MAX_NEIGHBORS: usize = 20;
/// Maximum number of links of one object that are compared or drawn.
const MAX_COMPARED: usize = 50 * MAX_NEIGHBORS;
/// Characters per line of a box.
const WIDTH: usize = 60;

/// The objects connected with this UID, nearest first. `None` if the graph does not have it.
pub fn around(graph: &Graph, uid: &str) -> Option<String> {
    let nodes = graph.with_uid(uid);
    let mut selected = IndexSet::new();
    add_around(graph, &mut selected, &nodes);
    let title = format!("Owners and dependents around UID {}", truncate_middle(uid, WIDTH));
    (!nodes.is_empty()).then(|| dot(graph, &title, &selected))
}

/// The active objects: being deleted or not known to exist, with all objects connected with them.
pub fn active(graph: &Graph) -> String {
    let (mut selected, mut all) = (IndexSet::new(), 0);
    for id in graph.nodes().filter(|&id| is_active(graph, id)) {
        all += 1;
        // If an owner is in the picture already, then this object was left out for space.
        if !graph.owners(id).any(|link| selected.contains(&link.node)) {
            add_around(graph, &mut selected, &[id]);
        }
    }
    let drawn = selected.iter().filter(|&&id| is_active(graph, id)).count();
    dot(
        graph,
        &format!("{drawn} of {}", format_count(all, "active object")),
        &selected,
    )
}

/// Whether something may be to do about it, or it may block its owner.
fn is_active(graph: &Graph, id: NodeId) -> bool {
    let state = graph.node(id).state;
    !state.contains(NodeState::OBSERVED) || state.is_unknown() || state.contains(NodeState::DELETING)
}

/// Whether the owner waits for this dependent. A reference to itself does not count.
fn holds_up(graph: &Graph, dependent: NodeId, to: Link) -> bool {
    to.blocking && to.node != dependent && graph.node(to.node).state.in_foreground_deletion()
}

/// Adds these nodes and connected ones, breadth first, until the picture is full. Links that block an owner come first, then
/// links to active nodes.
fn add_around(graph: &Graph, selected: &mut IndexSet<NodeId>, nodes: &[NodeId]) {
    let mut next = selected.len();
    selected.extend(nodes.iter().take(MAX_OBJECTS.saturating_sub(next)));
    while let Some(&id) = selected.get_index(next) {
        next += 1;
        let owners = graph.owners(id).take(MAX_COMPARED);
        let owners = owners.map(|link| (holds_up(graph, id, link), link.node)).collect();
        let dependents = graph.dependents(id).take(MAX_COMPARED);
        let dependents = dependents.map(|link| (holds_up(graph, link.node, Link { node: id, ..link }), link.node));
        for mut links in [owners, dependents.collect::<Vec<_>>()] {
            links.sort_by_key(|&(holds_up, node)| (!holds_up, !is_active(graph, node)));
            for (_, node) in links.into_iter().take(MAX_NEIGHBORS) {
                if selected.len() < MAX_OBJECTS {
                    selected.insert(node);
                }
            }
        }
    }
}

/// Renders DOT. References point from dependents to owners, which are on the left.
fn dot(graph: &Graph, title: &str, selected: &IndexSet<NodeId>) -> String {
    let mut out = String::from("digraph owners {\n  rankdir=RL; labelloc=t; fontname=\"Helvetica\";\n");
    out.push_str("  node [shape=box, fontname=\"Helvetica\", fontsize=11];\n");
    // Writing to a String cannot fail.
    let _ = writeln!(out, "  label={};", quoted(title));
    for (index, &id) in selected.iter().enumerate() {
        let (style, fill) = appearance(graph, id);
        let _ = writeln!(
            out,
            "  n{index} [label={}, style=\"rounded,filled{style}\", fillcolor=\"{fill}\", tooltip={}];",
            quoted(&label(graph, id)),
            quoted(&format!("UID {}", truncate_middle(&graph.uid(id), WIDTH)))
        );
        for link in graph.owners(id).take(MAX_COMPARED) {
            let Some(owner) = selected.get_index_of(&link.node) else {
                continue;
            };
            let style = match (link.blocking, holds_up(graph, id, link)) {
                (_, true) => "style=bold, color=\"#d0021b\", tooltip=\"holds up the deletion of the owner\"",
                (true, false) => "style=solid, tooltip=\"blocking\"",
                (false, false) => "style=dashed, arrowhead=vee, tooltip=\"not blocking\"",
            };
            let _ = writeln!(out, "  n{index} -> n{owner} [{style}];");
        }
    }
    out.push_str("}\n");
    out
}

/// Kind, name, state, decision and the number of links.
fn label(graph: &Graph, id: NodeId) -> String {
    let node = graph.node(id);
    let decision = decision(graph, id).unwrap_or_default();
    let owners = format_count(graph.owners(id).count() as u64, "owner");
    let dependents = format_count(node.num_dependents().into(), "dependent");
    let lines = [
        kind_of(graph, id),
        namespaced_name(&node.namespace, &node.name),
        describe_state(node.state).to_owned(),
        format!("{owners}, {dependents}"),
    ];
    let decision = decision.split(": ").filter(|line| !line.is_empty());
    let lines = lines.iter().map(String::as_str).chain(decision);
    lines
        .map(|line| truncate_middle(line, WIDTH))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Further style, and the color.
fn appearance(graph: &Graph, id: NodeId) -> (&'static str, &'static str) {
    let state = graph.node(id).state;
    if state.contains(NodeState::ABSENT) {
        return (",dashed", "#e3e3e3");
    } else if state.is_unknown() {
        return (",dashed", "#ffffff");
    }
    let fill = match decide(graph, id) {
        Step::GetOwners(_) | Step::Unresolved(_) | Step::NamespacedOwner(_) => "#f6d0ea",
        _ if state.in_foreground_deletion() => "#ffe08a",
        Step::Delete(_) => "#cfe0fb",
        _ if state.contains(NodeState::DELETING) => "#cfe0fb",
        _ => "#f4f8f2",
    };
    ("", fill)
}

/// A quoted DOT string. Only line breaks keep a meaning.
fn quoted(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("\"{escaped}\"")
}
