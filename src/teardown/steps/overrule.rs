//! Handles a runtime that cannot stop a pod: kills what it has not killed, and corrects it if it reports as running what has exited.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until, timeout};

use crate::{
    journal::{ContainerExit, Exits},
    model::{
        event::Reason,
        failure::Failure,
        pod::{PodView, STATUS_UNKNOWN, UNKNOWN_EXIT_CODE},
        trace::{Stage, Step},
    },
    node::{
        cri::types::{Container, RuntimePod},
        effects::Effects,
        fault::Fault,
        processes::{Owner, Process, Shim},
    },
    teardown::{
        attempt::Worker,
        context::Context,
        evidence, locate,
        named_processes::{NamedPids, NamedProcesses},
        period::{AFTER_KILL, wait_for_deadline},
        runtime_state::{INTERVAL, Processes, RuntimeEvidence, SETTLES, StateDecision},
    },
};

/// Longest wait for the runtime's answer, and for reads of the node.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(10);

/// What runtime and kernel show of the pod.
struct Observation {
    runtime_pod: RuntimePod,
    facts: RuntimeEvidence,
    /// Running processes that the runtime names and that are proven to be the pod's.
    processes: Vec<Process>,
    owner: Owner,
    shims: Vec<Shim>,
}

/// Returns when the kernel's state counts, while a stop is not answered. Kills what the runtime has not killed.
pub async fn wait_until_overruled(worker: &Worker, view: &Arc<PodView>) {
    wait_for_deadline(worker.period.subscribe()).await;
    // After a gap between two starts of a kubelet it has passed.
    sleep_until(worker.period.deadline() + AFTER_KILL).await;
    while !overrule_if_exited(worker, view).await {
        let (now, next) = (Instant::now(), worker.runtime_state.lock().next_check);
        // It has passed if the runtime did not answer now.
        let next = next.filter(|next| *next > now);
        sleep_until(next.unwrap_or(now + INTERVAL)).await;
    }
}

/// Whether an earlier attempt has concluded that everything has exited, and no process is seen.
pub async fn is_overruled(worker: &Worker, view: &Arc<PodView>, runtime_pod: &RuntimePod) -> bool {
    runtime_pod.may_run() && has_settled(worker, view, runtime_pod) && overrule_if_exited(worker, view).await
}

/// Whether an earlier attempt has concluded that everything has exited: it has recorded exits of containers that the runtime
/// reports as running, or went on although a sandbox is ready.
fn has_settled(worker: &Worker, view: &PodView, runtime_pod: &RuntimePod) -> bool {
    let exits = worker.context.journal.exits(&view.pod.uid);
    match runtime_pod.possibly_running().next() {
        Some(_) => runtime_pod.possibly_running().all(|it| exits.contains_key(&it.id)),
        None => worker.recorder.stage() >= Stage::Terminated,
    }
}

/// Records and reports exits if the kernel shows that nothing of the pod runs, and has done so for long enough. Returns whether
/// it does. Kills what runs if the runtime has had its time to do so.
pub async fn overrule_if_exited(worker: &Worker, view: &Arc<PodView>) -> bool {
    // The conclusion has effects, so the gate must be open.
    let may_act = worker.context.node.effects.check().is_ok() && !worker.is_canceled();
    if !may_act {
        worker.pause_runtime_state();
        return false;
    }
    let deadline = worker.period.deadline();
    if Instant::now() < deadline {
        return false;
    }
    // Boxed: most workers never need it.
    let Some(observation) = Box::pin(read_runtime_state(worker, view)).await else {
        worker.runtime_state.lock().restart_settling();
        worker.recorder.set_runtime_state(None, None);
        return false;
    };
    let facts = &observation.facts;
    let decision = worker.runtime_state.lock().judge(facts, deadline, Instant::now());
    match decision {
        StateDecision::Runtime(why) => {
            let why = Some(why).filter(|_| !facts.running.is_empty());
            worker.recorder.set_runtime_state(why, None);
            false
        }
        StateDecision::Settling(why) => {
            worker.recorder.set_runtime_state(Some(why), None);
            false
        }
        StateDecision::Kill(at, why) => {
            let stopped = observation.shims.iter().filter(|shim| shim.is_stopped);
            let stopped: String = stopped.map(|shim| format!("; the runtime waits for {shim}")).collect();
            let why = format!("{why}{stopped}");
            if Instant::now() < at {
                worker.recorder.set_runtime_state(Some(why), Some(at));
            } else {
                Box::pin(kill(worker, view, &observation, why)).await;
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
            let Context { events, journal, .. } = &*worker.context;
            events.event(view, None, Reason::RuntimeStateMismatch, &why);
            journal.record_exits(&view.pod.uid, unknown_exits(&observation.runtime_pod));
            worker.recorder.set_runtime_state(Some(why), None);
            true
        }
    }
}

/// Remembers the processes that the runtime names, while it names them: a stop has failed.
pub async fn record_named_processes(worker: &Worker, view: &Arc<PodView>) {
    drop(Box::pin(read_runtime_state(worker, view)).await);
}

/// `None` if the runtime does not answer, the node cannot be read, or the pod is not this agent's to kill.
async fn read_runtime_state(worker: &Worker, view: &Arc<PodView>) -> Option<Observation> {
    let cri = &worker.context.node.cri;
    let query = timeout(RUNTIME_TIMEOUT, cri.pod_brief(view.pod.uid.as_str()));
    let runtime_pod = query.await.ok()?.ok()?;
    // A static pod was started with this UID meanwhile.
    if runtime_pod.sandboxes.iter().any(|sandbox| sandbox.is_from_elsewhere()) {
        return None;
    }
    let pids = NamedPids::query(&worker.context, &view.pod.uid, &runtime_pod, RUNTIME_TIMEOUT).await;
    let has_settled = has_settled(worker, view, &runtime_pod);
    let has_containers = runtime_pod.possibly_running().next().is_some();
    let first_seen = worker.runtime_state.lock().first_seen.clone();
    let since_boot = worker.context.node.clock.now().since_boot;
    let pod_copy = runtime_pod.clone();
    let read = worker.on_node(view, Step::Kill, move |context, view| {
        let started_by = |id: &str| first_seen.get(id).copied().unwrap_or(since_boot);
        let named = pids.read(&context.node.storage.proc, started_by);
        named.record(context, &view.pod.uid);
        Ok((named, evidence::processes(context, view, &pod_copy)?))
    });
    let (NamedProcesses { all, shims, owner }, processes) = timeout(RUNTIME_TIMEOUT, read).await.ok()?.ok()?;
    let (mut running, mut found) = (Vec::new(), Vec::new());
    for named in all {
        running.push((named.what, named.process));
        found.extend(named.proven);
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
async fn kill(worker: &Worker, view: &Arc<PodView>, observation: &Observation, why: String) {
    let before = worker.runtime_state.lock().killed.replace(why.clone());
    if before.as_ref() == Some(&why) {
        // The kernel does not let it exit: that may take any time.
        worker.runtime_state.lock().next_check = None;
        let text = format!("{why}; it was killed with SIGKILL, and has not exited");
        worker.recorder.set_runtime_state(Some(text), None);
        kill_processes(worker, view, observation).await;
        return;
    }
    tracing::warn!(why, "Killing processes that the runtime has not killed");
    let message = format!("{why}; killed with SIGKILL, since its stop has failed for {SETTLES:?}");
    let events = &worker.context.events;
    events.event(view, None, Reason::ProcessesKilled, &message);
    let span = worker.recorder.span(Step::Kill, "processes");
    let failures = kill_processes(worker, view, observation).await;
    span.end(&failures.into_iter().next().map_or(Ok(()), |first| Err(first.cause)));
    worker.recorder.set_runtime_state(Some(message), None);
}

/// Kills each of these processes. Returns what failed. With an owner, they have to be proven to be the pod's once more.
pub async fn kill_each(worker: &Worker, view: &PodView, processes: Vec<Process>, owner: Option<Owner>) -> Vec<Failure> {
    let proc = worker.context.node.storage.proc.clone();
    let kill_all = move |effects: &Effects| -> Vec<Fault> {
        let killed = processes.iter().map(|it| it.kill(&proc, owner.as_ref(), effects));
        killed.filter_map(Result::err).collect()
    };
    let killed = worker.context.node.effects.run_blocking(kill_all).await;
    let faults = killed.unwrap_or_else(|why| vec![Fault::new("kill processes of", view.pod.uid.as_str(), why)]);
    faults.iter().map(|fault| fault.failure(Step::Kill)).collect()
}

/// Kills the processes in the pod's cgroups, and those that the runtime names and that are proven to be the pod's.
async fn kill_processes(worker: &Worker, view: &Arc<PodView>, observation: &Observation) -> Vec<Failure> {
    let mut failures = Vec::new();
    if observation.facts.processes == Processes::OfRuntime {
        failures = locate::kill_cgroups(worker, view).await.1;
    }
    let (processes, owner) = (observation.processes.clone(), observation.owner.clone());
    failures.extend(kill_each(worker, view, processes, Some(owner)).await);
    for failure in &failures {
        tracing::warn!(%failure, "Processes of the pod cannot be killed");
    }
    failures
}

/// Exits of the containers that the runtime reports as running.
fn unknown_exits(runtime_pod: &RuntimePod) -> Exits {
    let exit = |it: &Container| {
        let exited = Container {
            started_at: None,
            finished_at: None,
            exit_code: UNKNOWN_EXIT_CODE,
            reason: STATUS_UNKNOWN.to_owned(),
            message: "The process had exited, but the runtime reported the container as running".to_owned(),
            ..it.clone()
        };
        ContainerExit::new(exited, Some(String::new()))
    };
    let running = runtime_pod.possibly_running();
    running.map(|it| (it.id.clone(), exit(it))).collect()
}
