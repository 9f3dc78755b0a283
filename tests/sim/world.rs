//! One run: a plan is played, and in the end everything must have come to its end.

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

use pod_teardown::teardown::journal::PodJournalExt as _;

use crate::{
    agent::{Machine, Running, began_at},
    disk::{self, Disk},
    judge::{self, Judge},
    outside::Reach,
    plan::Plan,
    pods::{Kind, NODE},
    state::{Asker, Fate, Met, State, lives},
};

/// What a run came to.
pub struct Outcome {
    pub trace: Vec<String>,
    /// The invariant that was broken.
    pub broken: Option<String>,
    /// How much virtual time it took.
    pub took: Duration,
    pub met: Met,
}

/// Once all troubles are over, everything comes to its end within this time: a watch may have been silent for five
/// minutes, a call may hang for two, and pauses have grown to one.
const PATIENCE: Duration = Duration::from_secs(1_500);
const LOOK: Duration = Duration::from_secs(1);

mod steps;

pub struct Sim<'p> {
    plan: &'p Plan,
    pub reach: Reach,
    machine: Machine,
    agent: Option<Running>,
    /// It has had its Node on the disk.
    acquainted: bool,
    /// How often each pod was made anew.
    made: Vec<usize>,
    dice: Dice,
    /// When each trouble is over.
    over: Vec<(Instant, Over)>,
    _dir: TempDir,
}

/// The end of a trouble.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
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

/// Plays a plan.
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
        let cri = Arc::new(ScriptedCri::unheard(
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
            let api = MemApiServer::unheard(&config).unwrap();
            let uid = if home { "node-uid" } else { "another" };
            api.insert_raw(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": uid } }))
                .unwrap();
            let (state, cri) = (state.clone(), Arc::clone(&cri));
            api.tell(Box::new(move |asked, body, code| {
                judge::request(&state, &cri, home, asked, body, code);
            }));
            Arc::new(api)
        };
        let (home, other) = (api(true), api(false));
        let died = Arc::clone(&state.now().agent.died);
        let mut sim = Self {
            plan,
            machine: Machine::new(node),
            reach: Reach {
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

    /// UID of the pod that has its name now.
    fn uid(&self, pod: usize) -> String {
        format!("u{pod}-{}", self.made[pod])
    }

    fn make(&mut self, pod: usize) {
        let (plan, name, uid) = (&self.plan.pods[pod], Self::name(pod), self.uid(pod));
        let Reach {
            state,
            home,
            other,
            cri,
            ..
        } = &self.reach;
        let object = plan.object(&name, &uid);
        home.insert_raw(object.clone()).unwrap();
        // There it ends, under the same name.
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
        let mut fate = Fate {
            name,
            is_static: plan.kind == Kind::Mirror,
            terminal: plan.kind == Kind::Terminal,
            spec_grace: Duration::from_secs(plan.grace.unsigned_abs()),
            finalizer: plan.finalizer,
            end_unknown: plan.ends_unread(),
            ..Fate::default()
        };
        if fate.terminal {
            fate.ask(Asker::ItsPhase, fate.spec_grace);
        }
        known.pods.insert(uid, fate);
        drop(known);
        self.give_processes();
    }

    /// A process for each container that runs and has none yet, if the runtime names them.
    fn give_processes(&self) {
        if !self.plan.names_processes {
            return;
        }
        self.reach.cri.change(|world| {
            let mut known = self.reach.state.now();
            for it in world.containers.values_mut() {
                if it.pid.is_none() && lives(it.state) {
                    it.pid = Some(known.new_process());
                }
            }
            known.show_processes(world);
        });
    }

    async fn ask(&self, method: Method, pod: usize, query: &str, body: &Value) -> (u16, Value) {
        let path = format!("/api/v1/namespaces/default/pods/{}{query}", Self::name(pod));
        self.reach.home.ask(method, &path, body).await
    }

    async fn delete(&mut self, pod: usize, grace: Option<i64>) {
        let query = grace
            .map(|grace| format!("?gracePeriodSeconds={grace}"))
            .unwrap_or_default();
        let uid = self.uid(pod);
        if let Some(fate) = self.reach.state.now().pods.get_mut(&uid)
            && !fate.let_go
        {
            let asked = grace.map_or(fate.spec_grace, |grace| Duration::from_secs(grace.unsigned_abs()));
            if !fate.is_static {
                fate.ask(Asker::Api, asked);
            }
            fate.deleted = true;
        }
        self.ask(Method::DELETE, pod, &query, &Value::Null).await;
        // What has ended goes at once.
        self.note_if_gone(&uid);
    }

    /// An object that is gone without the agent's final delete has vanished in this run of it.
    fn note_if_gone(&self, uid: &str) {
        let objects = self.reach.home.objects("v1", "Pod");
        let mut known = self.reach.state.now();
        let run = known.agent.run;
        if !objects.iter().any(|object| object["metadata"]["uid"] == *uid)
            && let Some(fate) = known.pods.get_mut(uid)
            && !fate.let_go
        {
            fate.vanished.get_or_insert(run);
        }
    }

    async fn vanish(&mut self, pod: usize) {
        self.release(pod).await;
        let uid = self.uid(pod);
        {
            let mut known = self.reach.state.now();
            let run = known.agent.run;
            if let Some(fate) = known.pods.get_mut(&uid) {
                if !fate.is_static {
                    fate.ask(Asker::Api, Duration::from_secs(1));
                }
                fate.vanished.get_or_insert(run);
            }
        }
        self.ask(Method::DELETE, pod, "?gracePeriodSeconds=0", &Value::Null)
            .await;
    }

    async fn release(&mut self, pod: usize) {
        let uid = self.uid(pod);
        if let Some(fate) = self.reach.state.now().pods.get_mut(&uid) {
            fate.finalizer = false;
        }
        let (code, answer) = self
            .ask(Method::PATCH, pod, "", &json!({ "metadata": { "finalizers": null } }))
            .await;
        assert!(matches!(code, 200 | 404), "a finalizer cannot be taken off: {answer}");
        // The last finalizer of an object that is being deleted, and needs no agent, takes it along.
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
            known.tell("the agent starts");
            known.agent.run
        };
        self.agent = Some(self.machine.start(self.reach.outside(run)));
    }

    async fn crash(&mut self, down: Duration) {
        self.look_at_disk();
        let Some(agent) = self.agent.take() else { return };
        self.reach.state.now().tell("the agent crashes");
        agent.crash().await;
        self.has_ended(down);
    }

    /// Its disk took nothing more, and neither does anything else.
    fn has_died(&self) -> bool {
        let run = self.reach.state.now().agent.run;
        self.agent.is_some() && !self.reach.disk.serves(run)
    }

    fn has_ended(&mut self, down: Duration) {
        {
            let mut known = self.reach.state.now();
            known.tell("the agent has ended");
            if self.reach.disk.take_behind() {
                known.forget();
            }
            std::mem::take(&mut known.line).cancel();
            std::mem::take(&mut known.wire).cancel();
        }
        self.reach.disk.crash(&mut self.dice);
        self.until(down, Over::Down);
    }

    // --- the end ---

    /// All troubles are over.
    async fn end(&mut self) {
        let far = Instant::now() + Duration::from_secs(3_600);
        self.reach.disk.cut(None);
        if self.has_died() {
            self.crash(Duration::ZERO).await;
        }
        self.end_troubles(far);
        if !self.plan.names_processes {
            // Without a named process nothing tells that the runtime is wrong, and its word stands.
            self.restart_runtime();
        }
        self.reach.home.faults().clear();
        {
            let mut known = self.reach.state.now();
            known.trouble.calls.clear();
            known.trouble.busy = 0;
            known.agent.dies_in = None;
            known.tell("all troubles are over");
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
                    // Whoever started it starts it again.
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

    /// A disk that takes everything again lacks nothing once the journal says so.
    fn look_at_disk(&self) {
        let Some(agent) = &self.agent else { return };
        let answers = agent.answers.lock().unwrap();
        let trouble = answers.as_ref().map(|answers| answers.journal.trouble());
        if trouble.is_some_and(|trouble| trouble.error.is_none()) {
            self.reach.disk.made_up();
        }
    }

    /// Whether the agent has its Node on the disk, or had it there before it went down.
    fn is_acquainted(&mut self) -> bool {
        let knows = self.agent.as_ref().is_some_and(|agent| {
            let answers = agent.answers.lock().unwrap();
            let journal = answers.as_ref().map(|answers| &answers.journal);
            journal.is_some_and(|journal| journal.node_uid().is_some() && journal.trouble().error.is_none())
        });
        self.acquainted |= knows;
        self.acquainted
    }

    /// Without its disk an agent does not start, and whoever started it starts it again.
    fn lacks_disk(why: &str) -> bool {
        [disk::FULL, disk::GONE].iter().any(|said| why.contains(said))
    }

    /// What has not come to its end.
    async fn left(&self) -> Option<String> {
        let answers = self.agent.as_ref()?.answers.lock().unwrap().as_ref().map(|answers| {
            let held = answers.guard.why_absence_proves_nothing().is_some();
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
        for (uid, fate) in &known.pods {
            let wrong = self.reach.cri.look(|world| {
                let mut containers = world.containers.values().filter(|it| it.pod_uid == *uid);
                containers.any(|it| it.shim_died)
            });
            let in_runtime = self.reach.cri.look(|world| {
                world.sandboxes.values().any(|it| it.pod_uid == *uid)
                    || world.containers.values().any(|it| it.pod_uid == *uid)
            });
            let runs = self.reach.cri.look(|world| {
                let mut containers = world.containers.values().filter(|it| it.pod_uid == *uid);
                containers.any(|it| known.runs(it))
            });
            let dir = known.node.join("kubelet/pods").join(uid).exists();
            let unseen = |run| run != known.agent.run || fate.listed != run;
            // An answer that there is no such pod proves as little.
            let unknown = held || fate.lost || !fate.let_go && fate.vanished.is_some_and(unseen);
            let left = match object(uid) {
                _ if fate.is_static => None,
                // What the runtime does not let go stays until it is restarted; the rest has to go before.
                None if wrong => (!unknown && known.holds_mount(uid)).then_some("has a volume that is mounted"),
                // Of what the agent never saw or has lost, the runtime tells, as long as the node has other pods of the API
                // server; nothing tells of files alone, and while absence proves nothing the operator has to.
                None if unknown => {
                    let told = in_runtime && any_other || journal.contains(uid);
                    (told && !held).then_some("is in the runtime or in the journal")
                }
                None if in_runtime => Some("is in the runtime"),
                None if dir => Some("has its directory"),
                None if journal.contains(uid) => Some("is in the journal"),
                None => None,
                Some(_) if fate.deleted => Some("has its object"),
                Some(object) if fate.granted && !is_over(object) => {
                    Some("was promised to end, and its phase does not say that it has")
                }
                Some(_) if (fate.terminal || fate.granted) && (runs || known.holds_mount(uid)) => {
                    Some("runs or is mounted")
                }
                Some(_) => None,
            };
            if let Some(left) = left {
                return Some(format!("{uid} ({}) {left}", fate.name));
            }
        }
        None
    }
}

fn is_over(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
}
