//! Direct CRI calls and the agent tear down the same pods, in turn; and the same for pods that wait for a takeover.
//!
//! The API server is a separate process. One agent runs through all rounds of a kind, so that its memory shows leaks. Pods of
//! a real kubelet are measured alone, because they need a real control plane.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Figures, Table, machine,
    pods_round::{self as round, Kind, LIMIT, SETTLE},
    program,
    usage::Usage,
};
use crate::{
    apiserver::process::ApiServerProcess,
    control_plane::ControlPlane,
    kubelet::Kubelet,
    pods::StartedPod,
    stage::{AgentProcess, NODE, Stage},
    wait::eventually,
};

/// From this many pods on, three kinds of pods are measured.
const FULL_NODE: usize = 100;
/// Threshold without a kubelet, which is not measured.
const TAKE_OVER_AFTER: &str = "2s";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many pods at a time; from 100 on each has an emptyDir in memory, in further rounds a hook and a sidecar, and then needs four seconds to exit.
    #[arg(
        long,
        value_name = "N",
        value_delimiter = ',',
        default_value = "1,50,110",
        default_value_if("kubelet", "true", "110")
    )]
    pods: Vec<usize>,
    /// How many pods wait for an agent that takes over.
    #[arg(long, value_name = "N", default_value_t = 50)]
    waiting: usize,
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    /// A real kubelet makes the pods, each with an emptyDir in memory, and is killed before each teardown. Needs the control plane, which is built once with Go. A round takes about a minute with 110 pods.
    #[arg(long, conflicts_with_all = ["waiting", "apiserver"])]
    kubelet: bool,
    /// The kubelet is measured, too; then it is not killed.
    #[arg(long, requires = "kubelet")]
    against_kubelet: bool,
    /// The agent [default: pod-teardown beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// The API server [default: testbed-apiserver beside this program].
    #[arg(long, value_name = "PATH")]
    apiserver: Option<PathBuf>,
}

impl Args {
    pub async fn run(&self) -> Result<bool> {
        let agent = program(self.agent.as_ref(), "pod-teardown")?;
        let stage = if self.kubelet {
            Stage::set_for_a_kubelet(Box::new(ControlPlane::start().await?), NODE).await?
        } else {
            let apiserver = program(self.apiserver.as_ref(), "testbed-apiserver")?;
            Stage::set(Box::new(ApiServerProcess::start(&apiserver).await?)).await?
        };
        println!("containerd {}, {}", stage.containerd.version(), machine()?);
        let measured = self.measure_all(&stage, &agent).await;
        stage.containerd.stop().await?;
        println!("\n{METHOD}\n\n{}\n{}", measured?.join("\n"), machine()?);
        Ok(true)
    }

    async fn measure_all(&self, stage: &Stage, agent: &Path) -> Result<Vec<String>> {
        let mut tables = Vec::new();
        for &count in &self.pods {
            let kinds: &[Kind] = match count {
                _ if self.kubelet => &[Kind::OfKubelet],
                FULL_NODE.. => &[Kind::Memory, Kind::Hooked, Kind::Slow],
                _ => &[Kind::Plain],
            };
            for &kind in kinds {
                let table = self.measure(stage, agent, kind, count).await?;
                tables.push(table.text(&format!("{count} {kind}; {} rounds", self.rounds)));
            }
        }
        if !self.kubelet {
            let table = self.measure_takeover(stage, agent).await?;
            tables.push(table.text(&format!("{} pods that waited for a takeover", self.waiting)));
        }
        Ok(tables)
    }

    async fn measure(&self, stage: &Stage, program: &Path, kind: Kind, count: usize) -> Result<Table> {
        let agent = if kind == Kind::OfKubelet {
            // It registers the node.
            Kubelet::start(stage).await?.crash();
            start_beside(stage, program).await?
        } else {
            stage.start_agent(program).await?
        };
        let mut table = Table::default();
        for number in 0..self.rounds {
            let by_kubelet = if self.against_kubelet {
                Some(kubelet_deletes(stage, count, &mut table).await?)
            } else {
                None
            };
            let (mut direct, mut by_agent) = (None, None);
            // Each is first in turn.
            for is_agent in [number % 2 == 1, number % 2 == 0] {
                let pods = match kind {
                    Kind::OfKubelet => orphans(stage, &agent, count).await?,
                    _ if is_agent => stage.run_pods(&kind.manifests(count)).await?,
                    // The agent does not know these: they are not in the API.
                    _ => stage.starter.start_all(&kind.unstored(count)).await?,
                };
                sleep(SETTLE).await;
                if is_agent {
                    by_agent = Some(round::agent_deletes(stage, &agent, &pods, &mut table).await?);
                    continue;
                }
                direct = Some(round::direct_calls(stage, &pods).await?);
                if kind == Kind::OfKubelet {
                    // No kubelet confirms the deletion.
                    round::request_deletion(stage, &pods, Some(0)).await?;
                }
            }
            let (direct, by_agent) = (direct.context("direct calls")?, by_agent.context("the agent")?);
            println!("{count:3} pods: direct calls {direct:.3?}, agent {by_agent:.3?}, kubelet {by_kubelet:.3?}");
            for (which, of) in WHICH {
                table.add(format!("direct calls: {which} pod"), "s", [of(&direct)]);
                for (name, times) in [("agent", Some(by_agent)), ("kubelet", by_kubelet)] {
                    // Per round, so that drift during the run affects both.
                    let ratio = times.map(|times| of(&times) / of(&direct));
                    table.add(format!("{name}: {which} pod"), "s", times.map(|times| of(&times)));
                    table.add(format!("{name} / direct calls: {which} pod"), "", ratio);
                }
            }
            table.add("agent - direct calls", "ms", [(by_agent.max - direct.max) * 1000.0]);
        }
        agent.stop().await?;
        Ok(table)
    }

    /// Pods that were deleted while neither kubelet nor agent ran, with a new agent in each round.
    async fn measure_takeover(&self, stage: &Stage, program: &Path) -> Result<Table> {
        let mut table = Table::default();
        for _ in 0..self.rounds {
            let pods = stage.starter.start_all(&Kind::Plain.unstored(self.waiting)).await?;
            sleep(SETTLE).await;
            let direct = round::direct_calls(stage, &pods).await?.max;
            let pods = stage.run_pods(&Kind::Plain.manifests(self.waiting)).await?;
            let agent = taken_over(stage, program, &pods).await?;
            println!(
                "{} waiting pods: direct calls {direct:.3} s, agent {agent:.3} s",
                self.waiting
            );
            table.add("direct calls: last pod", "s", [direct]);
            table.add("agent: last pod", "s", [agent]);
            table.add("agent / direct calls: last pod", "", [agent / direct]);
        }
        Ok(table)
    }
}

type Which = fn(&Figures) -> f64;

const WHICH: [(&str, Which); 3] = [
    ("last", |it| it.max),
    ("median", |it| it.median),
    ("first", |it| it.min),
];

const METHOD: &str = "\
Direct calls: ExecSync for hooks, StopContainer and StopPodSandbox, all pods in parallel, from the first call to the last answer.
Agent and kubelet: from the first DELETE sent to the last DELETED event of a watch. Takeover: from when the agent is active.
CPU: user and system time of the process. Resident: VmRSS with the pods running and at the peak of a round; one agent for all
rounds. Anonymous: without the pages of the program and its libraries, which the kernel can drop.";

async fn start_beside(stage: &Stage, program: &Path) -> Result<AgentProcess> {
    let agent = stage.agent(program)?.flag("--mode", "auto");
    agent.flag("--take-over-after", TAKE_OVER_AFTER).start().await
}

/// Pods whose kubelet was killed, and for which the agent has taken over.
async fn orphans(stage: &Stage, agent: &AgentProcess, count: usize) -> Result<Vec<StartedPod>> {
    let kubelet = Kubelet::start(stage).await?;
    let pods = kubelet.run_pods(stage, &Kind::OfKubelet.manifests(count)).await?;
    kubelet.crash();
    let active = eventually(LIMIT, "the agent to take over", async || {
        Ok((agent.status().await?["role"]["role"] == "active").then_some(()))
    });
    agent.during(active).await?;
    Ok(pods)
}

async fn kubelet_deletes(stage: &Stage, count: usize, table: &mut Table) -> Result<Figures> {
    let kubelet = Kubelet::start(stage).await?;
    let pods = kubelet.run_pods(stage, &Kind::OfKubelet.manifests(count)).await?;
    sleep(SETTLE).await;
    let usage = Usage(kubelet.pid());
    let before = usage.cpu()?;
    let times = round::delete(stage, &pods).await?;
    let cpu = round::ms_per_pod(usage.cpu()? - before, &pods);
    table.add("kubelet: CPU per pod until deleted", "ms", [cpu]);
    round::wait_until_clean(stage, &pods).await?;
    kubelet.crash();
    // It removes sandboxes after a minute or so.
    stage.starter.clear_all_away(&pods).await?;
    Ok(times)
}

/// Seconds from when a new agent is active until the last DELETED event.
async fn taken_over(stage: &Stage, program: &Path, pods: &[StartedPod]) -> Result<f64> {
    round::request_deletion(stage, pods, None).await?;
    let watch = round::watch(stage).await?;
    let (wall, begin) = (Timestamp::now(), Instant::now());
    let agent = start_beside(stage, program).await?;
    let gone = agent.during(async {
        let gone = timeout(LIMIT, round::deletions(watch, pods, begin)).await;
        let gone = gone.context("not all pods are deleted in time")??;
        round::wait_until_clean(stage, pods).await?;
        Ok(gone)
    });
    let gone = gone.await?;
    let role = agent.status().await?["role"].take();
    ensure!(role["role"] == "active", "the agent has not taken over: {role}");
    let active: Timestamp = role["since"].as_str().context("since when")?.parse()?;
    agent.stop().await?;
    Ok(gone.max - active.duration_since(wall).as_secs_f64())
}
