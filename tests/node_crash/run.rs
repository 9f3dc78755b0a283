//! One teardown, with at most one fault in it, from the deletion to its very end.

use std::{
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use serde_json::Value;
use testbed::{
    apiserver::{
        MemApiServer,
        faults::{Action, Fault as Trouble},
    },
    pods::StartedPod,
    stage::AgentProcess,
};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::{
    ask::{Cause, Eviction, REASON},
    checks,
    everything::{POD, everything, leads_out},
    fault::{Fault, Strike},
    gate::{Arrival, Gate},
    history::History,
    place::Place,
    point::{Names, Point, When},
    scene::Scene,
};

const AGENT: &str = env!("CARGO_BIN_EXE_pod-teardown");
/// All runs but one kind are over in 10 s; the rest is for pauses after failures, and a machine under load.
const LIMIT: Duration = Duration::from_secs(240);
/// How long the runtime and the API server stay away.
const RUNTIME_AWAY: Duration = Duration::from_millis(300);
const SERVER_AWAY: Duration = Duration::from_secs(3);
/// `--shutdown-timeout`: some teardowns come to their end within it, others do not.
const SHUTDOWN: &str = "2s";
/// Until an agent that was told to stop has ended: its timeout, a second for the map and one for events,
/// three for the Lease, and the load.
const STOPPED_WITHIN: Duration = Duration::from_secs(2 + 1 + 1 + 3 + 4);
/// Where the agent dies late in a stop, so that a grace period that begins anew is seen.
const LATE: Duration = Duration::from_secs(6);

/// What the agent calls a write to its journal.
pub const JOURNAL: &str = "write to the journal";
const HOOK: &str = "run the preStop hook of";

/// The point did not come, though the teardown came to its end.
#[derive(Debug, thiserror::Error)]
#[error("the point never came")]
pub struct NeverCame;

/// What is still to be done to the world.
enum Later {
    Nothing,
    Kill(Instant),
    RuntimeComesBack(Instant),
    ServerComesBack(Instant),
    HasStopped { by: Instant },
}

struct Run {
    scene: Scene,
    api: Arc<MemApiServer>,
    user: String,
    pod: StartedPod,
    kept: PathBuf,
    names: Names,
    gate: Gate,
    agent: Option<AgentProcess>,
    /// Requests before this agent.
    requests: usize,
    strike: Option<Strike>,
    struck: bool,
    later: Later,
    cause: Cause,
    eviction: Option<Eviction>,
    deleted: bool,
    /// First and last request.
    begun: Range<Timestamp>,
    start: Instant,
    points: Vec<Point>,
    story: Vec<String>,
    hook_is_recorded: bool,
    finished: bool,
    next_look: Instant,
    successor: Option<Value>,
}

/// Takes a new pod down, with the strike; tells the points up to it.
pub async fn run(place: &mut Place, cause: Cause, strike: Option<Strike>, namespace: String) -> Result<Vec<Point>> {
    let stage = place.stage.take().context("the place is in use, or was left broken")?;
    let scene = Scene::new(stage, None, namespace).await?;
    let (mut run, history) = Run::begin(scene, place, cause, strike).await?;
    let through = run.through().await;
    let told = match through {
        Ok(()) => run.finish(place, history).await,
        failed => failed,
    };
    if let Err(error) = told {
        let explained = run.explain().await;
        return Err(error.context(explained));
    }
    let Run { scene, points, .. } = run;
    place.stage = Some(scene.stage);
    Ok(points)
}

fn grace(strike: Option<&Strike>) -> Duration {
    let dies_late = strike.is_some_and(dies_late);
    Duration::from_secs(if dies_late { 7 } else { 4 })
}

fn dies_late(strike: &Strike) -> bool {
    strike.fault == Fault::KilledDuring && strike.step.is("StopContainer", "stubborn")
}

// === impl Run ===

impl Run {
    async fn begin(scene: Scene, place: &Place, cause: Cause, strike: Option<Strike>) -> Result<(Self, History)> {
        let pod = scene.run(everything(grace(strike.as_ref()))).await?;
        let dir = scene.stage.containerd.ground().dir();
        let kept = dir.join("kept").join(&scene.namespace);
        leads_out(&pod, &kept)?;
        let gate = Gate::open(&dir.join(format!("{}.sock", scene.namespace)))?;
        place.api.forget_requests();
        let mut run = Self {
            names: Names::of(&pod),
            api: Arc::clone(&place.api),
            user: place.user(),
            scene,
            pod,
            kept,
            gate,
            agent: None,
            requests: 0,
            strike,
            struck: false,
            later: Later::Nothing,
            cause,
            eviction: None,
            deleted: false,
            begun: Timestamp::now()..Timestamp::now(),
            start: Instant::now(),
            points: Vec::new(),
            story: Vec::new(),
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
            Cause::Evicted => run.ask_for_eviction()?,
        }
        Ok((run, history))
    }

    async fn delete(&mut self) -> Result<()> {
        self.deleted = true;
        self.note("it is deleted");
        self.scene.delete(&self.pod, None).await
    }

    async fn take_object(&mut self) -> Result<()> {
        // Nobody asks again for the end of what is gone.
        (self.deleted, self.eviction) = (true, None);
        self.scene.delete(&self.pod, Some(0)).await
    }

    fn ask_for_eviction(&mut self) -> Result<()> {
        self.note("its eviction is asked for");
        self.begun.end = Timestamp::now();
        let dir = self.scene.stage.containerd.ground().dir().join("agent");
        let pod = format!("{}/{POD}", self.scene.namespace);
        self.eviction = Some(Eviction::ask(Path::new(AGENT), &dir, &pod)?);
        Ok(())
    }

    fn start_agent(&mut self) -> Result<()> {
        self.requests = self.api.requests().len();
        let more = ["--shutdown-timeout", SHUTDOWN];
        let agent = AgentProcess::spawn_checked(&self.scene.stage, Path::new(AGENT), &more, self.gate.path())?;
        self.agent = Some(agent);
        self.note("the agent starts");
        Ok(())
    }

    /// Whether this agent has begun to watch.
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
                    self.do_later().await?;
                    if self.is_over().await? {
                        break;
                    }
                }
            }
            ensure!(Instant::now() < late, "it does not come to an end: something is left");
        }
        ensure!(self.struck || self.strike.is_none(), NeverCame);
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
            When::After if step.is(JOURNAL, "hook ended main") => self.hook_is_recorded = true,
            When::After if step.is(JOURNAL, "forget") => self.finished = true,
            When::Before if step.verb == HOOK => ensure!(
                !self.hook_is_recorded,
                "invariant 5: a hook whose end is recorded is to be run again"
            ),
            When::Before if step.verb == "DELETE" => {
                if let Later::RuntimeComesBack(_) = self.later {
                    self.bring_runtime_back().await?;
                }
                checks::may_be_deleted(&self.scene.stage, &self.pod).await?;
            }
            When::Before | When::After => {}
        }
        match &self.strike {
            Some(strike) if !self.struck && strike.point() == point => {
                let strike = strike.clone();
                self.struck = true;
                self.note(&format!("--- {}", strike.fault));
                self.strike(&strike, arrival).await
            }
            _ => {
                arrival.go_on().await;
                Ok(())
            }
        }
    }

    async fn strike(&mut self, strike: &Strike, arrival: Arrival) -> Result<()> {
        let now = Instant::now();
        match strike.fault {
            Fault::KilledBefore | Fault::KilledAfter => self.crash_and_restart().await?,
            Fault::KilledDuring if dies_late(strike) => {
                arrival.go_on().await;
                self.later = Later::Kill(self.start + LATE);
            }
            Fault::KilledDuring => {
                arrival.go_on().await;
                sleep(strike.moment).await;
                self.crash_and_restart().await?;
            }
            Fault::RuntimeRestarts => {
                self.stage()?.containerd.kill();
                arrival.go_on().await;
                self.later = Later::RuntimeComesBack(now + RUNTIME_AWAY);
            }
            Fault::ServerAway => {
                let faults = self.api.faults();
                faults.inject(Trouble::new(Action::CutWatch).user(&self.user));
                faults.inject(Trouble::new(Action::Refuse).user(&self.user));
                arrival.go_on().await;
                self.later = Later::ServerComesBack(now + SERVER_AWAY);
            }
            Fault::Terminated => {
                self.agent.as_ref().context("no agent runs")?.tell_to_stop()?;
                arrival.go_on().await;
                self.later = Later::HasStopped {
                    by: now + STOPPED_WITHIN,
                };
            }
            Fault::Replaced => {
                self.take_object().await?;
                self.successor = Some(self.succeed().await?);
                arrival.go_on().await;
            }
            Fault::Orphaned => {
                self.crash().await?;
                self.take_object().await?;
                self.start_agent()?;
            }
        }
        Ok(())
    }

    async fn do_later(&mut self) -> Result<()> {
        let now = Instant::now();
        match self.later {
            Later::Kill(at) if now >= at => self.crash_and_restart().await?,
            Later::RuntimeComesBack(at) if now >= at => self.bring_runtime_back().await?,
            Later::ServerComesBack(at) if now >= at => {
                self.api.faults().clear();
                self.note("--- the API server is back");
            }
            Later::HasStopped { by } => match self.has_ended()? {
                Some(0) => {
                    self.note("--- it has stopped");
                    self.start_agent()?;
                }
                Some(code) => bail!("told to stop, the agent ended with {code}"),
                None => {
                    ensure!(now < by, "told to stop, the agent goes on");
                    return Ok(());
                }
            },
            _ => {
                if let Some(code) = self.has_ended()? {
                    bail!("the agent ended by itself, with {code}");
                }
                return Ok(());
            }
        }
        self.later = Later::Nothing;
        Ok(())
    }

    /// The exit code; 255 for a signal.
    fn has_ended(&mut self) -> Result<Option<i32>> {
        let ended = self.agent.as_mut().context("no agent runs")?.has_ended()?;
        Ok(ended.map(|status| status.code().unwrap_or(255)))
    }

    async fn crash_and_restart(&mut self) -> Result<()> {
        self.crash().await?;
        self.start_agent()
    }

    async fn crash(&mut self) -> Result<()> {
        self.agent.take().context("no agent runs")?.crash().await?;
        self.note("--- it is dead");
        Ok(())
    }

    async fn bring_runtime_back(&mut self) -> Result<()> {
        self.stage()?.containerd.restart().await?;
        self.later = Later::Nothing;
        self.note("--- the runtime is back");
        Ok(())
    }

    fn stage(&mut self) -> Result<&mut testbed::stage::Stage> {
        Arc::get_mut(&mut self.scene.stage).context("somebody else has the stage")
    }

    /// The object is gone, nothing is left on the node, and the agent is back at its watch.
    async fn is_over(&mut self) -> Result<bool> {
        let now = Instant::now();
        if now < self.next_look || !matches!(self.later, Later::Nothing) || !self.watches() {
            return Ok(false);
        }
        let often = Duration::from_millis(if self.finished { 100 } else { 500 });
        self.next_look = now + often;
        if !self.deleted && self.is_evicted().await? {
            self.delete().await?;
        }
        if self.successor.is_none() {
            if self.scene.stage.admin.get(&self.scene.path(POD)).await?.code() != 404 {
                return Ok(false);
            }
            self.successor = Some(self.succeed().await?);
        }
        if !self.finished && !self.struck {
            return Ok(false);
        }
        let left = self.scene.stage.leftovers(std::slice::from_ref(&self.pod)).await?;
        Ok(left.is_empty())
    }

    /// It has failed, and no more is left of it than is kept until the deletion.
    async fn is_evicted(&mut self) -> Result<bool> {
        if let Some(eviction) = &mut self.eviction
            && eviction.is_refused()?
        {
            self.ask_for_eviction()?;
        }
        let object = self.scene.stage.admin.get(&self.scene.path(POD)).await?;
        if object.code() == 404 {
            return Ok(false);
        }
        let status = object.ok()?["status"].take();
        if status["phase"] != "Failed" || status["reason"] != REASON {
            return Ok(false);
        }
        let left = self.scene.stage.leftovers(std::slice::from_ref(&self.pod)).await?;
        Ok(["process", "mount", "cgroup"].iter().all(|kind| !left.has(kind)))
    }

    /// Another pod takes the name at once, on the same node: whatever the agent still asks for must not hit it.
    async fn succeed(&self) -> Result<Value> {
        let mut successor = everything(Duration::from_secs(30));
        successor["metadata"]["namespace"] = self.scene.namespace.as_str().into();
        successor["spec"]["nodeName"] = self.scene.stage.node.as_str().into();
        Ok(self.scene.stage.admin.create_pod(&successor).await?)
    }

    async fn finish(&mut self, place: &Place, history: History) -> Result<()> {
        // Nobody is held up any more.
        self.gate.close();
        let agent = self.agent.take().context("no agent runs")?;
        let log = agent.log();
        let code = agent.stop().await?;
        ensure!(code == Some(0), "at last the agent ended with {code:?}");
        ensure!(!log.contains("panicked"), "something panicked; see its log");
        let answer = self.scene.stage.admin.get(&self.scene.path(POD)).await?;
        let successor = answer.ok().unwrap_or_default();
        ensure!(
            Some(&successor) == self.successor.as_ref(),
            "invariant 2: the successor of the same name was changed to {successor}"
        );
        let grace = grace(self.strike.as_ref());
        let struck = self.strike.as_ref().map(|strike| strike.fault);
        let told = history.end().await?;
        if !struck.is_some_and(Fault::takes_the_object) {
            checks::ended_well(&told, &self.begun, grace, struck)?;
            let reason = &told.last()["status"]["reason"];
            ensure!((self.cause == Cause::Evicted) == (reason == REASON), "reason {reason}");
        }
        checks::hook_ran(&self.scene.said(POD), struck)?;
        let data = fs::read_to_string(self.kept.join("data")).unwrap_or_default();
        ensure!(data == "precious", "invariant 6: what a link leads to was removed");
        place.all_beside_are_untouched(&self.scene.stage).await?;
        let deleted = self.scene.stage.admin.delete_pod(&self.scene.namespace, POD, Some(0));
        deleted.await?;
        Ok(())
    }

    async fn explain(&self) -> String {
        let asked = self.eviction.as_ref().map(Eviction::said).unwrap_or_default();
        let story = self.story.join("\n");
        format!(
            "{}\n--- evict said\n{asked}\n--- points\n{story}",
            self.scene.explain().await
        )
    }

    fn note(&mut self, what: &str) {
        self.story
            .push(format!("{:>6} ms {what}", self.start.elapsed().as_millis()));
    }
}
