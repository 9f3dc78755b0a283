//! Sentences of `pod-teardown why`.

use tokio::time::Instant;

use super::chain::{Chain, blockers};
use crate::collector::{
    core::Core,
    decide::{Step, decide},
    graph::{Graph, NodeId, NodeState, WorkItem},
    names::{NOT_SERVED, escape_control_chars, object_label, qualified_name, unresolved_reason},
    picture::words::appearance_and_decision,
    queue::ItemStatus,
    sync_state::FinalizerHold,
};

/// Maximum number of owners and of blockers that are described.
const MAX_SHOWN: usize = 5;
/// From so many on, dependents that are created during a foreground deletion are named. A controller that notices the deletion
/// creates a few.
const MIN_RECREATED: u32 = 20;

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
        if let (_, Some(decision)) = appearance_and_decision(graph, id) {
            facts.push(escape_control_chars(&decision));
        }
        let blocking = blockers(graph, id).take(MAX_SHOWN);
        facts.extend(blocking.map(|it| {
            format!(
                "blocked by {}: {}",
                self.object_label(it),
                describe_state(graph.node(it).state)
            )
        }));
        let owners = graph.owners(id).filter(|link| link.node != id).take(MAX_SHOWN);
        facts.extend(owners.map(|link| self.owner(link.node)));
        let step = decide(graph, id);
        if let Step::RemoveForegroundFinalizer | Step::RemoveOrphanFinalizer = step
            && let Some(hold) = self.core.finalizer_hold(id, &step, self.now)
        {
            let kinds = self.core.sync_state.watched.values();
            facts.extend(kinds.filter_map(|it| it.unreadable(self.now)));
            facts.push(match hold {
                FinalizerHold::Unconfirmed { why } => format!("its finalizer stays for a moment: {why}"),
                FinalizerHold::NotSynced { why, is_limited } => {
                    let limit = if is_limited { ", for ten minutes at most" } else { "" };
                    format!("its finalizer stays while {why}{limit}: objects of that kind may name it")
                }
            });
        }
        for (item, what) in [
            (WorkItem::Decide(id), "for a decision"),
            (WorkItem::GetOwner(id), "for a GET"),
        ] {
            facts.extend(self.core.queue.status(item).map(|it| self.queued(item, what, it)));
        }
        facts.extend(recreated(graph.created_since_deletion(id)));
        facts
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

    fn queued(&self, item: WorkItem, what: &str, it: ItemStatus) -> String {
        let waits = self.now.saturating_duration_since(it.since).as_secs();
        if let Some(hangs) = it.hanging_request(item, self.now) {
            return format!("queued for {waits}s {what}: {hangs}");
        }
        match it.last_error {
            Some(last_error) => format!(
                "queued for {waits}s {what}, failed {} times, last: {}",
                it.num_requeues,
                escape_control_chars(&last_error)
            ),
            None => format!("queued for {waits}s {what}"),
        }
    }

    /// The conclusion.
    pub fn conclusion(&self, chain: &Chain) -> String {
        let Some(last) = chain.last() else {
            return String::new();
        };
        if let Some(first_of_cycle) = chain.cycle {
            return format!(
                "Ownership cycle: {} waits for {} again. It does not end by itself: remove blockOwnerDeletion from one of \
                 the references, or the finalizer foregroundDeletion from one of the objects.",
                self.object_label(last),
                self.object_label(first_of_cycle)
            );
        }
        let all = if chain.nodes.len() > 1 { "All wait for" } else { "It is" };
        let more = if chain.is_truncated {
            " More objects block it than were visited."
        } else {
            ""
        };
        format!("{all} {}: {}.{more}", self.object_label(last), self.last_wait(last))
    }

    /// The wait of the chain's last node.
    fn last_wait(&self, id: NodeId) -> String {
        let graph = self.graph();
        let state = graph.node(id).state;
        let fails = self
            .core
            .queue
            .status(WorkItem::Decide(id))
            .is_some_and(|it| it.last_error.is_some());
        let request_state = if fails {
            "the collector's request fails, see above"
        } else {
            "the collector is about to send a request"
        };
        let step = decide(graph, id);
        let must_stay = matches!(step, Step::RemoveForegroundFinalizer | Step::RemoveOrphanFinalizer)
            && self.core.finalizer_hold(id, &step, self.now).is_some();
        match step {
            Step::Nothing if state.contains(NodeState::DELETING) => format!(
                "its deletion, which needs nothing of the collector. If it has finalizers, their controllers have to \
                 remove them: {}",
                self.kubectl(id)
            ),
            Step::Nothing if state.contains(NodeState::ABSENT) => {
                "it is deleted; its dependents are decided on".to_owned()
            }
            Step::Nothing if state.is_unknown() => {
                let item = WorkItem::GetOwner(id);
                let status = self.core.queue.status(item);
                let hangs = status.and_then(|it| it.hanging_request(item, self.now));
                format!(
                    "it is unknown whether it exists; {}",
                    hangs.as_deref().unwrap_or("the collector sends a GET")
                )
            }
            Step::Nothing => "nothing has to be done: one of its owners exists, or it has none".to_owned(),
            Step::GetOwners(_) => "the collector has to GET its owners first".to_owned(),
            Step::Unresolved(owners) => {
                let mut reasons = owners.iter().map(|&owner| unresolved_reason(graph, owner));
                match reasons.find(|why| *why != NOT_SERVED) {
                    Some(why) => format!("it is kept until the reference to that owner is removed: {why}"),
                    None => {
                        "it is kept until the kind of its owner is served again, or the reference is removed".to_owned()
                    }
                }
            }
            Step::NamespacedOwner(_) => {
                "it is kept until the reference is removed: a cluster-scoped object cannot have a namespaced \
                owner"
                    .to_owned()
            }
            Step::RemoveForegroundFinalizer | Step::RemoveOrphanFinalizer if must_stay => {
                "its finalizer stays until every kind is synced".to_owned()
            }
            Step::Wait => "it waits for its dependents".to_owned(),
            Step::DropReferences(_)
            | Step::Delete { .. }
            | Step::RemoveForegroundFinalizer
            | Step::RemoveOrphanFinalizer => request_state.to_owned(),
        }
    }

    /// A command that shows its finalizers.
    fn kubectl(&self, id: NodeId) -> String {
        let graph = self.graph();
        let node = graph.node(id);
        let (group, kind) = (graph.kinds.group(node.kind), graph.kinds.kind(node.kind));
        let resource = graph.kinds.resource(node.kind).map_or(kind, |it| &it.plural);
        let namespace = match graph.namespace(node.namespace) {
            "" => String::new(),
            namespace => format!(" -n {namespace}"),
        };
        let name = quoted(&node.name);
        escape_control_chars(&format!(
            "kubectl get {} {name}{namespace} -o jsonpath='{{.metadata.finalizers}}'",
            qualified_name(resource, group)
        ))
    }
}

/// Names a controller that creates dependents as fast as they are deleted.
pub(in crate::collector) fn recreated(created: u32) -> Option<String> {
    (created >= MIN_RECREATED).then(|| {
        format!(
            "{created} dependents were created since its foreground deletion was seen: a controller creates them again, and \
             has to be stopped first"
        )
    })
}

/// Quotes a name for a shell: names of roles may have any character but slashes.
fn quoted(name: &str) -> String {
    if name.chars().all(|it| it.is_ascii_alphanumeric() || "-._:".contains(it)) {
        name.to_owned()
    } else {
        format!("'{}'", name.replace('\'', r"'\''"))
    }
}

/// State of an object.
fn describe_state(state: NodeState) -> &'static str {
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
