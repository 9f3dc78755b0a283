//! Pods that a real kubelet has made: it is killed in each turn, then direct calls or the agent tear its pods down. In a turn
//! of its own it lives, and does the same.

#![allow(clippy::print_stdout, reason = "this is the bench's output")]

use std::path::Path;

use anyhow::{Result, ensure};
use serde::Serialize;
use tokio::time::sleep;

use super::{
    figures::Figures,
    round::{self, Agent, LIMIT, SETTLE},
    size::{Kind, Size},
    table::Measured,
    takeover::AFTER,
    usage::Usage,
};
use crate::{
    containerd::Cri,
    kubelet::Kubelet,
    pods::StartedPod,
    stage::{AgentProcess, Stage},
    wait::eventually,
};

/// Results of the kubelet.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ByKubelet {
    /// Seconds from the first DELETE sent until the DELETED event of each pod.
    pub pods: Figures,
    /// CPU milliseconds per pod until the last DELETED event.
    pub cpu: f64,
}

/// Measures one number of pods. All rounds have the same agent, which takes over when the kubelet is killed.
pub async fn measure(stage: &Stage, program: &Path, pods: usize, rounds: usize, with_turn: bool) -> Result<Measured> {
    let size = Size {
        pods,
        kind: Kind::OfKubelet,
    };
    // It registers the node.
    Kubelet::start(stage).await?.crash();
    let after = format!("{AFTER}s");
    let endpoint = stage.containerd.endpoint();
    let agent = AgentProcess::start_beside(stage, program, &endpoint, &["--take-over-after", &after]).await?;
    let cri = stage.containerd.cri();
    let mut measured = Measured::of(size);
    for round in 0..rounds {
        if with_turn {
            let by_kubelet = kubelet_deletes(stage, size).await?;
            println!(
                "{pods:3} pods: kubelet {}, {:.2} ms CPU per pod",
                by_kubelet.pods, by_kubelet.cpu
            );
            measured.kubelet.push(by_kubelet);
        }
        let direct = direct(stage, &agent, &cri, size);
        let (direct, by_agent) = round::both(round, direct, by_agent(stage, &agent, size)).await?;
        println!("{}", measured.add(direct, by_agent));
    }
    let code = agent.stop().await?;
    ensure!(code == Some(0), "the agent ended with exit code {code:?}");
    Ok(measured)
}

async fn direct(stage: &Stage, agent: &AgentProcess, cri: &Cri, size: Size) -> Result<Figures> {
    let pods = orphans(stage, agent, size).await?;
    let figures = round::direct_calls(stage, cri, &pods).await?;
    // No kubelet confirms the deletion.
    round::request_deletion(stage, &pods, Some(0)).await?;
    Ok(figures)
}

async fn by_agent(stage: &Stage, agent: &AgentProcess, size: Size) -> Result<Agent> {
    let pods = orphans(stage, agent, size).await?;
    round::agent_deletes(stage, agent, &pods).await
}

/// Pods whose kubelet was killed, and for which the agent has taken over.
async fn orphans(stage: &Stage, agent: &AgentProcess, size: Size) -> Result<Vec<StartedPod>> {
    let kubelet = Kubelet::start(stage).await?;
    let pods = kubelet.run_pods(stage, &size.manifests()).await?;
    kubelet.crash();
    let active = eventually(LIMIT, "the agent to take over", async || {
        Ok((agent.status().await?["role"]["role"] == "active").then_some(()))
    });
    agent.during(active).await?;
    Ok(pods)
}

async fn kubelet_deletes(stage: &Stage, size: Size) -> Result<ByKubelet> {
    let kubelet = Kubelet::start(stage).await?;
    let pods = kubelet.run_pods(stage, &size.manifests()).await?;
    sleep(SETTLE).await;
    let usage = Usage::of(kubelet.pid());
    let before = usage.cpu()?;
    let times = round::delete(stage, &pods).await?;
    let cpu = round::ms_per_pod(usage.cpu()? - before, &pods);
    round::wait_until_clean(stage, &pods).await?;
    kubelet.crash();
    // It removes sandboxes after a minute or so.
    stage.starter.clear_all_away(&pods).await?;
    Ok(ByKubelet {
        pods: Figures::of_seconds(&times),
        cpu,
    })
}
