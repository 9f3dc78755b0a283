//! Handles a runtime that cannot stop a pod: kills what it has not killed, and corrects it if it reports as running what has exited.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until, timeout};

use super::Worker;
use crate::{
    model::{
        event::Reason,
        pod::{PodView, STATUS_UNKNOWN, UNKNOWN_EXIT_CODE},
        trace::{Stage, Step},
    },
    node::{
        cri::types::{Container, RuntimePod},
        effects::{Effects, Outcome},
        fault::Fault,
        processes::{Owner, Process, Shim},
    },
    teardown::{
        evidence,
        exits::{ContainerExit, Exits},
        journal::PodJournalExt as _,
        known_processes, locate,
        named_processes::{NamedPids, NamedProcesses},
        runtime_state::{Processes, RuntimeEvidence, SETTLES, Settling, StateDecision, StopTimes},
        stop::{AFTER_KILL, wait_for_deadline},
    },
};

/// How often the kernel's state is checked while a stop is in progress, and how often the stop is retried while this agent is about
/// to kill, or waits for the proof that nothing runs.
const INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait for the runtime's answer, and for reads of the node.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(10);

/// State over all checks of one pod.
#[derive(Debug, Default)]
pub struct RuntimeState(Mutex<CheckState>);

#[derive(Debug, Default)]
struct CheckState {
    settling: Settling,
    /// When each container and sandbox was first seen running, since boot. A process that started later has reused its PID.
    first_seen: BTreeMap<String, Duration>,
    /// When only the network could not be taken down for the first time.
    network_failed_since: Option<Instant>,
    /// When a stop was requested, or could be requested again. It has not succeeded since.
    requested: Option<Instant>,
    /// How long stops had failed before this agent could not act any more.
    failed_before: Duration,
    /// When the state must be checked again, in this attempt or the next one.
    next_check: Option<Instant>,
    /// What was killed last, so that a kill that is repeated is reported once.
    killed: Option<String>,
}

/// What runtime and kernel show of the pod.
struct Observation {
    runtime_pod: RuntimePod,
    facts: RuntimeEvidence,
    /// Running processes that the runtime names.
    processes: Vec<Process>,
    owner: Owner,
    shims: Vec<Shim>,
}

// === impl RuntimeState ===

impl RuntimeState {
    /// Records the containers and sandboxes that the runtime reports as running, `since_boot`.
    pub(super) fn record_running(&self, runtime_pod: &RuntimePod, since_boot: Duration) {
        let mut seen = self.lock();
        let containers = runtime_pod.possibly_running().map(|it| &it.id);
        let ready = runtime_pod.sandboxes.iter().filter(|it| it.is_ready());
        for id in containers.chain(ready.map(|it| &it.id)) {
            seen.first_seen.entry(id.clone()).or_insert(since_boot);
        }
    }

    /// When this was called first.
    pub(super) fn network_failed_since(&self) -> Instant {
        *self.lock().network_failed_since.get_or_insert_with(Instant::now)
    }

    /// Records that a stop is requested.
    pub(super) fn begin_stop(&self) {
        self.lock().requested.get_or_insert_with(Instant::now);
    }

    /// Stops the clocks of failing stops and of the proof that nothing runs. Called while this agent may not act. They continue later:
    /// between the starts of a kubelet that never works, this agent has only some seconds each time.
    pub(super) fn pause(&self, deadline: Instant) {
        let (mut state, now) = (self.lock(), Instant::now());
        state.settling.pause(now);
        if let Some(requested) = state.requested.take() {
            let failed_before = state.failed_before;
            state.failed_before = StopTimes {
                deadline,
                requested,
                failed_before,
            }
            .failed_for(now);
        }
        state.next_check = None;
    }

    /// Time until the next attempt at the latest, if this agent is about to act.
    pub(super) fn next_check(&self) -> Option<Duration> {
        let at = self.lock().next_check.take()?;
        Some(at.saturating_duration_since(Instant::now()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, CheckState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// Returns when the kernel's state counts, while a stop is not answered. Kills what the runtime has not killed.
    pub(super) async fn wait_until_runtime_state_overruled(&self, view: &Arc<PodView>) {
        wait_for_deadline(self.period.subscribe()).await;
        // After a gap between two starts of a kubelet it has passed.
        sleep_until(self.period.deadline() + AFTER_KILL).await;
        while !self.overrule_runtime_state_if_exited(view).await {
            let (now, next) = (Instant::now(), self.runtime_state.lock().next_check);
            // It has passed if the runtime did not answer now.
            let next = next.filter(|next| *next > now);
            sleep_until(next.unwrap_or(now + INTERVAL)).await;
        }
    }

    /// Whether an earlier attempt has concluded that everything has exited, and no process is seen.
    pub(super) async fn is_runtime_state_overruled(&self, view: &Arc<PodView>, runtime_pod: &RuntimePod) -> bool {
        runtime_pod.may_run()
            && self.has_settled(view, runtime_pod)
            && self.overrule_runtime_state_if_exited(view).await
    }

    /// Whether an earlier attempt has concluded that everything has exited: it has recorded exits of containers that the runtime
    /// reports as running, or went on although a sandbox is ready.
    fn has_settled(&self, view: &PodView, runtime_pod: &RuntimePod) -> bool {
        let exits = self.context.journal.exits(&view.pod.uid);
        match runtime_pod.possibly_running().next() {
            Some(_) => runtime_pod.possibly_running().all(|it| exits.contains_key(&it.id)),
            None => self.recorder.stage() >= Stage::Terminated,
        }
    }

    /// Records and reports exits if the kernel shows that nothing of the pod runs, and has done so for long enough. Returns whether
    /// it does. Kills what runs if the runtime has had its time to do so.
    pub(super) async fn overrule_runtime_state_if_exited(&self, view: &Arc<PodView>) -> bool {
        // The conclusion has effects, so the gate must be open.
        let may_act = self.context.node.effects.check().is_ok() && !self.is_canceled();
        if !may_act {
            self.pause_runtime_state();
            return false;
        }
        let deadline = self.period.deadline();
        if Instant::now() < deadline {
            return false;
        }
        // Boxed: most workers never need it.
        let Some(observation) = Box::pin(self.read_runtime_state(view)).await else {
            self.runtime_state.lock().settling = Settling::default();
            self.recorder.set_runtime_state(None, None);
            return false;
        };
        let facts = &observation.facts;
        match self.judge(facts, deadline, Instant::now()) {
            StateDecision::Runtime(why) => {
                let why = Some(why).filter(|_| !facts.running.is_empty());
                self.recorder.set_runtime_state(why, None);
                false
            }
            StateDecision::Settling(why) => {
                self.recorder.set_runtime_state(Some(why), None);
                false
            }
            StateDecision::Kill(at, why) => {
                let stopped = observation.shims.iter().filter(|shim| shim.is_stopped);
                let stopped: String = stopped.map(|shim| format!("; the runtime waits for {shim}")).collect();
                let why = format!("{why}{stopped}");
                if Instant::now() < at {
                    self.recorder.set_runtime_state(Some(why), Some(at));
                } else {
                    Box::pin(self.kill(view, &observation, why)).await;
                }
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
                    .record_exits(&view.pod.uid, unknown_exits(&observation.runtime_pod));
                self.recorder.set_runtime_state(Some(why), None);
                true
            }
        }
    }

    /// Remembers the processes that the runtime names, while it names them: a stop has failed.
    pub(super) async fn record_named_processes(&self, view: &Arc<PodView>) {
        drop(Box::pin(self.read_runtime_state(view)).await);
    }

    /// Stops everything that needs the gate to be open.
    pub(super) fn pause_runtime_state(&self) {
        self.runtime_state.pause(self.period.deadline());
        self.recorder.set_runtime_state(None, None);
    }

    fn judge(&self, facts: &RuntimeEvidence, deadline: Instant, now: Instant) -> StateDecision {
        let mut state = self.runtime_state.lock();
        let times = StopTimes {
            deadline,
            requested: *state.requested.get_or_insert(now),
            failed_before: state.failed_before,
        };
        let verdict = state.settling.judge(facts, times, now);
        let soon = now + INTERVAL;
        state.next_check = match &verdict {
            StateDecision::Kill(at, _) if *at > now => Some(soon.min(*at)),
            StateDecision::Kill(..) | StateDecision::Settling(_) => Some(soon),
            StateDecision::Runtime(_) | StateDecision::Kernel(_) => None,
        };
        verdict
    }

    /// `None` if the runtime does not answer, the node cannot be read, or the pod is not this agent's to kill.
    async fn read_runtime_state(&self, view: &Arc<PodView>) -> Option<Observation> {
        let cri = &self.context.node.cri;
        let runtime_pod = timeout(RUNTIME_TIMEOUT, cri.pod_brief(view.pod.uid.as_str()))
            .await
            .ok()?
            .ok()?;
        // A static pod was started with this UID meanwhile.
        if runtime_pod.sandboxes.iter().any(|sandbox| sandbox.is_from_elsewhere()) {
            return None;
        }
        let pids = NamedPids::query(&self.context, &view.pod.uid, &runtime_pod, RUNTIME_TIMEOUT).await;
        let has_settled = self.has_settled(view, &runtime_pod);
        let has_containers = runtime_pod.possibly_running().next().is_some();
        let first_seen = self.runtime_state.lock().first_seen.clone();
        let since_boot = self.context.node.clock.now().since_boot;
        let pod_copy = runtime_pod.clone();
        let read = self.on_node(view, Step::Kill, move |context, view| {
            let started_by = |id: &str| first_seen.get(id).copied().unwrap_or(since_boot);
            let named = pids.read(&context.node.storage.proc, started_by);
            known_processes::record(context, &view.pod.uid, &named);
            Ok((named, evidence::processes(context, view, &pod_copy)?))
        });
        let (NamedProcesses { all, shims, owner }, processes) = timeout(RUNTIME_TIMEOUT, read).await.ok()?.ok()?;
        let (mut running, mut found) = (Vec::new(), Vec::new());
        for named in all {
            running.push((named.what, named.process));
            found.extend(named.running);
        }
        Some(Observation {
            runtime_pod,
            facts: RuntimeEvidence {
                running,
                has_containers,
                processes,
                has_settled,
            },
            processes: found,
            owner,
            shims,
        })
    }

    /// Kills what runs, and reports it. A kill that is repeated is not reported again.
    async fn kill(&self, view: &PodView, observation: &Observation, why: String) {
        let before = self.runtime_state.lock().killed.replace(why.clone());
        if before.as_ref() == Some(&why) {
            // The kernel does not let it exit: that may take any time.
            self.runtime_state.lock().next_check = None;
            let text = format!("{why}; it was killed with SIGKILL, and has not exited");
            self.recorder.set_runtime_state(Some(text), None);
            self.kill_processes(view, observation).await;
            return;
        }
        tracing::warn!(why, "Killing processes that the runtime has not killed");
        let message = format!("{why}; killed with SIGKILL, since its stop has failed for {SETTLES:?}");
        self.context.events.event(view, None, Reason::ProcessesKilled, &message);
        let span = self.recorder.span(Step::Kill, "processes");
        let faults = self.kill_processes(view, observation).await;
        span.end(&faults.into_iter().next().map_or(Ok(()), Err));
        self.recorder.set_runtime_state(Some(message), None);
    }

    /// Kills each of these processes. Returns what failed.
    pub(super) async fn kill_each(
        &self,
        view: &PodView,
        processes: Vec<Process>,
        kill: impl Fn(&Process, &Path, &Effects) -> Result<Outcome, Fault> + Send + 'static,
    ) -> Vec<Fault> {
        let proc = self.context.node.storage.proc.clone();
        let kill_all = move |effects: &Effects| {
            let killed = processes.iter().map(|process| kill(process, &proc, effects));
            killed.filter_map(Result::err).collect()
        };
        let killed = self.context.node.effects.run_blocking(kill_all).await;
        killed.unwrap_or_else(|why| vec![Fault::new("kill processes of", view.pod.uid.as_str(), why)])
    }

    /// Kills the processes in the pod's cgroups, and those that the runtime names and that are proven to be the pod's.
    async fn kill_processes(&self, view: &PodView, observation: &Observation) -> Vec<Fault> {
        let mut faults = Vec::new();
        if observation.facts.processes == Processes::OfRuntime {
            for cgroup in locate::find_cgroups(&self.context, view).await.unwrap_or_default() {
                let killed = self
                    .context
                    .node
                    .cgroups
                    .kill(&cgroup, &self.context.node.effects)
                    .await;
                faults.extend(killed.err().into_iter().flatten());
            }
        }
        let owner = observation.owner.clone();
        let kill = move |process: &Process, proc: &Path, effects: &Effects| process.kill(proc, &owner, effects);
        faults.extend(self.kill_each(view, observation.processes.clone(), kill).await);
        for fault in &faults {
            tracing::warn!(%fault, "Processes of the pod cannot be killed");
        }
        faults
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
