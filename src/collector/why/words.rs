//! Sentences of `gc why`.

use tokio::time::Instant;

use super::chain::{Chain, blockers};
use crate::collector::{
    core::Core,
    decide::{Step, decide},
    graph::{Graph, Hint, NodeId, State},
    names::{SERVED_NOWHERE, called, dotted, untold, visible},
    picture::words::verdict,
    queue::Waiting,
    sight::{Hold, UNDISCOVERED},
};

/// Maximum number of owners and of blockers that are described.
const SHOWN: usize = 5;

/// Describes the state at one moment.
pub(super) struct Words<'a> {
    pub core: &'a Core,
    pub now: Instant,
}

// === impl Words ===

impl Words<'_> {
    fn graph(&self) -> &Graph {
        &self.core.graph
    }

    /// Name of an object.
    pub fn called(&self, id: NodeId) -> String {
        visible(&called(self.graph(), id))
    }

    /// All that is known of one object.
    pub fn says(&self, id: NodeId) -> Vec<String> {
        let graph = self.graph();
        let mut says = vec![stands(graph.node(id).state).to_owned()];
        if let (_, Some(decision)) = verdict(graph, id) {
            says.push(visible(&decision));
        }
        let blocking = blockers(graph, id).take(SHOWN);
        says.extend(blocking.map(|it| format!("blocked by {}: {}", self.called(it), stands(graph.node(it).state))));
        let owners = graph.owners(id).filter(|link| link.node != id).take(SHOWN);
        says.extend(owners.map(|link| self.owner(link.node)));
        let step = decide(graph, id);
        if let Step::FinishForeground | Step::FinishOrphan = step
            && let Some(hold) = self.core.holds_end(id, &step, self.now)
        {
            says.push(match hold {
                Hold::Discovery => format!("its finalizer stays while {UNDISCOVERED}"),
                Hold::Unsynced { why, is_delay } => {
                    let flag = if is_delay {
                        "--gc-aggregated-hold"
                    } else {
                        "--gc-unsynced"
                    };
                    format!("its finalizer stays while {why}: objects of that kind may name it ({flag})")
                }
            });
        }
        for (hint, what) in [(Hint::Decide(id), "for a decision"), (Hint::Ask(id), "for a GET")] {
            says.extend(self.core.queue.look(hint).map(|it| self.queued(what, it)));
        }
        says
    }

    fn owner(&self, id: NodeId) -> String {
        let graph = self.graph();
        let node = graph.node(id);
        let state = if !node.state.is_there() && !graph.can_be_asked_for(id) {
            &format!("{}, so it is unknown whether it exists", untold(graph, id))
        } else {
            stands(node.state)
        };
        format!("owner {}: {state}", self.called(id))
    }

    fn queued(&self, what: &str, it: Waiting) -> String {
        let waits = self.now.saturating_duration_since(it.since).as_secs();
        match it.trouble {
            Some(trouble) => format!(
                "queued for {waits} s {what}, failed {} times, last: {}",
                it.tries,
                visible(&trouble)
            ),
            None => format!("queued for {waits} s {what}"),
        }
    }

    /// The conclusion.
    pub fn end(&self, chain: &Chain) -> String {
        let Some(last) = chain.last() else {
            return String::new();
        };
        if let Some(back) = chain.circle {
            return format!(
                "Ownership cycle: {} waits for {} again. It does not end by itself: remove blockOwnerDeletion from one of \
                 the references, or the finalizer foregroundDeletion from one of the objects.",
                self.called(last),
                self.called(back)
            );
        }
        let all = if chain.nodes.len() > 1 { "All wait for" } else { "It is" };
        let cut = if chain.cut {
            " More objects block it than were visited."
        } else {
            ""
        };
        format!("{all} {}: {}.{cut}", self.called(last), self.due(last))
    }

    /// What the last node of the chain waits for.
    fn due(&self, id: NodeId) -> String {
        let graph = self.graph();
        let state = graph.node(id).state;
        let fails = self
            .core
            .queue
            .look(Hint::Decide(id))
            .is_some_and(|it| it.trouble.is_some());
        let acts = if fails {
            "the collector's request fails, see above"
        } else {
            "the collector is about to send a request"
        };
        let step = decide(graph, id);
        let is_held = matches!(step, Step::FinishForeground | Step::FinishOrphan)
            && self.core.holds_end(id, &step, self.now).is_some();
        match step {
            Step::Nothing if state.has(State::DELETING) => format!(
                "its deletion, which needs nothing of the collector. If it has finalizers, their controllers have to \
                 remove them: {}",
                self.kubectl(id)
            ),
            Step::Nothing if state.has(State::ABSENT) => "it is deleted; its dependents are decided on".to_owned(),
            Step::Nothing if state.is_in_question() => {
                "it is unknown whether it exists; the collector sends a GET".to_owned()
            }
            Step::Nothing => "nothing has to be done: one of its owners exists, or it has none".to_owned(),
            Step::Ask(_) => "the collector has to GET its owners first".to_owned(),
            Step::Unserved(owners) => {
                let mut whys = owners.iter().map(|&owner| untold(graph, owner));
                match whys.find(|why| *why != SERVED_NOWHERE) {
                    Some(why) => format!("it is kept until the reference to that owner is removed: {why}"),
                    None => {
                        "it is kept until the kind of its owner is served again, or the reference is removed".to_owned()
                    }
                }
            }
            Step::Impossible(_) => {
                "it is kept until the reference is removed: a cluster-scoped object cannot have a namespaced \
                owner"
                    .to_owned()
            }
            Step::FinishForeground | Step::FinishOrphan if is_held => {
                "its finalizer stays until every kind is synced".to_owned()
            }
            Step::Wait => "it waits for its dependents".to_owned(),
            Step::Release(_) | Step::Delete { .. } | Step::FinishForeground | Step::FinishOrphan => acts.to_owned(),
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
        visible(&format!(
            "kubectl get {} {name}{namespace} -o jsonpath='{{.metadata.finalizers}}'",
            dotted(resource, group)
        ))
    }
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
fn stands(state: State) -> &'static str {
    if state.has(State::UNSEEN) {
        "was observed, and the last complete list did not show it"
    } else if state.has(State::ABSENT) {
        "does not exist"
    } else if !state.has(State::OBSERVED) {
        "is named and was never observed"
    } else if state.orphans() {
        "is being deleted, and has the finalizer orphan until no dependent names it"
    } else if state.waits() {
        "is being deleted, and has the finalizer foregroundDeletion until no dependent blocks it"
    } else if state.has(State::DELETING) {
        "is being deleted, and has none of the collector's finalizers"
    } else {
        "exists, and is not being deleted"
    }
}
