//! What a plan is made of. Only reads, each with a limit of time, and all with one deadline. The steps read what only they need.

use jiff::Timestamp;
use tokio::sync::OnceCell;

use super::model::PlannedAction;
use crate::{
    journal::PodEntry,
    model::{failure::Failure, pod::PodView, step::Step},
    node::cri::types::RuntimePod,
    teardown::{
        bounded_read::{Fact, READ_LIMIT, Reads},
        context::Context,
        evidence,
        grace::OwnGrace,
        locate, volumes,
    },
};

/// Actions by step, in the order of their steps.
pub type Planned = Vec<(Step, Vec<PlannedAction>)>;

/// Facts about one pod. A fact that could not be read has the reason instead.
pub struct PlanFacts {
    /// The pod and its node.
    pub reads: Reads,
    /// What the journal has of it.
    pub entry: Option<PodEntry>,
    /// This agent's grace period.
    pub grace: OwnGrace,
    pub now: Timestamp,
    runtime: OnceCell<Fact<RuntimePod>>,
    may_hold_attached: OnceCell<bool>,
}

// === impl PlanFacts ===

impl PlanFacts {
    pub fn new(reads: Reads) -> Self {
        let (context, view) = (&reads.context, &reads.view);
        let entry = context.journal.pod(&view.pod.uid);
        Self {
            grace: OwnGrace::new(view, entry.as_ref(), &context.node.clock.now()),
            now: context.node.clock.wall.now(),
            entry,
            reads,
            runtime: OnceCell::new(),
            may_hold_attached: OnceCell::new(),
        }
    }

    /// The pod in the runtime.
    pub async fn runtime(&self) -> &Fact<RuntimePod> {
        let Reads { context, view, .. } = &self.reads;
        let pod = context.node.cri.pod(view.pod.uid.as_str(), READ_LIMIT);
        self.runtime.get_or_init(|| self.reads.in_time(pod)).await
    }

    /// Whether a volume of it may be attached to this node by a controller. If that is not known, it may.
    pub async fn may_hold_attached(&self) -> bool {
        let read = self.reads.on_node(|context, view| {
            let dir = locate::pod_dir(context, view)?;
            Ok(view.attachable_volumes || volumes::may_hold_attached(&dir, &context.node.storage.mounts))
        });
        let read = async { read.await.unwrap_or(true) };
        *self.may_hold_attached.get_or_init(|| read).await
    }

    /// Why runtime, cgroups and directories do not agree; empty if they do, or the runtime cannot be read.
    pub async fn disagreement(&self) -> Vec<String> {
        let Ok(pod) = self.runtime().await.clone() else {
            return Vec::new();
        };
        let check = self.reads.on_node(move |context, view| {
            let checked = evidence::check_agreement(context, view, Step::Term, &pod);
            Ok(checked.err().iter().flatten().map(Failure::to_string).collect())
        });
        let unknown = "whether runtime, cgroups and directories agree is not known";
        check.await.unwrap_or_else(|why| vec![format!("{unknown}: {why}")])
    }

    /// The actions that follow from the pod in the runtime.
    pub async fn of_runtime(&self, actions: impl FnOnce(&RuntimePod) -> Vec<PlannedAction>) -> Vec<PlannedAction> {
        let runtime = self.runtime().await.as_ref();
        let actions = runtime.map(actions).map_err(Clone::clone);
        known_or_not("the pod in the container runtime", actions)
    }

    /// The actions that follow from files of the node. `what` names these.
    pub async fn on_node(
        &self,
        what: &str,
        read: impl FnOnce(&Context, &PodView) -> Fact<Vec<PlannedAction>> + Send + 'static,
    ) -> Vec<PlannedAction> {
        known_or_not(what, self.reads.on_node(read).await)
    }

    /// The actions that follow from another read.
    pub async fn of(&self, what: &str, read: impl Future<Output = Fact<Vec<PlannedAction>>>) -> Vec<PlannedAction> {
        known_or_not(what, self.reads.in_time(read).await)
    }
}

/// The actions; if a fact could not be read, that they are not known.
fn known_or_not(what: &str, actions: Fact<Vec<PlannedAction>>) -> Vec<PlannedAction> {
    actions.unwrap_or_else(|why| {
        let fact = format!("{what}: {why}");
        vec![PlannedAction::NotKnown { fact }]
    })
}
