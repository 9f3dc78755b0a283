//! Checks the invariants where effects arrive: at the runtime and at the API server.

use std::time::Duration;

use serde_json::Value;
use testbed::{
    apiserver::requests::Asked,
    scripted_cri::{
        Director, ExecSync, Expected, Fault, Kind, Read, RemoveContainer, RemovePodSandbox, ScriptedCri, Seen,
        SimState, StopContainer, StopPodSandbox, World, expect,
    },
};
use tokio::time::Instant;
use tonic::Code;

use crate::{
    plan::{CallFault, ReadFault},
    pods::NODE,
    state::{Known, State},
};

/// Rounding of times to whole seconds.
const ROUNDED: Duration = Duration::from_millis(1_001);
/// Shortest timeout of a stop.
const SHORTEST: Duration = Duration::from_secs(2);

/// Checks the calls to the runtime, and injects faults.
pub struct Judge(pub State);

impl Director for Judge {
    fn effect(&self, seen: &Seen, world: &mut World) -> Expected {
        let mut known = self.0.now();
        known.log(seen);
        let dying = known.agent.dies_in == Some(0);
        known.effect(&seen.to_string());
        call(&mut known, seen, world);
        let plain = expect(match seen.kind {
            Kind::ExecSync => ExecSync::any(),
            Kind::StopContainer => StopContainer::any(),
            Kind::StopPodSandbox => StopPodSandbox::any(),
            Kind::RemoveContainer => RemoveContainer::any(),
            Kind::RemovePodSandbox => RemovePodSandbox::any(),
        });
        if dying {
            return plain.hang();
        }
        let stops = matches!(seen.kind, Kind::StopContainer | Kind::StopPodSandbox);
        let error = || plain.clone().error(Code::Unknown, "trouble");
        match known.faults.calls.pop() {
            None => plain,
            Some(CallFault::Error) => error(),
            Some(CallFault::Hang) => plain.hang(),
            Some(CallFault::Late(by)) => plain.then(by),
            Some(CallFault::DoneButError) => plain.reply_error_but_do_it(Code::Unknown, "trouble"),
            Some(CallFault::NotDone) if stops => plain.reply_ok_but_do_nothing(),
            Some(CallFault::NotDone) => error(),
        }
    }

    fn read(&self, read: Read, id: &str, world: &World) -> Option<Fault> {
        let mut known = self.0.now();
        known.show_processes(world);
        if read == Read::ContainerStatus
            && let Some(it) = world.containers.get(id)
            && it.state == SimState::Exited
            && known.unread.contains(&(it.pod_uid.clone(), it.name.clone()))
        {
            known.met.unread = true;
            let why = format!("image {:?}: not found", it.image);
            return Some(Fault::Error(Code::Unknown, why));
        }
        match known.faults.reads? {
            ReadFault::Error => Some(Fault::Error(Code::Unknown, "trouble".to_owned())),
            ReadFault::Hang => Some(Fault::Hang),
            ReadFault::Late(by) => Some(Fault::Late(by)),
        }
    }

    fn answered(&self, seen: &Seen, _: bool, _: &mut World) {
        let mut known = self.0.now();
        known.log(format_args!("answered {seen}"));
        let run = known.agent.run;
        if seen.kind == Kind::ExecSync
            && let Some(history) = known.pods.get_mut(&seen.pod_uid)
        {
            history.hooks.entry(seen.id.clone()).or_default().answered = Some(run);
        }
    }
}

/// Checks a call.
fn call(known: &mut Known, seen: &Seen, world: &World) {
    let Seen {
        kind,
        id,
        pod_uid: uid,
        timeout,
        ..
    } = seen;
    let (run, now) = (known.agent.run, Instant::now());
    let mut broken = Vec::new();
    let running = {
        let mut inside = world
            .containers
            .values()
            .filter(|it| it.id == *id || it.sandbox_id == *id);
        inside.any(|it| known.runs(it))
    };
    let Some(history) = known.pods.get_mut(uid) else {
        // Already removed: harmless.
        return;
    };
    if history.is_static {
        broken.push((8, format!("{seen} touches a static pod")));
    } else if !history.ends() {
        broken.push((2, format!("{seen} touches a pod that must not terminate")));
    }
    let kill_at = match kind {
        Kind::StopContainer => Some(now + timeout.unwrap_or_default()),
        Kind::StopPodSandbox | Kind::RemovePodSandbox | Kind::RemoveContainer => Some(now),
        Kind::ExecSync => None,
    };
    if let (Some(kill_at), Some(earliest), true) = (kill_at, history.earliest_kill(), running)
        && kill_at < earliest
        && !history.perhaps_canceled
    {
        broken.push((
            4,
            format!("{seen} kills {:?} before the grace period is over", earliest - kill_at),
        ));
    }
    if running && matches!(kind, Kind::RemoveContainer | Kind::RemovePodSandbox) {
        broken.push((1, format!("{seen} removes what runs")));
    }
    if let Some(timeout) = timeout {
        let deadline = now + *timeout;
        if let Some(before) = history.deadline
            && deadline > before + ROUNDED
            && *timeout > SHORTEST
            && !history.perhaps_canceled
        {
            broken.push((
                4,
                format!(
                    "{seen} ends {:?} after the deadline that was in force",
                    deadline - before
                ),
            ));
        }
        if history.deadline.is_none_or(|before| deadline < before) {
            history.deadline = Some(deadline);
        }
    }
    let hook = history.hooks.entry(id.clone()).or_default();
    match kind {
        Kind::ExecSync if (hook.answered == Some(run) || hook.recorded) && !history.perhaps_canceled => {
            broken.push((5, format!("{seen} runs a hook again that has ended")));
        }
        // The hook's completion is recorded before the stop begins.
        Kind::StopContainer if hook.answered.is_some() => hook.recorded = true,
        _ => {}
    }
    for (number, what) in broken {
        known.broken(number, what);
    }
}

/// Checks a request of the agent; with its status code when it is done.
pub fn request(state: &State, cri: &ScriptedCri, home: bool, asked: &Asked, body: &[u8], code: Option<u16>) {
    if asked.user != format!("system:node:{NODE}") {
        return;
    }
    let writes = matches!(&*asked.verb, "patch" | "delete" | "create" | "update");
    let mut known = state.now();
    let what = format!("{} {} {}", asked.verb, asked.resource, asked.name);
    let what = what.trim_end();
    let Some(code) = code else {
        // The agent has processed a list before it watches.
        if asked.verb == "watch" && home {
            known
                .pods
                .values_mut()
                .for_each(|history| history.listed = history.listing);
        }
        // The name of an event is a time.
        known.log(if asked.verb == "create" { "create events" } else { what });
        if asked.verb == "create" {
            event(&mut known, body);
        }
        if writes && asked.resource != "events" {
            known.effect(what);
            if !home {
                known.broken(7, format_args!("{what} in another cluster"));
            }
        }
        return;
    };
    known.log(format_args!("{code} for {}", asked.verb));
    if asked.verb == "list" && code == 200 && home && !asked.path.contains("metadata.name") {
        let run = known.agent.run;
        for history in known.pods.values_mut() {
            // The response may be lost: only the next list counts.
            let shown = history.vanished.is_none() && !history.object_deleted;
            history.listing = if shown { run } else { history.listed };
        }
    }
    if asked.resource == "nodes" && code == 200 {
        known.mismatch_since = if home {
            None
        } else {
            known.mismatch_since.or(Some(Instant::now()))
        };
    }
    if !home || !writes || asked.resource == "events" {
        return;
    }
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let uid = match &*asked.verb {
        "delete" => &body["preconditions"]["uid"],
        _ => &body["metadata"]["uid"],
    };
    let Some(uid) = uid.as_str().map(str::to_owned) else {
        return known.broken(2, format_args!("{what} names no UID"));
    };
    if code >= 300 {
        return;
    }
    match known.pods.get(&uid) {
        Some(history) if history.ends() => {}
        _ => known.broken(2, format_args!("{what} of {uid}, which must not terminate")),
    }
    let phase = &body["status"]["phase"];
    if phase == "Succeeded" && known.pods.get(&uid).is_some_and(|history| history.end_unknown) {
        known.broken(
            10,
            format_args!("{uid} has succeeded, although its exit status is unknown"),
        );
    }
    if asked.verb == "delete" {
        drop(known);
        let runs = cri.look(|world| {
            let known = state.now();
            let of_it = world.containers.values().find(|it| it.pod_uid == uid && known.runs(it));
            of_it.map(|it| it.id.clone())
        });
        state.now().deleted(&uid, runs);
    }
}

/// Checks the creation of an event.
fn event(known: &mut Known, body: &[u8]) {
    let event: Value = serde_json::from_slice(body).unwrap_or_default();
    if event["reason"] != "RuntimeStateMismatch" {
        return;
    }
    known.met.concluded = true;
    let uid = event["involvedObject"]["uid"].as_str().unwrap_or_default();
    if !known.pods.get(uid).is_some_and(|history| history.shim_died) {
        known.broken(1, format_args!("{uid} is taken for ended, and no shim of it has died"));
    }
}

// === impl Known ===

impl Known {
    /// The final delete was accepted; `runs` is a container that still ran.
    fn deleted(&mut self, uid: &str, runs: Option<String>) {
        if let Some(runs) = runs {
            self.broken(1, format_args!("{uid} is deleted while {runs} runs"));
        }
        if self.holds_mount(uid) {
            self.broken(1, format_args!("{uid} is deleted while a volume is mounted"));
        }
        if self.node.join(format!("cgroup/kubepods/besteffort/pod{uid}")).exists() {
            self.broken(1, format_args!("{uid} is deleted while its cgroup exists"));
        }
        let history = self.pods.entry(uid.to_owned()).or_default();
        history.object_deleted = true;
        if !history.deleted && history.vanished.is_none() {
            self.broken(1, format_args!("{uid} is deleted without a request"));
        }
    }
}
