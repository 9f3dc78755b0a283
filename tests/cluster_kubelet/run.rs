//! Both halves on one node: the kubelet terminates the pods of the first half, is then killed, and the agent terminates those
//! of the second.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use testbed::{control_plane::ControlPlane, kubelet::Kubelet, mounts, stage::Stage};
use tokio::try_join;

use crate::{
    half::{Half, Outcome, Power},
    machine::Machine,
    scenario::Scenario,
    sweeps::Sweeps,
};

const AGENT: &str = env!("CARGO_BIN_EXE_pod-teardown");
const NODE: &str = "node-0";

/// Result of the run.
pub struct Report {
    /// One pair for each scenario, in their order.
    pub pairs: Vec<Pair>,
    /// Changes on the machine.
    pub changed: Vec<String>,
}

/// Results of a scenario's two pods.
pub struct Pair {
    pub kubelet: Outcome,
    pub agent: Outcome,
}

/// See the module's documentation.
pub async fn run(scenarios: &[Scenario]) -> Result<Report> {
    let before = Machine::look();
    let plane = ControlPlane::start().await?;
    let stage = Stage::set_for_a_kubelet(Box::new(plane), NODE).await?;
    // The kubelet's mount namespace has to see the mounts that protect logs.
    mounts::share(&stage.starter.dirs().pod_logs_dir)?;
    let kubelet = Kubelet::start(&stage).await?;
    let sweeps = Sweeps::watch(&stage.starter.dirs().pod_logs_dir)?;
    let of = |namespace| Half {
        namespace,
        stage: &stage,
        scenarios,
        keeps_objects: true,
    };
    let (first, second) = (of("kubelet"), of("agent"));
    let by_kubelet = async {
        try_join!(first.create(), second.create())?;
        try_join!(first.write_to_running(), second.write_to_running())?;
        try_join!(first.wait_for_loops(), second.wait_for_loops())?;
        first.wait_reached(|| sweeps.wait_for_quiet()).await?;
        let ends = first.end(&Power::Kubelet).await?;
        second.wait_reached(|| true).await?;
        Ok::<_, anyhow::Error>(ends)
    };
    let by_kubelet = by_kubelet
        .await
        .with_context(|| format!("the kubelet's log ends with:\n{}", kubelet.log_tail()))?;

    kubelet.crash();
    let changed = before.changes(&Machine::look());
    let missing = second.not_reached().await?;
    ensure!(
        missing.is_empty(),
        "not so far any more when the kubelet was killed: {missing:#?}"
    );
    let agent = stage.start_agent(Path::new(AGENT)).await?;
    let by_agent = agent.during(second.end(&Power::Agent(&agent))).await?;
    agent.stop().await?;
    let pairs = by_kubelet.into_iter().zip(by_agent);
    Ok(Report {
        pairs: pairs.map(|(kubelet, agent)| Pair { kubelet, agent }).collect(),
        changed,
    })
}
