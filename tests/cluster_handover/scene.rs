//! A node with a kubelet, the agent, and the records of both.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use jiff::Timestamp;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use pod_teardown::{
    handover::guard::HandoverResult,
    model::role::RoleName,
    ops::{
        admin::{
            self,
            handover::{HANDOVER, HandoverRequest},
        },
        client,
        status::StatusReport,
    },
};
use serde_json::{Value, json};
use testbed::{
    control_plane::ControlPlane,
    dice::Dice,
    kubelet::Kubelet,
    leftovers::Leftovers,
    recorder::{Record, Recorder, mounts::MountRecorder},
    stage::{AgentProcess, Stage},
};
use tokio::time::{Instant, sleep};

use crate::{
    judge::{Act, Handover, Life, Side},
    mounts::{Agent, Others, uid, what},
};

pub const AGENT: &str = env!("CARGO_BIN_EXE_pod-teardown");
const NODE: &str = "node-0";
const KUBELET: &str = "kubelet";
const PODS: &str = "pods";
/// Length of a UID; container IDs are longer.
const ID: usize = 36;
/// Seconds for the answer to a handover.
const HANDOVER_MARGIN: f64 = 0.1;
const POLL: Duration = Duration::from_millis(20);
/// Seconds within which the agent has recorded an answer, even with a busy disk.
const JOURNAL_DELAY: f64 = 5.0;
/// Limit for the start of a kubelet's process after its mount namespace, on a machine under load.
const START_LIMIT: Duration = Duration::from_secs(180);

/// See the module's documentation.
pub struct Scene {
    pub stage: Stage,
    pub agent: AgentProcess,
    /// When agents were killed.
    pub agent_deaths: Vec<f64>,
    pub lives: Vec<Life>,
    kubelet: Option<Kubelet>,
    began: Timestamp,
    record: Record,
    mounts: MountRecorder,
    others: Others,
    for_kubelet: Recorder,
    for_agent: Recorder,
    audit_log: PathBuf,
    take_over_after: String,
}

impl Scene {
    /// With a ready kubelet and a standby agent.
    pub async fn start(take_over_after: &str) -> Result<Self> {
        let plane = ControlPlane::start().await?;
        let audit_log = plane.audit_log();
        let stage = Stage::set_for_a_kubelet(Box::new(plane), NODE).await?;
        let record = Record::default();
        let began = Timestamp::now();
        let recorder = |side| {
            let path = stage.containerd.workspace().dir().join(format!("{side}.sock"));
            Recorder::start(path, stage.containerd.socket(), side, &record)
        };
        let (for_kubelet, for_agent) = (recorder(KUBELET)?, recorder("agent")?);
        let mounts = MountRecorder::start(&stage.starter.dirs().kubelet_root.join(PODS))?;
        let kubelet = Kubelet::start_through(&stage, &for_kubelet.endpoint()).await?;
        let agent = start_agent(&stage, &for_agent, take_over_after).await?;
        let pid = |id: Option<u32>| Ok::<_, anyhow::Error>(id.context("a process")?.cast_signed());
        let others = Others {
            agents: vec![Agent {
                pid: pid(agent.pid())?,
                from: 0.0,
                until: f64::MAX,
            }],
            runtime: pid(stage.containerd.pid())?,
            test: pid(Some(std::process::id()))?,
        };
        let life = Life {
            start: 0.0,
            end: f64::MAX,
            before: Handover::None,
            reserved_until: f64::MIN,
        };
        Ok(Self {
            stage,
            agent,
            agent_deaths: Vec::new(),
            lives: vec![life],
            kubelet: Some(kubelet),
            began,
            record,
            mounts,
            others,
            for_kubelet,
            for_agent,
            audit_log,
            take_over_after: take_over_after.to_owned(),
        })
    }

    /// Seconds since the start of the run.
    pub fn now(&self) -> f64 {
        self.since(Timestamp::now())
    }

    fn since(&self, at: Timestamp) -> f64 {
        at.duration_since(self.began).as_secs_f64()
    }

    /// Ends the kubelet in a random way.
    pub async fn end_kubelet(&mut self, dice: &mut Dice) -> Result<()> {
        if !dice.one_in(4) {
            return self.kill_kubelet();
        }
        let kubelet = self.kubelet.take().context("a kubelet that lives")?;
        kubelet.stop().await?;
        self.end_life()
    }

    pub fn kill_kubelet(&mut self) -> Result<()> {
        self.kubelet.take().context("a kubelet that lives")?.crash();
        self.end_life()
    }

    fn end_life(&mut self) -> Result<()> {
        let now = self.now();
        self.lives.last_mut().context("a life")?.end = now;
        Ok(())
    }

    pub async fn restart_agent(&mut self) -> Result<()> {
        let pid = self.agent.pid().context("an agent that runs")?;
        kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL)?;
        self.agent_deaths.push(self.now());
        while self.agent.has_ended()?.is_none() {
            sleep(POLL).await;
        }
        let ended = self.now();
        self.others.agents.last_mut().context("an agent")?.until = ended;
        self.agent = start_agent(&self.stage, &self.for_agent, &self.take_over_after).await?;
        self.others.agents.push(Agent {
            pid: self.agent.pid().context("an agent that runs")?.cast_signed(),
            from: ended,
            until: f64::MAX,
        });
        Ok(())
    }

    /// Requests a handover with this timeout, as the drop-in of the kubelet's unit does.
    pub async fn request_handover(&self, timeout: Duration) -> Result<Handover> {
        let ask = HandoverRequest {
            timeout_ms: u64::try_from(timeout.as_millis())?,
        };
        let HandoverResult { in_progress } = client::post_with_timeout(&self.socket(), HANDOVER, &ask, timeout).await?;
        Ok(if in_progress.is_empty() {
            Handover::Clean
        } else {
            Handover::CutShort(in_progress.into_iter().collect())
        })
    }

    /// The admin socket.
    pub fn socket(&self) -> PathBuf {
        self.stage.containerd.workspace().dir().join("agent/admin.sock")
    }

    /// Starts a kubelet; its life begins with its process. The reservation after a handover lasts `--take-over-after`.
    pub async fn start_kubelet(&mut self, before: Handover) -> Result<()> {
        let reserved_until = match before {
            Handover::None => f64::MIN,
            _ => self.now() + humantime::parse_duration(&self.take_over_after)?.as_secs_f64() - HANDOVER_MARGIN,
        };
        let kubelet = Kubelet::spawn_through(&self.stage, &self.for_kubelet.endpoint()).await?;
        let name = format!("/proc/{}/comm", kubelet.pid());
        let late = Instant::now() + START_LIMIT;
        while fs::read_to_string(&name).unwrap_or_default().trim() != KUBELET {
            ensure!(Instant::now() < late, "no kubelet: {}", kubelet.log_tail());
            sleep(Duration::from_millis(2)).await;
        }
        self.lives.push(Life {
            start: self.now(),
            end: f64::MAX,
            before,
            reserved_until,
        });
        self.kubelet = Some(kubelet);
        Ok(())
    }

    /// Waits until the agent is active, at most so long.
    pub async fn wait_active(&self, patience: Duration) -> Result<bool> {
        let late = Instant::now() + patience;
        while Instant::now() < late {
            let status: StatusReport = client::get(&self.socket(), admin::STATUS).await?;
            if status.role.is_some_and(|role| role.role == RoleName::Active) {
                return Ok(true);
            }
            sleep(POLL * 5).await;
        }
        Ok(false)
    }

    /// The pods of the test, by name.
    pub async fn pods(&self) -> Result<BTreeMap<String, Value>> {
        let list = self.stage.admin.get("/api/v1/namespaces/default/pods").await?.ok()?;
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Ok(pods.into_iter().map(|pod| (name(&pod), pod)).collect())
    }

    /// Creates a pod on the node; returns its UID.
    pub async fn create(&self, mut pod: Value) -> Result<String> {
        pod["spec"]["nodeName"] = NODE.into();
        let stored = self
            .stage
            .admin
            .create("/api/v1/namespaces/default/pods", &pod)
            .await?
            .ok()?;
        stored["metadata"]["uid"].as_str().map(str::to_owned).context("a UID")
    }

    /// Deletes a pod, with this grace period or its own; returns its last object, or `None` if it does not exist.
    pub async fn delete(&self, name: &str, grace: Option<i64>) -> Result<Option<Value>> {
        let options = grace.map(|grace| json!({ "gracePeriodSeconds": grace }));
        let path = format!("/api/v1/namespaces/default/pods/{name}");
        let answer = self.stage.admin.delete(&path, options.as_ref()).await?;
        if answer.code() == 404 {
            return Ok(None);
        }
        answer.ok().map(Some).with_context(|| format!("delete {name}"))
    }

    /// Acts of both sides on pods.
    pub fn acts(&self, uids: &BTreeMap<String, String>) -> Result<Vec<Act>> {
        let now = self.now();
        let all = self.record.calls();
        let stops = |uid: &str, from: f64, until: f64| {
            let mut of_pod = all.iter().filter(|call| {
                call.side != KUBELET && call.method == "StopContainer" && call.uid.as_deref() == Some(uid)
            });
            of_pod.any(|call| (from..until).contains(&self.since(call.begin)))
        };
        let calls = all.iter().filter_map(|call| {
            let side = if call.side == KUBELET {
                Side::Kubelet
            } else {
                Side::Agent
            };
            let end = call.end.map_or(now, |end| self.since(end));
            let uid = call.uid.as_deref()?;
            // The agent may not have recorded acts that ended with it or later, unless it began another act.
            let begin = self.since(call.begin);
            let is_last = |end_kubelet: &f64| {
                (begin..end + JOURNAL_DELAY).contains(end_kubelet) && !stops(uid, end, *end_kubelet)
            };
            Some(Act {
                side,
                uid: uid.to_owned(),
                what: call.method.to_owned(),
                begin,
                end,
                done: call.done && !(side == Side::Agent && self.agent_deaths.iter().any(is_last)),
            })
        });
        let log = fs::read_to_string(&self.audit_log).context("read the audit log")?;
        let writes = log.lines().filter_map(|line| self.write(line, uids));
        let mounts = self.mounted()?;
        Ok(calls.chain(writes).chain(mounts).collect())
    }

    /// Mounts and unmounts of pods' volumes.
    fn mounted(&self) -> Result<Vec<Act>> {
        let pods = self.stage.starter.dirs().kubelet_root.join(PODS);
        let acts = self.mounts.heard()?.into_iter().filter_map(|mounting| {
            let received = self.since(mounting.at);
            let at = self.others.time(&mounting.by, received);
            Some(Act {
                side: self.others.side(&mounting.by, received)?,
                uid: uid(&pods, &mounting.point)?,
                what: what(&mounting),
                begin: at,
                end: at,
                done: true,
            })
        });
        Ok(acts.collect())
    }

    /// Number of calls for unknown pods.
    pub fn unknown(&self) -> usize {
        self.record.calls().iter().filter(|call| call.uid.is_none()).count()
    }

    /// The write to one of these pods in a line of the audit log, if it is one.
    fn write(&self, line: &str, uids: &BTreeMap<String, String>) -> Option<Act> {
        let event: Value = serde_json::from_str(line).ok()?;
        let agent = event["userAgent"].as_str()?;
        let side = if agent.starts_with("kubelet/") {
            Side::Kubelet
        } else if agent.starts_with("pod-teardown/") {
            Side::Agent
        } else {
            return None;
        };
        let object = &event["objectRef"];
        let at = |field: &str| {
            let time: Timestamp = event[field].as_str()?.parse().ok()?;
            Some(self.since(time))
        };
        let verb = event["verb"].as_str()?;
        let subresource = object["subresource"].as_str().unwrap_or_default();
        Some(Act {
            side,
            uid: uids.get(object["name"].as_str()?)?.clone(),
            what: format!("{verb} pods/{subresource}"),
            begin: at("requestReceivedTimestamp")?,
            end: at("stageTimestamp")?,
            done: event["responseStatus"]["code"].as_u64()? < 300,
        })
    }

    /// Methods of the runtime that the agent has called.
    pub fn agent_methods(&self) -> Vec<String> {
        self.record.methods("agent")
    }

    /// Requests of the agent to the API server that are no reads, from the audit log.
    pub fn agent_writes(&self) -> Result<Vec<String>> {
        let log = fs::read_to_string(&self.audit_log).context("read the audit log")?;
        let write = |line: &str| {
            let event: Value = serde_json::from_str(line).ok()?;
            let verb = event["verb"].as_str()?;
            let is_agent = event["userAgent"].as_str()?.starts_with("pod-teardown/");
            (is_agent && !["get", "list", "watch"].contains(&verb)).then(|| format!("{verb} {}", event["objectRef"]))
        };
        Ok(log.lines().filter_map(write).collect())
    }

    /// Leftovers of deleted pods on the node.
    pub async fn left_of(&self, gone: &BTreeSet<String>) -> Result<Leftovers> {
        Leftovers::of_all(self.stage.starter.dirs(), self.stage.containerd.cri(), gone).await
    }

    /// Lines of the logs of kubelets, agents and runtime about these names: the files are removed with the test.
    pub fn logs_about(&self, wrong: &[String]) -> String {
        let words = wrong.iter().flat_map(|line| line.split([' ', '/', '_', ',', ';']));
        let ids: BTreeSet<_> = words
            .map(|word| word.trim_start_matches("pod"))
            .filter(|word| word.len() >= ID)
            .collect();
        let dir = self.stage.containerd.workspace().dir();
        let mut found = String::new();
        for log in ["kubelet-process/log", "agent/log", "log"] {
            let text = fs::read(dir.join(log)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let lines = text.lines().filter(|line| ids.iter().any(|id| line.contains(id)));
            lines.for_each(|line| found.extend([log, ": ", line, "\n"]));
        }
        found
    }
}

async fn start_agent(stage: &Stage, through: &Recorder, take_over_after: &str) -> Result<AgentProcess> {
    let agent = stage.agent(Path::new(AGENT))?.flag("--mode", "auto");
    let agent = agent.flag("--cri-endpoint", through.endpoint());
    agent.flag("--take-over-after", take_over_after).start().await
}
