//! One run of a plan. At the end all pods must have terminated.

use std::{fs, sync::Arc, time::Duration};

use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{
    apiserver::{Config, MemApiServer},
    dice::Dice,
    scripted_cri::{ScriptedCri, World},
};
use tokio::time::{Instant, sleep};

use crate::{
    agent::{Machine, Running, began_at},
    disk::{self, Disk},
    judge::{self, Judge},
    outside::Externals,
    plan::Plan,
    pods::{Kind, NODE},
    state::{Asker, Met, PodHistory, State, is_alive},
};

/// The result of a run.
pub struct Outcome {
    pub trace: Vec<String>,
    /// The invariant that was broken.
    pub broken: Option<String>,
    /// Its virtual time.
    pub took: Duration,
    pub met: Met,
}

/// All pods terminate within this time after all faults are over: a watch may have been silent for five
/// minutes, a call may hang for two, and pauses have grown to one.
const PATIENCE: Duration = Duration::from_secs(1_500);
const LOOK: Duration = Duration::from_secs(1);

mod steps;

pub struct Sim<'p> {
    plan: &'p Plan,
    pub reach: Externals,
    machine: Machine,
    agent: Option<Running>,
    /// The agent has recorded its Node.
    acquainted: bool,
    /// How often each pod was recreated.
    made: Vec<usize>,
    dice: Dice,
    /// When each fault ends.
    over: Vec<(Instant, FaultEnd)>,
    _dir: TempDir,
}

/// The end of a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FaultEnd {
    ApiAway,
    OtherCluster,
    Look,
    RuntimeAway,
    Kubelet,
    Disk,
    Down,
    Children,
    RuntimeRestarts,
}

/// Runs a plan.
pub fn play(plan: &Plan) -> Outcome {
    fastrand::seed(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(run(plan))
}

async fn run(plan: &Plan) -> Outcome {
    {
        let mut sim = Sim::new(plan);
        sim.steps().await;
        sim.end().await;
        if let Some(agent) = sim.agent.take() {
            agent.crash().await;
        }
        let mut known = sim.reach.state.now();
        Outcome {
            trace: std::mem::take(&mut known.trace),
            broken: known.broken.take(),
            took: known.age(),
            met: known.met,
        }
    }
}

impl<'p> Sim<'p> {
    fn new(plan: &'p Plan) -> Self {
        let dir = tempfile::Builder::new().prefix("sim").tempdir_in("/dev/shm").unwrap();
        let node = dir.path().to_owned();
        for name in [
            "kubelet/pods",
            "logs",
            "root",
            "cgroup/kubepods/besteffort",
            "proc",
            "outside",
        ] {
            fs::create_dir_all(node.join(name)).unwrap();
        }
        fs::write(node.join("outside/keep"), "").unwrap();
        let state = State::new(&node);
        let cri = Arc::new(ScriptedCri::without_socket(
            World::with(plan.manners),
            Box::new(Judge(state.clone())),
        ));
        let api = |home: bool| {
            let first_version = if home { 200 } else { 5_000 };
            let config = Config {
                first_version,
                began_at: began_at(),
                ..Config::default()
            };
            let api = MemApiServer::without_socket(&config).unwrap();
            let uid = if home { "node-uid" } else { "another" };
            api.insert_raw(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": uid } }))
                .unwrap();
            let (state, cri) = (state.clone(), Arc::clone(&cri));
            api.set_witness(Box::new(move |asked, body, code| {
                judge::request(&state, &cri, home, asked, body, code);
            }));
            Arc::new(api)
        };
        let (home, other) = (api(true), api(false));
        let died = Arc::clone(&state.now().agent.died);
        let mut sim = Self {
            plan,
            machine: Machine::new(node),
            reach: Externals {
                state,
                home,
                other,
                cri,
                disk: Disk::new(died),
            },
            agent: None,
            acquainted: false,
            made: vec![0; plan.pods.len()],
            dice: Dice::new(plan.seed),
            over: Vec::new(),
            _dir: dir,
        };
        for pod in 0..plan.pods.len() {
            sim.make(pod);
        }
        sim.start();
        sim
    }

    // --- pods ---

    fn name(pod: usize) -> String {
        format!("p{pod}")
    }

    /// UID of the present pod of this name.
    fn uid(&self, pod: usize) -> String {
        format!("u{pod}-{}", self.made[pod])
    }

    fn make(&mut self, pod: usize) {
        let (plan, name, uid) = (&self.plan.pods[pod], Self::name(pod), self.uid(pod));
        let Externals {
            state,
            home,
            other,
            cri,
            ..
        } = &self.reach;
        let object = plan.object(&name, &uid);
        home.insert_raw(object.clone()).unwrap();
        // The pod terminates there, under the same name.
        let mut namesake = object;
        namesake["metadata"]["uid"] = format!("{uid}-other").into();
        namesake["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        other.insert_raw(namesake).unwrap();
        cri.change(|world| plan.run(&name, &uid, world));
        let mut known = state.now();
        for mounted in plan.lay_out(&name, &uid, &self.machine.node) {
            known.mount(mounted);
        }
        for number in plan.unread() {
            known.unread.insert((uid.clone(), format!("c{number}")));
        }
        let mut history = PodHistory {
            name,
            is_static: plan.kind == Kind::Mirror,
            terminal: plan.kind == Kind::Terminal,
            spec_grace: Duration::from_secs(plan.grace.unsigned_abs()),
            finalizer: plan.finalizer,
            end_unknown: plan.ends_unread(),
            ..PodHistory::default()
        };
        if history.terminal {
            history.ask(Asker::ItsPhase, history.spec_grace);
        }
        known.pods.insert(uid, history);
        drop(known);
        self.give_processes();
    }

    /// Creates a process for each running container without one, if the runtime reports PIDs.
    fn give_processes(&self) {
        if !self.plan.names_processes {
            return;
        }
        self.reach.cri.change(|world| {
            let mut known = self.reach.state.now();
            for it in world.containers.values_mut() {
                if it.pid.is_none() && is_alive(it.state) {
                    it.pid = Some(known.new_process());
                }
            }
            known.show_processes(world);
        });
    }

    async fn ask(&self, method: Method, pod: usize, body: &Value) -> (u16, Value) {
        let path = format!("/api/v1/namespaces/default/pods/{}", Self::name(pod));
        self.reach.home.ask(method, &path, body).await
    }

    async fn send_delete(&self, pod: usize, grace: Option<i64>) {
        let options = grace.map_or(Value::Null, |grace| json!({ "gracePeriodSeconds": grace }));
        let (code, answer) = self.ask(Method::DELETE, pod, &options).await;
        assert!(
            matches!(code, 200 | 202 | 404 | 409),
            "a pod cannot be deleted: {answer}"
        );
    }

    async fn delete(&mut self, pod: usize, grace: Option<i64>) {
        let uid = self.uid(pod);
        if let Some(history) = self.reach.state.now().pods.get_mut(&uid)
            && !history.object_deleted
        {
            let asked = grace.map_or(history.spec_grace, |grace| Duration::from_secs(grace.unsigned_abs()));
            if !history.is_static {
                let granted = history.set_by_api(asked);
                history.ask(Asker::Api, granted);
            }
            history.deleted = true;
        }
        self.send_delete(pod, grace).await;
        // A pod in a terminal phase is deleted at once.
        self.note_if_gone(&uid);
    }

    /// Records an object that was deleted without the agent's final delete.
    fn note_if_gone(&self, uid: &str) {
        let objects = self.reach.home.objects("v1", "Pod");
        let mut known = self.reach.state.now();
        let run = known.agent.run;
        if !objects.iter().any(|object| object["metadata"]["uid"] == *uid)
            && let Some(history) = known.pods.get_mut(uid)
            && !history.object_deleted
        {
            history.vanished.get_or_insert(run);
        }
    }

    async fn vanish(&mut self, pod: usize) {
        self.release(pod).await;
        let uid = self.uid(pod);
        {
            let mut known = self.reach.state.now();
            let run = known.agent.run;
            if let Some(history) = known.pods.get_mut(&uid) {
                if !history.is_static {
                    history.ask(Asker::Api, Duration::from_secs(1));
                }
                history.vanished.get_or_insert(run);
            }
        }
        self.send_delete(pod, Some(0)).await;
    }

    async fn release(&mut self, pod: usize) {
        let uid = self.uid(pod);
        if let Some(history) = self.reach.state.now().pods.get_mut(&uid) {
            history.finalizer = false;
        }
        let (code, answer) = self
            .ask(Method::PATCH, pod, &json!({ "metadata": { "finalizers": null } }))
            .await;
        assert!(matches!(code, 200 | 404), "a finalizer cannot be taken off: {answer}");
        // Without its last finalizer a terminating object that needs no agent is deleted.
        self.note_if_gone(&uid);
    }

    // --- the agent ---

    fn start(&mut self) {
        if self.agent.is_some() {
            return;
        }
        let run = {
            let mut known = self.reach.state.now();
            known.agent.run += 1;
            known.agent.dies_in = None;
            known.log("the agent starts");
            known.agent.run
        };
        self.agent = Some(self.machine.start(self.reach.outside(run)));
    }

    async fn crash(&mut self, down: Duration) {
        self.check_disk();
        let Some(agent) = self.agent.take() else { return };
        self.reach.state.now().log("the agent crashes");
        agent.crash().await;
        self.has_ended(down);
    }

    /// Whether its disk has crashed it.
    fn has_died(&self) -> bool {
        let run = self.reach.state.now().agent.run;
        self.agent.is_some() && !self.reach.disk.serves(run)
    }

    fn has_ended(&mut self, down: Duration) {
        {
            let mut known = self.reach.state.now();
            known.log("the agent has ended");
            if self.reach.disk.take_behind() {
                known.forget();
            }
            std::mem::take(&mut known.line).cancel();
            std::mem::take(&mut known.wire).cancel();
        }
        self.reach.disk.crash(&mut self.dice);
        self.until(down, FaultEnd::Down);
    }

    // --- the end ---

    /// Ends all faults.
    async fn end(&mut self) {
        let far = Instant::now() + Duration::from_secs(3_600);
        self.reach.disk.cut(None);
        if self.has_died() {
            self.crash(Duration::ZERO).await;
        }
        self.end_faults(far);
        if !self.plan.names_processes {
            // Without a PID there is no evidence against the runtime.
            self.restart_runtime();
        }
        self.reach.home.faults().clear();
        {
            let mut known = self.reach.state.now();
            known.faults.calls.clear();
            known.faults.busy = 0;
            known.agent.dies_in = None;
            known.log("all faults are over");
        }
        self.start();
        for pod in 0..self.plan.pods.len() {
            self.release(pod).await;
        }
        let late = Instant::now() + PATIENCE;
        loop {
            if let Some(agent) = &mut self.agent
                && let Some(why) = agent.ended().await
            {
                self.agent = None;
                if Self::lacks_disk(&why) {
                    // systemd restarts it.
                    self.has_ended(Duration::ZERO);
                    self.start();
                    continue;
                }
                return self
                    .reach
                    .state
                    .now()
                    .broken(10, format_args!("the agent has ended: {why}"));
            }
            let left = self.left().await;
            self.reach.state.now().check_files();
            let Some(left) = left else {
                if self.restart_runtime() {
                    continue;
                }
                return;
            };
            if Instant::now() > late {
                return self
                    .reach
                    .state
                    .now()
                    .broken(10, format_args!("after {PATIENCE:?} {left}"));
            }
            sleep(LOOK).await;
        }
    }

    /// Checks that the journal repeats all rejected writes.
    fn check_disk(&self) {
        let Some(agent) = &self.agent else { return };
        let answers = agent.answers.lock().unwrap();
        let faults = answers.as_ref().map(|answers| answers.journal.trouble());
        if faults.is_some_and(|faults| faults.error.is_none()) {
            self.reach.disk.made_up();
        }
    }

    /// Whether the agent has recorded its Node, in this run or an earlier one.
    fn has_recorded_node(&mut self) -> bool {
        let knows = self.agent.as_ref().is_some_and(|agent| {
            let answers = agent.answers.lock().unwrap();
            let journal = answers.as_ref().map(|answers| &answers.journal);
            journal.is_some_and(|journal| journal.node_uid().is_some() && journal.trouble().error.is_none())
        });
        self.acquainted |= knows;
        self.acquainted
    }

    /// Whether the agent cannot start without its disk; systemd restarts it.
    fn lacks_disk(why: &str) -> bool {
        [disk::FULL, disk::GONE].iter().any(|error| why.contains(error))
    }

    /// A pod that has not terminated, or something of it that is left.
    async fn left(&self) -> Option<String> {
        let answers = self.agent.as_ref()?.answers.lock().unwrap().as_ref().map(|answers| {
            let held = answers.guard.absence.hold_reason().is_some();
            let journal = answers.journal.unfinished();
            (
                held,
                journal
                    .into_iter()
                    .map(|view| view.pod.uid.to_string())
                    .collect::<Vec<_>>(),
            )
        });
        let Some((held, journal)) = answers else {
            return Some("the agent has not started".to_owned());
        };
        let objects = self.reach.home.objects("v1", "Pod");
        let any_other = objects.iter().any(|pod| pod["metadata"]["annotations"].is_null());
        let object = |uid: &str| objects.iter().find(|object| object["metadata"]["uid"] == uid);
        let known = self.reach.state.now();
        for (uid, history) in &known.pods {
            let (wrong, in_runtime, runs) = self.reach.cri.look(|world| {
                let containers: Vec<_> = world.containers.values().filter(|it| it.pod_uid == *uid).collect();
                let has_sandbox = world.sandboxes.values().any(|it| it.pod_uid == *uid);
                (
                    containers.iter().any(|it| it.shim_died),
                    has_sandbox || !containers.is_empty(),
                    containers.iter().any(|it| known.runs(it)),
                )
            });
            let dir = known.node.join("kubelet/pods").join(uid).exists();
            let unseen = |run| run != known.agent.run || history.listed != run;
            // A 404 proves nothing, either.
            let unknown = held || history.lost || !history.object_deleted && history.vanished.is_some_and(unseen);
            let left = match object(uid) {
                _ if history.is_static => None,
                // Containers that the runtime cannot remove stay until it restarts; all else must be removed before.
                None if wrong => (!unknown && known.holds_mount(uid)).then_some("has a volume that is mounted"),
                // A pod that the agent has never seen or has lost is detected in the runtime, if the node has other pods of the API
                // server. Its files alone are not detected. During an absence hold the operator has to decide.
                None if unknown => {
                    let detected = in_runtime && any_other || journal.contains(uid);
                    (detected && !held).then_some("is in the runtime or in the journal")
                }
                None if in_runtime => Some("is in the runtime"),
                None if dir => Some("has its directory"),
                None if journal.contains(uid) => Some("is in the journal"),
                None => None,
                Some(_) if history.deleted => Some("has its object"),
                Some(object) if history.granted && !is_over(object) => {
                    Some("was accepted for a stop, and its phase is not terminal")
                }
                Some(_) if (history.terminal || history.granted) && (runs || known.holds_mount(uid)) => {
                    Some("runs or is mounted")
                }
                Some(_) => None,
            };
            if let Some(left) = left {
                return Some(format!("{uid} ({}) {left}", history.name));
            }
        }
        None
    }
}

fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
}
