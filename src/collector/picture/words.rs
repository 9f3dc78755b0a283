//! The collector's decision on an object as text.

use super::{object::Appearance, text::number};
use crate::{
    collector::{
        decide::{Policy, Step, decide},
        graph::{Graph, NodeId, NodeState},
        names::{kind_of, object_label},
    },
    words::{format_count, plural},
};

/// Maximum number of names in a list.
const MAX_NAMED: usize = 3;

/// How an object is drawn, and the decision on it.
pub fn appearance_and_decision(graph: &Graph, id: NodeId) -> (Appearance, Option<String>) {
    let node = graph.node(id);
    let (appearance, decision) = match decide(graph, id) {
        Step::Nothing if node.state.contains(NodeState::DELETING) => (Appearance::Deleting, None),
        Step::Nothing => (Appearance::Plain, None),
        Step::GetOwners(owners) => (
            Appearance::Blocked,
            Some(format!("kept until it is known whether {} there", are(graph, &owners))),
        ),
        Step::Unresolved(owners) => (Appearance::Blocked, Some(unserved(graph, &owners))),
        Step::NamespacedOwner(owners) => (
            Appearance::Blocked,
            Some(format!(
                "kept: it is in no namespace and cannot be owned by {}",
                named(graph, &owners)
            )),
        ),
        Step::DropReferences(owners) => {
            let references = plural(owners.len() as u64, "reference");
            let owners = named(graph, &owners);
            (Appearance::Plain, Some(format!("loses the {references} to {owners}")))
        }
        Step::Delete {
            policy,
            clear_blocking,
            waiting_owners,
        } => (
            Appearance::Deleting,
            Some(deletion(graph, policy, clear_blocking, &waiting_owners)),
        ),
        Step::RemoveForegroundFinalizer => (
            Appearance::Waiting,
            Some("no known blocking dependent is left: loses the finalizer foregroundDeletion".to_owned()),
        ),
        Step::RemoveOrphanFinalizer => (
            Appearance::Deleting,
            Some("no known dependent is left: loses the finalizer orphan".to_owned()),
        ),
        Step::Wait if node.state.in_orphan_deletion() => {
            (Appearance::Deleting, Some(orphaning(node.dependents.into())))
        }
        Step::Wait => (Appearance::Waiting, Some(waiting(graph, id))),
    };
    let appearance = if node.state.contains(NodeState::ABSENT) {
        Appearance::Absent
    } else if node.state.is_unknown() {
        Appearance::Virtual
    } else {
        appearance
    };
    (appearance, decision)
}

fn unserved(graph: &Graph, owners: &[NodeId]) -> String {
    let mut kinds: Vec<String> = owners.iter().map(|&id| kind_of(graph, id)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let more = kinds.len().saturating_sub(MAX_NAMED);
    kinds.truncate(MAX_NAMED);
    match (kinds.as_slice(), more) {
        ([kind], 0) => format!("kept: its owner is of kind {kind}, which is not served"),
        (kinds, more) => format!(
            "kept: its owners are of kinds {}, which are not served",
            listed(kinds, more)
        ),
    }
}

fn deletion(graph: &Graph, policy: Policy, clear_blocking: bool, waiting: &[NodeId]) -> String {
    let policy = match policy {
        Policy::Background => "in the background",
        Policy::Foreground => "in the foreground",
        Policy::Orphan => "without its dependents",
    };
    let why = if waiting.is_empty() {
        "none of its owners exists".to_owned()
    } else {
        let verb = if waiting.len() == 1 { "waits" } else { "wait" };
        format!("{} {verb} for it", named(graph, waiting))
    };
    let cycle = if clear_blocking {
        ", its blocking references cleared first: it is part of an ownership cycle"
    } else {
        ""
    };
    format!("will be deleted {policy}: {why}{cycle}")
}

fn orphaning(dependents: u64) -> String {
    let dependents = match dependents {
        1 => "1 dependent loses".to_owned(),
        many => format!("{} dependents lose", number(many)),
    };
    format!("{dependents} the reference to it, then it loses the finalizer orphan")
}

fn waiting(graph: &Graph, id: NodeId) -> String {
    let on_itself = graph.owners(id).filter(|link| link.node == id && link.blocking).count();
    let blocking = u64::from(graph.node(id).blocking).saturating_sub(on_itself as u64);
    format!(
        "waits for {} blocking {}",
        number(blocking),
        plural(blocking, "dependent")
    )
}

fn are(graph: &Graph, owners: &[NodeId]) -> String {
    let verb = if owners.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", named(graph, owners))
}

/// Names of some objects.
fn named(graph: &Graph, nodes: &[NodeId]) -> String {
    let names = nodes.iter().take(MAX_NAMED).map(|&id| object_label(graph, id));
    let names: Vec<String> = names.collect();
    listed(&names, nodes.len() - names.len())
}

fn listed(names: &[String], more: usize) -> String {
    let names = names.join(", ");
    match more {
        0 => names,
        more => format!("{names} and {}", format_count(more as u64, "other")),
    }
}
