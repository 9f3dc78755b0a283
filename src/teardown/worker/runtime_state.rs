//! Handles a runtime that reports containers as running although their processes have exited.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::Worker;
use crate::{
    model::{
        event::Reason,
        pod::{PodView, STATUS_UNKNOWN, UNKNOWN_EXIT_CODE},
        trace::Step,
    },
    node::{
        cri::types::{Container, RuntimePod},
        processes,
    },
    teardown::{
        evidence,
        exits::{ContainerExit, Exits},
        journal::PodJournalExt as _,
        locate,
        runtime_state::{NamedProcess, RuntimeEvidence, Settling, StateDecision},
        stop::{AFTER_KILL, wait_for_deadline},
    },
};

/// How often the kernel's state is checked while a stop is in progress.
const INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait for the runtime's answer.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(10);

/// State over all checks of one pod.
#[derive(Debug, Default)]
pub struct RuntimeState(Mutex<CheckState>);

#[derive(Debug, Default)]
struct CheckState {
    settling: Settling,
    /// When each container was first seen running, since boot. A process that started later has reused its PID.
    first_seen: BTreeMap<String, Duration>,
    /// When only the network could not be taken down for the first time.
    network_failed_since: Option<Instant>,
}

// === impl RuntimeState ===

impl RuntimeState {
    /// Records the containers that the runtime reports as running, `since_boot`.
    pub(super) fn record_running(&self, runtime_pod: &RuntimePod, since_boot: Duration) {
        let mut seen = self.lock();
        for container in runtime_pod.possibly_running() {
            seen.first_seen.entry(container.id.clone()).or_insert(since_boot);
        }
    }

    /// When this was called first.
    pub(super) fn network_failed_since(&self) -> Instant {
        *self.lock().network_failed_since.get_or_insert_with(Instant::now)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CheckState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// Returns when the kernel's state counts, while a stop is not answered.
    pub(super) async fn wait_until_runtime_state_overruled(&self, view: &Arc<PodView>) {
        wait_for_deadline(self.period.subscribe()).await;
        sleep(AFTER_KILL).await;
        while !self.overrule_runtime_state_if_exited(view).await {
            sleep(INTERVAL).await;
        }
    }

    /// Whether an earlier attempt has concluded that these containers have exited, and no process is seen.
    pub(super) async fn is_runtime_state_overruled(&self, view: &Arc<PodView>, runtime_pod: &RuntimePod) -> bool {
        let exits = self.context.journal.exits(&view.pod.uid);
        let mut running = runtime_pod.possibly_running().peekable();
        running.peek().is_some()
            && running.all(|it| exits.contains_key(&it.id))
            && self.overrule_runtime_state_if_exited(view).await
    }

    /// Records and reports exits if the kernel shows that nothing of the pod runs, and has done so for long enough. Returns whether it does.
    pub(super) async fn overrule_runtime_state_if_exited(&self, view: &Arc<PodView>) -> bool {
        let deadline = self.period.deadline();
        // The conclusion has effects, so the gate must be open.
        let may_act = matches!(self.context.node.effects.allow_unlogged(), Ok(true));
        if Instant::now() < deadline || !may_act {
            return false;
        }
        let Some((runtime_pod, facts)) = self.facts(view).await else {
            self.runtime_state.lock().settling.reset();
            return false;
        };
        let verdict = self
            .runtime_state
            .lock()
            .settling
            .judge(&facts, deadline, Instant::now());
        match verdict {
            StateDecision::Runtime(why) => {
                self.recorder
                    .set_runtime_state(Some(why).filter(|_| !facts.running.is_empty()));
                false
            }
            StateDecision::Settling(why) => {
                self.recorder.set_runtime_state(Some(why));
                false
            }
            StateDecision::Kill => {
                self.kill_leftovers(view).await;
                false
            }
            StateDecision::Kernel(why) => {
                if !facts.has_settled {
                    tracing::warn!(
                        why,
                        "Runtime reports exited containers as running; the kernel's state counts"
                    );
                }
                self.context
                    .events
                    .event(view, None, Reason::RuntimeStateMismatch, &why);
                self.context
                    .journal
                    .record_exits(&view.pod.uid, unknown_exits(&runtime_pod));
                self.recorder.set_runtime_state(Some(why));
                true
            }
        }
    }

    /// `None` if the runtime does not answer, or the cgroups cannot be read.
    async fn facts(&self, view: &Arc<PodView>) -> Option<(RuntimePod, RuntimeEvidence)> {
        let cri = &self.context.node.cri;
        let runtime_pod = timeout(RUNTIME_TIMEOUT, cri.pod_brief(view.pod.uid.as_str()))
            .await
            .ok()?
            .ok()?;
        let mut named = Vec::new();
        for container in runtime_pod.possibly_running() {
            let first_seen = self.runtime_state.lock().first_seen.get(&container.id).copied();
            let pid = cri.container_pid(&container.id, RUNTIME_TIMEOUT).await;
            named.push((
                container.name.clone(),
                first_seen,
                pid.map_err(|error| error.to_string()),
            ));
        }
        let exits = self.context.journal.exits(&view.pod.uid);
        let has_settled = runtime_pod.possibly_running().all(|it| exits.contains_key(&it.id));
        let since_boot = self.context.node.clock.now().since_boot;
        let pod_copy = runtime_pod.clone();
        let facts = self.on_node(view, Step::Kill, move |context, view| {
            let state = |first: Option<Duration>, pid: Result<Option<i32>, String>| match pid {
                Err(why) => NamedProcess::Unreadable(why),
                Ok(None) => NamedProcess::None,
                Ok(Some(pid)) => {
                    match processes::is_running(&context.node.storage.proc, pid, first.unwrap_or(since_boot)) {
                        Ok(true) => NamedProcess::Runs(pid),
                        Ok(false) => NamedProcess::Exited(pid),
                        Err(error) => NamedProcess::Unreadable(format!("process {pid} cannot be read: {error}")),
                    }
                }
            };
            Ok(RuntimeEvidence {
                running: named
                    .into_iter()
                    .map(|(name, first, pid)| (name, state(first, pid)))
                    .collect(),
                processes: evidence::processes(context, view, &pod_copy)?,
                has_settled,
            })
        });
        Some((runtime_pod, facts.await.ok()?))
    }

    /// Kills the processes in the pod's cgroups, all of containers and sandboxes that the runtime should have killed.
    async fn kill_leftovers(&self, view: &PodView) {
        let found = locate::find_cgroups(&self.context, view).await;
        for cgroup in found.unwrap_or_default() {
            tracing::warn!(cgroup = %cgroup.path().display(), "Killing processes that the runtime has left in the pod's cgroups; the containers have exited");
            if let Err(faults) = self
                .context
                .node
                .cgroups
                .kill(&cgroup, &self.context.node.effects)
                .await
            {
                let why = faults.first().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(why, "Processes of the pod cannot be killed");
            }
        }
    }
}

/// Exits of the containers that the runtime reports as running.
fn unknown_exits(runtime_pod: &RuntimePod) -> Exits {
    let exit = |it: &Container| ContainerExit {
        name: it.name.clone(),
        attempt: it.attempt,
        restart_count: it.restart_count,
        sandbox_id: it.sandbox_id.clone(),
        created_at: it.created_at,
        started_at: None,
        finished_at: None,
        exit_code: UNKNOWN_EXIT_CODE,
        reason: STATUS_UNKNOWN.to_owned(),
        message: "The process had exited, but the runtime reported the container as running".to_owned(),
        image: it.image.clone(),
        image_ref: it.image_ref.clone(),
        termination_message: Some(String::new()),
    };
    runtime_pod
        .possibly_running()
        .map(|it| (it.id.clone(), exit(it)))
        .collect()
}
