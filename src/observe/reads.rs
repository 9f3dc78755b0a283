//! The reads of one pod: runtime, termination messages and node. Each has a limit of time, and few run at once.

use std::{path::Path, sync::Arc, time::Duration};

use tokio::{
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::volumes::{StagedVolume, leftover_volumes};
use crate::{
    model::{observation::Leftover, pod::PodView},
    node::{
        cri::types::{Container, RuntimePod},
        mounts::Mount,
    },
    teardown::{
        bounded_read::{Fact, READ_LIMIT, blocking_in, late, text},
        context::Context,
        locate,
        plan::{Plan, plan_view},
        status::Messages,
        termination_message,
    },
};

/// Number of pods that are read on the node at once: the kubelet has to work at the same time.
const MAX_READS: usize = 2;
/// Number of exits that are read at once. They are urgent: the kubelet removes the container at its next relist.
const MAX_EXITS: usize = 16;
/// A plan that is blocked is made again after this time: the kubelet may have been between two steps.
const REPLAN_DELAY: Duration = Duration::from_millis(700);
/// Limit of a read of the runtime.
const RUNTIME_LIMIT: Duration = Duration::from_secs(10);

/// Reads pods.
#[derive(Clone)]
pub(super) struct PodReader {
    /// It refuses every effect and every write.
    context: Arc<Context>,
    slots: Arc<Semaphore>,
    exit_slots: Arc<Semaphore>,
}

/// What a check of the node has read.
pub(super) struct NodeRead {
    /// The pod as the lists of the runtime show it.
    pub runtime: Fact<RuntimePod>,
    /// What the agent would do about the pod now.
    pub plan: Plan,
    /// Path and type of each file system at or below the pod's directory.
    pub mounts: Fact<Vec<(String, String)>>,
    /// Its volumes that no pod of the node uses, but that are still staged, or in the Node's `volumesInUse`.
    pub volumes: Fact<Vec<Leftover>>,
}

// === impl PodReader ===

impl PodReader {
    /// `context` is one for reads: see [`Context::read_only`].
    pub fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            slots: Arc::new(Semaphore::new(MAX_READS)),
            exit_slots: Arc::new(Semaphore::new(MAX_EXITS)),
        }
    }

    /// The node. Its runtime refuses every change.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// An exited container with its status and its termination message; `None` if it cannot be read.
    pub async fn exit(&self, view: Arc<PodView>, listed: Container) -> Option<(Container, Messages)> {
        let _slot = self.exit_slots.acquire().await;
        let read = timeout(READ_LIMIT, self.context.node.cri.with_status(&listed, READ_LIMIT)).await;
        let container = read.ok()?.ok()??;
        let copy = container.clone();
        let messages = blocking_in(READ_LIMIT, &self.context, &view, move |_, _| {
            let (messages, _) = termination_message::read_all([&copy]);
            // The kubelet makes the file before the start, and removes it with the container. Without it the log would count.
            match &copy.termination_message_file {
                Some(file) if !Path::new(file).exists() => Err(format!("{file} was removed").into()),
                _ => Ok(messages),
            }
        });
        Some((container, messages.await.ok()?))
    }

    /// The pod in the runtime and on the node, and its volumes that were `staged` when its termination began.
    pub async fn node(&self, view: Arc<PodView>, staged: Vec<StagedVolume>) -> NodeRead {
        let _slot = self.slots.acquire().await;
        let runtime = self.read_runtime(&view).await;
        let mounts = blocking_in(READ_LIMIT, &self.context, &view, |context, view| {
            let dir = locate::pod_dir(context, view)?;
            let table = context.node.storage.all_mounts.read().map_err(text)?;
            let mounts = table.mounts_at_or_below(&[dir.path()]).into_iter();
            let mount = |it: Mount| (it.path.display().to_string(), it.fs_type.to_string_lossy().into_owned());
            Ok(mounts.map(mount).collect())
        });
        NodeRead {
            runtime,
            mounts: mounts.await,
            volumes: leftover_volumes(&self.context, &view, staged).await,
            plan: plan_view(&self.context, view, Vec::new()).await,
        }
    }

    /// The plan at the beginning of a termination.
    pub async fn first_plan(&self, view: Arc<PodView>) -> Plan {
        let plan = self.plan(&view).await;
        if plan.blocked.is_empty() {
            return plan;
        }
        sleep(REPLAN_DELAY).await;
        self.plan(&view).await
    }

    async fn plan(&self, view: &Arc<PodView>) -> Plan {
        let _slot = self.slots.acquire().await;
        plan_view(&self.context, Arc::clone(view), Vec::new()).await
    }

    async fn read_runtime(&self, view: &PodView) -> Fact<RuntimePod> {
        let read = timeout(RUNTIME_LIMIT, self.context.node.cri.pod_brief(view.pod.uid.as_str())).await;
        read.map_err(late(RUNTIME_LIMIT))?.map_err(text)
    }
}
