//! Handles a runtime that reports containers as running although their processes have exited.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::Worker;
use crate::{
    model::{event::Reason, pod::PodView, trace::Step},
    node::{
        cri::types::{Container, RuntimePod},
        processes,
    },
    teardown::{
        ends::{ContainerEnd, Ends},
        evidence,
        journal::PodJournalExt as _,
        places,
        runtime_state::{Facts, NamedProcess, Settling, Verdict},
        stop::{AFTER_KILL, passed},
    },
};

/// How often is looked while a stop is under way.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Longest wait for what the runtime says meanwhile.
const PATIENCE: Duration = Duration::from_secs(10);
/// The reason that the status shows of a container whose end is not known.
const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";
const UNKNOWN_EXIT: i32 = 137;

/// What a worker remembers from look to look.
#[derive(Debug, Default)]
pub struct RuntimeState(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    settling: Settling,
    /// When each container was first seen running, since boot. A process that started later has reused its PID.
    first: BTreeMap<String, Duration>,
}

// === impl RuntimeState ===

impl RuntimeState {
    /// These containers run by the runtime's word.
    pub(super) fn saw(&self, observed: &RuntimePod, since_boot: Duration) {
        let mut seen = self.lock();
        for container in observed.running() {
            seen.first.entry(container.id.clone()).or_insert(since_boot);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// Returns when the kernel's word counts, while a stop fails to come back.
    pub(super) async fn until_kernel_counts(&self, view: &Arc<PodView>) {
        passed(self.period.subscribe()).await;
        sleep(AFTER_KILL).await;
        while !self.kernel_counts(view).await {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Whether an earlier attempt has concluded that these containers have exited, and nothing speaks against it.
    pub(super) async fn kernel_still_counts(&self, view: &Arc<PodView>, observed: &RuntimePod) -> bool {
        let ends = self.context.journal.ends(&view.pod.uid);
        let mut running = observed.running().peekable();
        running.peek().is_some() && running.all(|it| ends.contains_key(&it.id)) && self.kernel_counts(view).await
    }

    /// Whether nothing of the pod runs, whatever the runtime reports. If so, it is recorded in the journal, and reported.
    pub(super) async fn kernel_counts(&self, view: &Arc<PodView>) -> bool {
        let deadline = self.period.deadline();
        // What is concluded is told and acted on: not while nothing may be touched.
        let may_act = matches!(self.context.effects.allow_unlogged(), Ok(true));
        if Instant::now() < deadline || !may_act {
            return false;
        }
        let Some((observed, facts)) = self.facts(view).await else {
            self.runtime_state.lock().settling.reset();
            return false;
        };
        let verdict = self
            .runtime_state
            .lock()
            .settling
            .judge(&facts, deadline, Instant::now());
        match verdict {
            Verdict::Runtime(why) => {
                self.record
                    .set_runtime_state(Some(why).filter(|_| !facts.running.is_empty()));
                false
            }
            Verdict::Settling(why) => {
                self.record.set_runtime_state(Some(why));
                false
            }
            Verdict::Kill => {
                self.kill_rest(view).await;
                false
            }
            Verdict::Kernel(why) => {
                if !facts.has_settled {
                    tracing::warn!(
                        why,
                        "Runtime says that containers run which have exited; the kernel counts"
                    );
                }
                self.context.events.event(view, None, Reason::RuntimeStateWrong, &why);
                self.context.journal.ended(&view.pod.uid, unknown_ends(&observed));
                self.record.set_runtime_state(Some(why));
                true
            }
        }
    }

    /// Nothing if the runtime does not tell what runs by its word.
    async fn facts(&self, view: &Arc<PodView>) -> Option<(RuntimePod, Facts)> {
        let cri = &self.context.cri;
        let observed = timeout(PATIENCE, cri.pod_brief(view.pod.uid.as_str()))
            .await
            .ok()?
            .ok()?;
        let mut named = Vec::new();
        for container in observed.running() {
            let first = self.runtime_state.lock().first.get(&container.id).copied();
            let pid = cri.container_pid(&container.id, PATIENCE).await;
            named.push((container.name.clone(), first, pid.map_err(|error| error.to_string())));
        }
        let ends = self.context.journal.ends(&view.pod.uid);
        let has_settled = observed.running().all(|it| ends.contains_key(&it.id));
        let since_boot = self.context.clock.now().since_boot;
        let shown = observed.clone();
        let facts = self.on_node(view, Step::Kill, move |context, view| {
            let state = |first: Option<Duration>, pid: Result<Option<i32>, String>| match pid {
                Err(why) => NamedProcess::Unreadable(why),
                Ok(None) => NamedProcess::None,
                Ok(Some(pid)) => match processes::is_running(&context.storage.proc, pid, first.unwrap_or(since_boot)) {
                    Ok(true) => NamedProcess::Runs(pid),
                    Ok(false) => NamedProcess::Exited(pid),
                    Err(error) => NamedProcess::Unreadable(format!("process {pid} cannot be looked at: {error}")),
                },
            };
            Ok(Facts {
                running: named
                    .into_iter()
                    .map(|(name, first, pid)| (name, state(first, pid)))
                    .collect(),
                processes: evidence::processes(context, view, &shown)?,
                has_settled,
            })
        });
        Some((observed, facts.await.ok()?))
    }

    /// All that is left in the pod's cgroups is of containers and sandboxes that the runtime should have killed.
    async fn kill_rest(&self, view: &PodView) {
        let found = places::find_cgroups(&self.context, view).await;
        for cgroup in found.unwrap_or_default() {
            tracing::warn!(cgroup = %cgroup.path().display(), "Killing what the runtime has left of a pod whose containers have exited");
            if let Err(faults) = self.context.cgroups.kill(&cgroup, &self.context.effects).await {
                let why = faults.first().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(why, "Processes of the pod cannot be killed");
            }
        }
    }
}

/// How containers ended of which the runtime says that they run.
fn unknown_ends(observed: &RuntimePod) -> Ends {
    let end = |it: &Container| ContainerEnd {
        name: it.name.clone(),
        attempt: it.attempt,
        restart_count: it.restart_count,
        sandbox_id: it.sandbox_id.clone(),
        created_at: it.created_at,
        started_at: None,
        finished_at: None,
        exit_code: UNKNOWN_EXIT,
        reason: STATUS_UNKNOWN.to_owned(),
        message: "Its process had exited, and the runtime said that it ran".to_owned(),
        image: it.image.clone(),
        image_ref: it.image_ref.clone(),
        last_words: Some(String::new()),
    };
    observed.running().map(|it| (it.id.clone(), end(it))).collect()
}
