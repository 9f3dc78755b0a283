//! Sentences of `pod-teardown why`.

use std::path::Path;

use tokio::time::Instant;

use crate::{
    collector::{
        core::Core,
        decide::{Deletion, Finalizer, Policy, Step, decide},
        graph::{Graph, NodeId, NodeState, WorkItem},
        names::{NOT_SERVED, escape_control_chars, object_label, qualified_name, unresolved_reason},
        report::queued,
        sync_state::FinalizerHold,
    },
    words::{format_count, plural, shell_quoted, some_of},
};

/// Maximum number of owners and of blockers that are described.
const MAX_SHOWN: usize = 5;

/// Describes the state at one moment.
pub(super) struct Explainer<'a> {
    pub core: &'a Core,
    pub now: Instant,
}

// === impl Explainer ===

impl Explainer<'_> {
    fn graph(&self) -> &Graph {
        &self.core.graph
    }

    /// Name of an object.
    pub fn object_label(&self, id: NodeId) -> String {
        escape_control_chars(&object_label(self.graph(), id))
    }

    /// All that is known of one object.
    pub fn facts(&self, id: NodeId) -> Vec<String> {
        let graph = self.graph();
        let mut facts = vec![describe_state(graph.node(id).state).to_owned()];
        facts.extend(decision(graph, id).map(|decision| escape_control_chars(&decision)));
        let blocking = blockers(graph, id).take(MAX_SHOWN);
        facts.extend(blocking.map(|it| {
            let state = describe_state(graph.node(it).state);
            format!("blocked by {}: {state}", self.object_label(it))
        }));
        let owners = graph.owners(id).filter(|link| link.node != id).take(MAX_SHOWN);
        facts.extend(owners.map(|link| self.owner(link.node)));
        if let Some(hold) = self.hold(id) {
            let kinds = self.core.sync_state.watched.values();
            facts.extend(kinds.filter_map(|it| it.unreadable(self.now)));
            facts.push(match hold {
                FinalizerHold::Unconfirmed { why } => format!("its finalizer stays for a moment: {why}"),
                FinalizerHold::NotSynced { why, is_limited } => {
                    let limit = if is_limited { ", for ten minutes at most" } else { "" };
                    format!("its finalizer stays{limit}, {why}: objects of that kind may name it")
                }
            });
        }
        for (item, what) in [(WorkItem::Decide(id), "a decision"), (WorkItem::GetOwner(id), "a GET")] {
            let entry = self.core.queue.entry(item);
            facts.extend(entry.map(|entry| escape_control_chars(&queued(what, entry, self.now))));
        }
        facts
    }

    /// Why the object keeps the finalizer that could be removed otherwise.
    fn hold(&self, id: NodeId) -> Option<FinalizerHold> {
        match decide(self.graph(), id) {
            Step::RemoveFinalizer(finalizer) => self.core.finalizer_hold(id, finalizer, self.now),
            _ => None,
        }
    }

    fn owner(&self, id: NodeId) -> String {
        let graph = self.graph();
        let node = graph.node(id);
        let state = if !node.state.exists() && !graph.can_be_resolved(id) {
            &format!("{}, so it is unknown whether it exists", unresolved_reason(graph, id))
        } else {
            describe_state(node.state)
        };
        format!("owner {}: {state}", self.object_label(id))
    }

    /// The conclusion of a chain, and of the object that its last one waits for again.
    pub fn conclusion(&self, chain: &[NodeId], cycle: Option<NodeId>) -> String {
        let Some(&last) = chain.last() else {
            return String::new();
        };
        let label = self.object_label(last);
        if let Some(first_of_cycle) = cycle {
            return format!(
                "Ownership cycle: {label} waits for {} again. It does not end by itself: remove blockOwnerDeletion from one of \
                 the references, or the finalizer foregroundDeletion from one of the objects.",
                self.object_label(first_of_cycle)
            );
        }
        let all = if chain.len() > 1 { "All wait for" } else { "It is" };
        format!("{all} {label}: {}.", self.last_wait(last))
    }

    /// The wait of the chain's last node.
    fn last_wait(&self, id: NodeId) -> String {
        let graph = self.graph();
        let state = graph.node(id).state;
        if self.hold(id).is_some() {
            return "its finalizer stays until every kind is synced".to_owned();
        }
        match decision(graph, id) {
            Some(decision) if self.core.queue.has_failed(WorkItem::Decide(id)) => {
                format!("it {decision}; the collector's request fails, see above")
            }
            Some(decision) => format!("it {decision}"),
            None if state.contains(NodeState::DELETING) => format!(
                "its deletion, which needs nothing of the collector. If it has finalizers, their controllers have to \
                 remove them: {}",
                self.kubectl(id)
            ),
            None if state.contains(NodeState::ABSENT) => "it is deleted; its dependents are decided on".to_owned(),
            None if state.is_unknown() => {
                let entry = self.core.queue.entry(WorkItem::GetOwner(id));
                let hangs = entry.and_then(|it| it.hanging_request(self.now));
                let get = hangs.as_deref().unwrap_or("the collector sends a GET");
                format!("it is unknown whether it exists; {get}")
            }
            None => "nothing has to be done: one of its owners exists, or it has none".to_owned(),
        }
    }

    /// A command that shows its finalizers.
    fn kubectl(&self, id: NodeId) -> String {
        let graph = self.graph();
        let node = graph.node(id);
        let (group, kind) = (graph.kinds.group(node.kind), graph.kinds.kind(node.kind));
        let resource = graph.kinds.resource(node.kind).map_or(kind, |it| &it.plural);
        let namespace = match &*node.namespace {
            "" => String::new(),
            namespace => format!(" -n {namespace}"),
        };
        let name = shell_quoted(Path::new(&*node.name));
        escape_control_chars(&format!(
            "kubectl get {} {name}{namespace} -o jsonpath='{{.metadata.finalizers}}'",
            qualified_name(resource, group)
        ))
    }
}

/// The collector's decision on an object and its reason, after "it"; `None` if there is nothing to do.
pub(in crate::collector) fn decision(graph: &Graph, id: NodeId) -> Option<String> {
    let state = graph.node(id).state;
    Some(match decide(graph, id) {
        Step::Nothing => return None,
        Step::GetOwners(owners) => {
            let verb = if owners.len() == 1 { "exists" } else { "exist" };
            format!("is kept until it is known whether {} {verb}", named(graph, &owners))
        }
        Step::Unresolved(owners) => {
            let mut reasons = owners.iter().map(|&owner| unresolved_reason(graph, owner));
            let why = reasons.find(|why| *why != NOT_SERVED).unwrap_or(NOT_SERVED);
            let references = plural(owners.len() as u64, "reference");
            let owners = named(graph, &owners);
            format!("is kept until the {references} to {owners} can be resolved or is removed: {why}")
        }
        Step::NamespacedOwner(owners) => format!(
            "is kept until the reference is removed: a cluster-scoped object cannot be owned by {}",
            named(graph, &owners)
        ),
        Step::DropReferences(owners) => {
            let references = plural(owners.len() as u64, "reference");
            format!("loses the {references} to {}", named(graph, &owners))
        }
        Step::Delete(deletion) => describe_deletion(graph, &deletion),
        Step::RemoveFinalizer(finalizer) => {
            let blocking = if finalizer == Finalizer::Foreground {
                "blocking "
            } else {
                ""
            };
            format!("loses the finalizer {finalizer}: no known {blocking}dependent is left")
        }
        Step::Wait if state.in_orphan_deletion() => {
            let dependents = format_count(graph.node(id).num_dependents().into(), "dependent");
            format!("keeps the finalizer orphan until {dependents} lost the reference to it")
        }
        Step::Wait => {
            let on_itself = graph.owners(id).filter(|link| link.node == id && link.blocking).count();
            let blocking = u64::from(graph.node(id).blocking).saturating_sub(on_itself as u64);
            format!("waits for {}", format_count(blocking, "blocking dependent"))
        }
    })
}

fn describe_deletion(graph: &Graph, deletion: &Deletion) -> String {
    let policy = match deletion.policy {
        Policy::Background => "in the background",
        Policy::Foreground => "in the foreground",
        Policy::Orphan => "without its dependents",
    };
    let waiting = &*deletion.waiting_owners;
    let why = match waiting {
        [] => "none of its owners exists".to_owned(),
        [_] => format!("{} waits for it", named(graph, waiting)),
        several => format!("{} wait for it", named(graph, several)),
    };
    let cycle = if deletion.clear_blocking {
        ", its blocking references cleared first: it is part of an ownership cycle"
    } else {
        ""
    };
    format!("will be deleted {policy}: {why}{cycle}")
}

/// Names of some objects.
fn named(graph: &Graph, nodes: &[NodeId]) -> String {
    some_of(nodes.iter().map(|&id| object_label(graph, id)))
}

/// Dependents that block its foreground deletion. An object in orphan deletion waits for no deletion.
pub(super) fn blockers(graph: &Graph, id: NodeId) -> impl Iterator<Item = NodeId> {
    let state = graph.node(id).state;
    let waits = state.exists() && state.in_foreground_deletion() && !state.in_orphan_deletion();
    let dependents = graph
        .dependents(id)
        .filter(move |link| waits && link.blocking && link.node != id);
    dependents.map(|link| link.node)
}

/// State of an object.
pub(in crate::collector) fn describe_state(state: NodeState) -> &'static str {
    if state.contains(NodeState::UNCONFIRMED) {
        "was observed, and the last complete list did not show it"
    } else if state.contains(NodeState::ABSENT) {
        "does not exist"
    } else if !state.contains(NodeState::OBSERVED) {
        "is named and was never observed"
    } else if state.in_orphan_deletion() {
        "is being deleted, and has the finalizer orphan until no dependent names it"
    } else if state.in_foreground_deletion() {
        "is being deleted, and has the finalizer foregroundDeletion until no dependent blocks it"
    } else if state.contains(NodeState::DELETING) {
        "is being deleted, and has none of the collector's finalizers"
    } else {
        "exists, and is not being deleted"
    }
}
