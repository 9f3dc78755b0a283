//! One teardown with at most one fault, from the deletion to its completion.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::Value;
use testbed::{apiserver::MemApiServer, pods::StartedPod, stage::AgentProcess};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::{
    ask::{Cause, Eviction},
    checks,
    drivers::{Drivers, Storage},
    everything::{POD, everything, link_outside},
    fault::Strike,
    gate::{Arrival, Gate},
    history::History,
    point::{Names, Point, Step, When},
    scene::Scene,
    shared_stage::SharedStage,
    storage,
};

mod end;
mod harm;

use harm::{LATE_GRACE, Pending, dies_late};

const AGENT: &str = env!("CARGO_BIN_EXE_pod-teardown");
/// Most runs take 10 s. The rest is for pauses after failures and a loaded machine.
const LIMIT: Duration = Duration::from_secs(240);
/// `--shutdown-timeout`: some teardowns complete within it, others do not.
const SHUTDOWN: &str = "2s";

/// The agent's verb for a write to its journal.
pub const JOURNAL: &str = "write to the journal";
const HOOK: &str = "run the preStop hook of";

/// The teardown completed without reaching the point.
#[derive(Debug, thiserror::Error)]
#[error("the point never came")]
pub struct PointNotReached;

struct Run {
    scene: Scene,
    api: Arc<MemApiServer>,
    user: String,
    drivers: Arc<Drivers>,
    pod: StartedPod,
    storage: Storage,
    kept: PathBuf,
    names: Names,
    gate: Gate,
    agent: Option<AgentProcess>,
    /// Number of requests before this agent's first.
    requests: usize,
    strike: Option<Strike>,
    struck: bool,
    later: Pending,
    cause: Cause,
    eviction: Option<Eviction>,
    deleted: bool,
    /// First and last request for the termination.
    begun: Range<Timestamp>,
    start: Instant,
    points: Vec<Point>,
    trace: Vec<String>,
    hook_is_recorded: bool,
    finished: bool,
    next_look: Instant,
    successor: Option<Value>,
}

/// Takes a new pod down, with the fault; returns the points up to it.
pub async fn run(
    shared: &mut SharedStage,
    cause: Cause,
    strike: Option<Strike>,
    namespace: String,
) -> Result<Vec<Point>> {
    let stage = shared.stage.take().context("the place is in use, or was left broken")?;
    let scene = Scene::new(stage, None, namespace).await?;
    let (mut run, history) = Run::begin(scene, shared, cause, strike).await?;
    let through = run.through().await;
    let result = match through {
        Ok(()) => run.finish(shared, history).await,
        failed => failed,
    };
    if let Err(error) = result {
        let explained = run.explain().await;
        return Err(error.context(explained));
    }
    let Run { scene, points, .. } = run;
    shared.stage = Some(scene.stage);
    Ok(points)
}

fn grace(strike: Option<&Strike>) -> Duration {
    let dies_late = strike.is_some_and(dies_late);
    if dies_late { LATE_GRACE } else { Duration::from_secs(4) }
}

impl Run {
    async fn begin(
        scene: Scene,
        shared: &SharedStage,
        cause: Cause,
        strike: Option<Strike>,
    ) -> Result<(Self, History)> {
        let pod = everything(grace(strike.as_ref()));
        let (pod, storage) = shared.drivers.run(&scene, pod, Some(&shared.kept)).await?;
        let dir = scene.stage.containerd.workspace().dir();
        let kept = dir.join("kept").join(&scene.namespace);
        link_outside(&pod, &kept)?;
        let gate = Gate::open(&dir.join(format!("{}.sock", scene.namespace)))?;
        shared.api.forget_requests();
        let mut run = Self {
            names: Names::of(&pod, storage.names(&scene.stage.node)),
            api: Arc::clone(&shared.api),
            user: shared.user(),
            drivers: Arc::clone(&shared.drivers),
            scene,
            pod,
            storage,
            kept,
            gate,
            agent: None,
            requests: 0,
            strike,
            struck: false,
            later: Pending::Nothing,
            cause,
            eviction: None,
            deleted: false,
            begun: Timestamp::now()..Timestamp::now(),
            start: Instant::now(),
            points: Vec::new(),
            trace: Vec::new(),
            hook_is_recorded: false,
            finished: false,
            next_look: Instant::now(),
            successor: None,
        };
        run.start_agent()?;
        let late = Instant::now() + LIMIT;
        while !run.watches() {
            ensure!(Instant::now() < late, "the agent does not watch");
            sleep(Duration::from_millis(25)).await;
        }
        let history = run.scene.follow(&run.pod).await?;
        run.begun = Timestamp::now()..Timestamp::now();
        run.start = Instant::now();
        match cause {
            Cause::Deleted => run.delete().await?,
            Cause::Evicted => run.request_eviction()?,
        }
        Ok((run, history))
    }

    async fn delete(&mut self) -> Result<()> {
        self.deleted = true;
        self.note("it is deleted");
        self.scene.delete(&self.pod, None).await
    }

    async fn delete_object(&mut self) -> Result<()> {
        // The eviction of a deleted object is not requested again.
        (self.deleted, self.eviction) = (true, None);
        self.scene.delete(&self.pod, Some(0)).await
    }

    fn request_eviction(&mut self) -> Result<()> {
        self.note("its eviction is asked for");
        self.begun.end = Timestamp::now();
        let dir = self.scene.stage.containerd.workspace().dir().join("agent");
        let pod = format!("{}/{POD}", self.scene.namespace);
        self.eviction = Some(Eviction::ask(Path::new(AGENT), &dir, &pod)?);
        Ok(())
    }

    fn start_agent(&mut self) -> Result<()> {
        self.requests = self.api.requests().len();
        // Its patches of the Node's status are no steps of the teardown, and come whenever the runtime fails or returns.
        let agent = self.scene.stage.agent(Path::new(AGENT))?;
        let agent = agent
            .flag("--shutdown-timeout", SHUTDOWN)
            .flag("--node-condition", "false");
        self.agent = Some(agent.variable("POD_TEARDOWN_CHECKPOINTS", self.gate.path()).spawn()?);
        self.note("the agent starts");
        Ok(())
    }

    /// Whether this agent has started to watch.
    fn watches(&self) -> bool {
        let requests = self.api.requests();
        let mut of_this_agent = requests.iter().skip(self.requests).map(|request| &request.asked);
        of_this_agent.any(|asked| asked.verb == "watch" && asked.resource == "pods" && asked.user == self.user)
    }

    async fn through(&mut self) -> Result<()> {
        let mut ticks = interval(Duration::from_millis(25));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let late = Instant::now() + LIMIT;
        loop {
            tokio::select! {
                Some(arrival) = self.gate.next() => self.arrived(arrival).await?,
                _ = ticks.tick() => {
                    self.do_pending().await?;
                    if self.is_over().await? {
                        break;
                    }
                }
            }
            ensure!(Instant::now() < late, "it does not come to an end: something is left");
        }
        ensure!(self.struck || self.strike.is_none(), PointNotReached);
        Ok(())
    }

    async fn arrived(&mut self, arrival: Arrival) -> Result<()> {
        if arrival.pid != self.agent.as_ref().and_then(AgentProcess::pid) {
            return Ok(());
        }
        let point = self.names.point(arrival.when, &arrival.verb, &arrival.target);
        self.note(&point.to_string());
        if !self.struck {
            self.points.push(point.clone());
        }
        let step = &point.step;
        match point.when {
            When::Before => self.may_do(step).await?,
            When::After if step.is(JOURNAL, "hook ended main") => self.hook_is_recorded = true,
            When::After if step.is(JOURNAL, "forget") => self.finished = true,
            When::After => {}
        }
        match &self.strike {
            Some(strike) if !self.struck && strike.point() == point => {
                let strike = strike.clone();
                self.struck = true;
                self.note(&format!("--- {}", strike.fault));
                self.strike(&strike, arrival).await
            }
            _ => {
                arrival.resume().await;
                Ok(())
            }
        }
    }

    /// Checks the invariants before a step.
    async fn may_do(&mut self, step: &Step) -> Result<()> {
        if step.verb == HOOK {
            ensure!(
                !self.hook_is_recorded,
                "invariant 5: a hook whose end is recorded is to be run again"
            );
        }
        let is_deleted = step.verb == "DELETE";
        if !is_deleted && !storage::is_step(step) {
            return Ok(());
        }
        self.storage.may_be_done(step, &self.scene.stage, &self.drivers).await?;
        if let Pending::RuntimeComesBack(_) = self.later {
            self.restart_runtime().await?;
        }
        if is_deleted {
            checks::may_delete(&self.scene.stage, &self.pod).await
        } else {
            checks::may_release(&self.scene.stage, &self.pod).await
        }
    }

    async fn explain(&self) -> String {
        let asked = self.eviction.as_ref().map(Eviction::logged).unwrap_or_default();
        let trace = self.trace.join("\n");
        format!(
            "{}\n--- evict said\n{asked}\n--- points\n{trace}",
            self.scene.explain().await
        )
    }

    fn note(&mut self, what: &str) {
        self.trace
            .push(format!("{:>6} ms {what}", self.start.elapsed().as_millis()));
    }
}
