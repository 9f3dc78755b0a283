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
        for (hint, what) in [(Hint::Decide(id), "to act on it"), (Hint::Ask(id), "to ask for it")] {
            says.extend(self.core.queue.look(hint).map(|it| self.queued(what, it)));
        }
        says
    }

    fn owner(&self, id: NodeId) -> String {
        let graph = self.graph();
        let node = graph.node(id);
        let state = if !node.state.is_there() && !graph.can_be_asked_for(id) {
            &format!("{}, so nobody can tell whether it is there", untold(graph, id))
        } else {
            stands(node.state)
        };
        format!("owner {}: {state}", self.called(id))
    }

    fn queued(&self, what: &str, it: Waiting) -> String {
        let waits = self.now.saturating_duration_since(it.since).as_secs();
        match it.trouble {
            Some(trouble) => format!(
                "in the queue for {waits} s {what}, tried {} times in vain, at last: {}",
                it.tries,
                visible(&trouble)
            ),
            None => format!("in the queue for {waits} s {what}; its turn comes"),
        }
    }

    /// The conclusion.
    pub fn end(&self, chain: &Chain) -> String {
        let Some(last) = chain.last() else {
            return String::new();
        };
        if let Some(back) = chain.circle {
            return format!(
                "They wait for each other: {} waits for {} again. This does not end by itself: take blockOwnerDeletion out \
                 of one of the references, or the finalizer foregroundDeletion off one of them.",
                self.called(last),
                self.called(back)
            );
        }
        let all = if chain.nodes.len() > 1 { "All wait for" } else { "It is" };
        let cut = if chain.cut {
            " More objects than were looked at hold it up."
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
            "what the collector does about it fails, see above"
        } else {
            "the collector is about to act on it"
        };
        let step = decide(graph, id);
        let is_held = matches!(step, Step::FinishForeground | Step::FinishOrphan)
            && self.core.holds_end(id, &step, self.now).is_some();
        match step {
            Step::Nothing if state.has(State::DELETING) => format!(
                "its own end, which is not the collector's to bring about; if it has finalizers, whoever set them has to \
                 take them off: {}",
                self.kubectl(id)
            ),
            Step::Nothing if state.has(State::ABSENT) => "it is gone; whoever names it is decided on".to_owned(),
            Step::Nothing if state.is_in_question() => {
                "nobody knows whether it is there, and the API server has to tell".to_owned()
            }
            Step::Nothing => "nothing is to be done about it: one of its owners is there, or it names none".to_owned(),
            Step::Ask(_) => "whether its owners are there has to be known first".to_owned(),
            Step::Unserved(owners) => {
                let mut whys = owners.iter().map(|&owner| untold(graph, owner));
                match whys.find(|why| *why != SERVED_NOWHERE) {
                    Some(why) => format!("it is kept until the reference to that owner is taken out of it: {why}"),
                    None => "it is kept, and stays until the kind of its owner is served again, or the reference is taken out of it"
                        .to_owned(),
                }
            }
            Step::Impossible(_) => "it is kept until the reference is taken out of it: an object without a namespace \
                cannot be owned by one in a namespace"
                .to_owned(),
            Step::FinishForeground | Step::FinishOrphan if is_held => {
                "its finalizer stays until every kind can be seen".to_owned()
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
        "was there, and a complete list did not show it"
    } else if state.has(State::ABSENT) {
        "is not there"
    } else if !state.has(State::OBSERVED) {
        "was never seen: others only name it"
    } else if state.orphans() {
        "is being deleted, and has the finalizer orphan until no dependent names it"
    } else if state.waits() {
        "is being deleted, and has the finalizer foregroundDeletion until no dependent blocks it"
    } else if state.has(State::DELETING) {
        "is being deleted, and has none of the collector's finalizers"
    } else {
        "is there, and is not being deleted"
    }
}
