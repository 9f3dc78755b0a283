//! The collector's decision on an object as text.

use super::{Look, text::number};
use crate::{
    collector::{
        decide::{Policy, Step, decide},
        graph::{Graph, NodeId, State},
        names::{called, kind_of},
    },
    words::{counted, plural},
};

/// Maximum number of names in a list.
const NAMED: usize = 3;

/// How an object is drawn, and the decision on it.
pub fn verdict(graph: &Graph, id: NodeId) -> (Look, Option<String>) {
    let node = graph.node(id);
    let (look, decision) = match decide(graph, id) {
        Step::Nothing if node.state.has(State::DELETING) => (Look::Deleting, None),
        Step::Nothing => (Look::Plain, None),
        Step::Ask(owners) => (
            Look::Blocked,
            Some(format!("kept until it is known whether {} there", are(graph, &owners))),
        ),
        Step::Unserved(owners) => (Look::Blocked, Some(unserved(graph, &owners))),
        Step::Impossible(owners) => (
            Look::Blocked,
            Some(format!(
                "kept: it is in no namespace and cannot be owned by {}",
                named(graph, &owners)
            )),
        ),
        Step::Release(owners) => {
            let references = plural(owners.len() as u64, "reference");
            let owners = named(graph, &owners);
            (Look::Plain, Some(format!("loses the {references} to {owners}")))
        }
        Step::Delete {
            policy,
            unblock,
            because,
        } => (Look::Deleting, Some(deletion(graph, policy, unblock, &because))),
        Step::FinishForeground => (
            Look::Waiting,
            Some("no blocking dependent is left: loses the finalizer foregroundDeletion".to_owned()),
        ),
        Step::FinishOrphan => (
            Look::Deleting,
            Some("no dependent is left: loses the finalizer orphan".to_owned()),
        ),
        Step::Wait if node.state.orphans() => (Look::Deleting, Some(orphaning(node.dependents.into()))),
        Step::Wait => (Look::Waiting, Some(waiting(graph, id))),
    };
    let look = if node.state.has(State::ABSENT) {
        Look::Absent
    } else if node.state.is_in_question() {
        Look::Virtual
    } else {
        look
    };
    (look, decision)
}

fn unserved(graph: &Graph, owners: &[NodeId]) -> String {
    let mut kinds: Vec<String> = owners.iter().map(|&id| kind_of(graph, id)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let rest = kinds.len().saturating_sub(NAMED);
    kinds.truncate(NAMED);
    match (kinds.as_slice(), rest) {
        ([kind], 0) => format!("kept: its owner is of kind {kind}, which is not served"),
        (kinds, rest) => format!(
            "kept: its owners are of kinds {}, which are not served",
            listed(kinds, rest)
        ),
    }
}

fn deletion(graph: &Graph, policy: Policy, unblock: bool, waiting: &[NodeId]) -> String {
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
    let circle = if unblock {
        ", its blocking references cleared first: it is part of an ownership cycle"
    } else {
        ""
    };
    format!("will be deleted {policy}: {why}{circle}")
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
    let names = nodes.iter().take(NAMED).map(|&id| called(graph, id));
    let names: Vec<String> = names.collect();
    listed(&names, nodes.len() - names.len())
}

fn listed(names: &[String], rest: usize) -> String {
    let names = names.join(", ");
    match rest {
        0 => names,
        rest => format!("{names} and {}", counted(rest as u64, "other")),
    }
}
