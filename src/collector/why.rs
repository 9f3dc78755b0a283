//! `pod-teardown why`: explains why an object still exists, along the chain of objects that it waits for.

pub(super) mod words;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use indexmap::IndexSet;
use tokio::time::Instant;

use super::{
    core::Core,
    decide::{Step, decide},
    graph::{Graph, NodeId, NodeState, WorkItem},
    kinds::KindId,
    names::{escape_control_chars, object_label, qualified_name, truncate},
};
use crate::{
    explanation::{Explanation, ObjectFacts},
    object_name::ObjectName,
    why::Why,
    words::some_of,
};

use self::words::{Explainer, blockers};

/// Maximum number of objects in a chain.
const MAX_CHAIN: usize = 100;
/// Maximum number of an owner's dependents that are compared.
const MAX_COMPARED: usize = 1000;

/// Explains the object with this name.
///
/// # Errors
///
/// The graph has no such object, or several. The text has the remedy.
pub fn explain(core: &Core, name: &ObjectName, now: Instant) -> Result<Explanation, Why> {
    let id = find(name, &core.graph)?;
    let explainer = Explainer { core, now };
    let (chain, cycle) = chain(core, id);
    let object_facts = |&id: &NodeId| ObjectFacts {
        object: explainer.object_label(id),
        uid: escape_control_chars(&truncate(&core.graph.uid(id))),
        facts: explainer.facts(id),
    };
    Ok(Explanation {
        objects: chain.iter().map(object_facts).collect(),
        causes: Vec::new(),
        end: explainer.conclusion(&chain, cycle),
    })
}

/// A chain of objects, of which each waits for the next. If the last one waits for one of them, that one follows: an ownership
/// cycle.
fn chain(core: &Core, first: NodeId) -> (Vec<NodeId>, Option<NodeId>) {
    let graph = &core.graph;
    let (mut chain, mut last) = (IndexSet::from([first]), first);
    while chain.len() < MAX_CHAIN {
        let others = blockers(graph, last)
            .take(MAX_COMPARED)
            .filter(|id| !chain.contains(id));
        // One whose request fails explains most, then one that waits for others.
        let next = others.min_by_key(|&id| {
            let is_waiting = blockers(graph, id).next().is_some();
            Reverse((core.queue.has_failed(WorkItem::Decide(id)), is_waiting))
        });
        let Some(next) = next else { break };
        chain.insert(next);
        last = next;
    }
    let cycle = blockers(graph, last).next().filter(|id| chain.contains(id));
    if cycle.is_none() {
        chain.extend(last_wait(graph, last));
    }
    (chain.into_iter().collect(), cycle)
}

/// What the last object of a chain waits for, if it is not the deletion of a dependent.
fn last_wait(graph: &Graph, last: NodeId) -> Option<NodeId> {
    match decide(graph, last) {
        // A reference that a dependent has to drop.
        Step::Wait if graph.node(last).state.in_orphan_deletion() => {
            let mut others = graph.dependents(last).map(|link| link.node).take(MAX_COMPARED);
            others.find(|&id| id != last)
        }
        // The answer to a GET.
        Step::GetOwners(owners) => owners.first().copied(),
        _ => None,
    }
}

/// The node of this name.
///
/// # Errors
///
/// No node has this name, or several have. The text has the remedy.
pub fn find(name: &ObjectName, graph: &Graph) -> Result<NodeId, Why> {
    let mut found: Vec<NodeId> = match name {
        ObjectName::Uid(uid) => graph.with_uid(uid),
        ObjectName::Named {
            kind,
            group,
            namespace,
            name,
        } => {
            let is_named = |id: &NodeId| {
                let node = graph.node(*id);
                *node.name == **name
                    && is_kind(graph, node.kind, kind, group.as_deref())
                    && namespace.as_deref().is_none_or(|it| *it == *node.namespace)
            };
            graph.nodes().filter(is_named).collect()
        }
    };
    // Existing objects come before objects that are only named.
    let is_observed = |id: &NodeId| graph.node(*id).state.contains(NodeState::OBSERVED);
    if found.iter().any(is_observed) {
        found.retain(is_observed);
    }
    match (found.as_slice(), name) {
        ([], _) => Err(escape_control_chars(&not_found(name, graph)).into()),
        ([one], _) | ([one, ..], ObjectName::Uid(_)) => Ok(*one),
        (several, ObjectName::Named { .. }) => {
            let several = several.iter().map(|&id| {
                let label = object_label(graph, id);
                escape_control_chars(&format!("{label} (uid {})", truncate(&graph.uid(id))))
            });
            Err(format!("the name is ambiguous, use a UID: {}", some_of(several)).into())
        }
    }
}

fn is_kind(graph: &Graph, id: KindId, name: &str, group: Option<&str>) -> bool {
    graph.kinds.matches_name(id, name) && group.is_none_or(|group| group == graph.kinds.group(id))
}

fn not_found(name: &ObjectName, graph: &Graph) -> String {
    let kinds = &graph.kinds;
    match name {
        ObjectName::Uid(uid) => match graph.isolated_kind(uid) {
            Some(id) => format!(
                "it is a {} without owners and dependents, and is not being deleted: the collector neither blocks nor \
                 deletes it",
                qualified_name(kinds.kind(id), kinds.group(id))
            ),
            None => format!(
                "no object with UID {:?} is known: it is deleted, its kind is not watched, or it never existed",
                truncate(uid)
            ),
        },
        ObjectName::Named { kind, group, .. } if !kinds.all().any(|id| is_kind(graph, id, kind, group.as_deref())) => {
            let name = qualified_name(kind, group.as_deref().unwrap_or_default());
            format!(
                "no kind is called {}: none is served, and no owner reference names one; see kubectl api-resources",
                truncate(&name)
            )
        }
        ObjectName::Named { .. } => format!(
            "{} is neither an owner nor a dependent, and is not being deleted; the collector does not keep the names \
             of such objects. If it exists, the collector does not block it: see its finalizers with kubectl, or \
             use its UID",
            truncate(&name.to_string())
        ),
    }
}
