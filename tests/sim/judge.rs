//! Who watches where effects arrive: at the runtime and at the API server.

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
    plan::{CallTrouble, LookTrouble},
    pods::NODE,
    state::{Known, State},
};

/// Times are rounded up to whole seconds on their way.
const ROUNDED: Duration = Duration::from_millis(1_001);
/// The shortest stop there is.
const SHORTEST: Duration = Duration::from_secs(2);

/// Watches the calls to the runtime, and makes trouble of them.
pub struct Judge(pub State);

impl Director for Judge {
    fn effect(&self, seen: &Seen, world: &mut World) -> Expected {
        let mut known = self.0.now();
        known.tell(seen);
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
        match known.trouble.calls.pop() {
            None => plain,
            Some(CallTrouble::Error) => error(),
            Some(CallTrouble::Hang) => plain.hang(),
            Some(CallTrouble::Late(by)) => plain.then(by),
            Some(CallTrouble::DoneButError) => plain.reply_error_but_do_it(Code::Unknown, "trouble"),
            Some(CallTrouble::NotDone) if stops => plain.reply_ok_but_do_nothing(),
            Some(CallTrouble::NotDone) => error(),
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
        match known.trouble.looks? {
            LookTrouble::Error => Some(Fault::Error(Code::Unknown, "trouble".to_owned())),
            LookTrouble::Hang => Some(Fault::Hang),
            LookTrouble::Late(by) => Some(Fault::Late(by)),
        }
    }

    fn answered(&self, seen: &Seen, _: bool, _: &mut World) {
        let mut known = self.0.now();
        known.tell(format_args!("answered {seen}"));
        let run = known.agent.run;
        if seen.kind == Kind::ExecSync
            && let Some(fate) = known.pods.get_mut(&seen.pod_uid)
        {
            fate.hooks.entry(seen.id.clone()).or_default().answered = Some(run);
        }
    }
}

/// What must hold for a call.
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
    let Some(fate) = known.pods.get_mut(uid) else {
        // Gone already, which is no harm.
        return;
    };
    if fate.is_static {
        broken.push((8, format!("{seen} touches a static pod")));
    } else if !fate.ends() {
        broken.push((2, format!("{seen} touches a pod that nobody wants to end")));
    }
    let kill_at = match kind {
        Kind::StopContainer => Some(now + timeout.unwrap_or_default()),
        Kind::StopPodSandbox | Kind::RemovePodSandbox | Kind::RemoveContainer => Some(now),
        Kind::ExecSync => None,
    };
    if let (Some(kill_at), Some(earliest), true) = (kill_at, fate.earliest_kill(), running)
        && kill_at < earliest
        && !fate.perhaps_given_up
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
        if let Some(before) = fate.deadline
            && deadline > before + ROUNDED
            && *timeout > SHORTEST
            && !fate.perhaps_given_up
        {
            broken.push((
                4,
                format!(
                    "{seen} ends {:?} after the deadline that was in force",
                    deadline - before
                ),
            ));
        }
        if fate.deadline.is_none_or(|before| deadline < before) {
            fate.deadline = Some(deadline);
        }
    }
    let hook = fate.hooks.entry(id.clone()).or_default();
    match kind {
        Kind::ExecSync if (hook.answered == Some(run) || hook.recorded) && !fate.perhaps_given_up => {
            broken.push((5, format!("{seen} runs a hook again that has ended")));
        }
        // Its end is on the disk before the stop begins.
        Kind::StopContainer if hook.answered.is_some() => hook.recorded = true,
        _ => {}
    }
    for (number, what) in broken {
        known.broken(number, what);
    }
}

/// A request of the agent; with a code once it was done.
pub fn request(state: &State, cri: &ScriptedCri, home: bool, asked: &Asked, body: &[u8], code: Option<u16>) {
    if asked.user != format!("system:node:{NODE}") {
        return;
    }
    let writes = matches!(&*asked.verb, "patch" | "delete" | "create" | "update");
    let mut known = state.now();
    let what = format!("{} {} {}", asked.verb, asked.resource, asked.name);
    let what = what.trim_end();
    let Some(code) = code else {
        // What it makes of a list comes before the watch.
        if asked.verb == "watch" && home {
            known.pods.values_mut().for_each(|fate| fate.listed = fate.listing);
        }
        // An event's name is a moment.
        known.tell(if asked.verb == "create" { "create events" } else { what });
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
    known.tell(format_args!("{code} for {}", asked.verb));
    if asked.verb == "list" && code == 200 && home && !asked.path.contains("metadata.name") {
        let run = known.agent.run;
        for fate in known.pods.values_mut() {
            // An answer that was lost showed nothing: the next list counts.
            let shown = fate.vanished.is_none() && !fate.let_go;
            fate.listing = if shown { run } else { fate.listed };
        }
    }
    if asked.resource == "nodes" && code == 200 {
        known.wrong_world = if home {
            None
        } else {
            known.wrong_world.or(Some(Instant::now()))
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
        Some(fate) if fate.ends() => {}
        _ => known.broken(2, format_args!("{what} of {uid}, which nobody wants to end")),
    }
    let phase = &body["status"]["phase"];
    if phase == "Succeeded" && known.pods.get(&uid).is_some_and(|fate| fate.end_unknown) {
        known.broken(
            10,
            format_args!("{uid} has succeeded, although nobody can know how it ended"),
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

/// An event is about to be created.
fn event(known: &mut Known, body: &[u8]) {
    let event: Value = serde_json::from_slice(body).unwrap_or_default();
    if event["reason"] != "RuntimeStateWrong" {
        return;
    }
    known.met.concluded = true;
    let uid = event["involvedObject"]["uid"].as_str().unwrap_or_default();
    if !known.pods.get(uid).is_some_and(|fate| fate.shim_died) {
        known.broken(1, format_args!("{uid} is taken for ended, and no shim of it has died"));
    }
}

// === impl Known ===

impl Known {
    /// The final delete was accepted while this container ran.
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
        let fate = self.pods.entry(uid.to_owned()).or_default();
        fate.let_go = true;
        if !fate.deleted && fate.vanished.is_none() {
            self.broken(1, format_args!("{uid} is deleted, which nobody has asked for"));
        }
    }
}
