//! An agent that only observes beside a real kubelet: it compares the kubelet's terminations, and touches nothing.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount};
use pod_teardown::{
    model::observation::{LeftoverKind, Observation, Verdict},
    ops::{
        admin::{self, report::request_path},
        client,
        report::{self, Report},
        status::StatusReport,
    },
};
use serde_json::{Value, json};
use testbed::{
    control_plane::ControlPlane,
    kubelet::Kubelet,
    mounts::Mounted,
    recorder::{Record, Recorder, expect_reads},
    stage::Stage,
    wait::eventually,
};
use tokio::{sync::OnceCell, time};

use crate::{
    half::Half,
    scenario::{Scenario, ends, runs, single},
    scenarios,
    sweeps::Sweeps,
};

const AGENT: &str = env!("CARGO_BIN_EXE_pod-teardown");
const NODE: &str = "node-0";
/// How many rounds run one after the other, each with a pod of every scenario; 1 if it is not set.
const ROUNDS: &str = "ROUNDS";
/// Pod and its namespace, of which something outside of the kubelet's knowledge is left.
const LEFT: &str = "left-behind";
/// A round takes three minutes; the margin is for a machine under load.
const LIMIT: Duration = Duration::from_secs(2400);
/// The kubelet has three minutes for leftovers.
const REPORT_LIMIT: Duration = Duration::from_secs(360);
const START_LIMIT: Duration = Duration::from_secs(180);
/// Exits of containers that a kubelet removes within the same second cannot always be seen, least on a busy machine. At
/// most one pod of so many may have such an exit.
const PODS_PER_UNKNOWN: usize = 15;

/// Checks one claim.
pub type Claim = fn(&Run) -> Result<()>;

pub const CLAIMS: [(&str, Claim); 3] = [
    (
        "finds_only_documented_differences_in_a_kubelets_terminations",
        only_documented_differences,
    ),
    ("touches_nothing_and_only_reads_the_runtime", touches_nothing),
    ("names_what_a_kubelet_has_left", names_leftovers),
];

/// The run that the claims share.
pub struct Observed {
    scenarios: Vec<Scenario>,
    rounds: usize,
    // The error as text, since every claim reports it.
    run: OnceCell<Result<Run, String>>,
}

/// What was found.
pub struct Run {
    report: Report,
    text: String,
    status: String,
    refused: String,
    /// Calls of the runtime by the agent.
    calls: Vec<String>,
    /// Its requests to the API server that are no reads.
    writes: Vec<Value>,
    /// Mount that was left.
    mount: PathBuf,
    pods: usize,
}

impl Observed {
    /// With the scenarios whose names contain `KINDS`, else with all.
    pub fn new() -> Self {
        let kinds = env::var("KINDS").unwrap_or_default();
        let mut scenarios = scenarios::all();
        scenarios.retain(|scenario| scenario.name.contains(&kinds));
        Self {
            scenarios,
            rounds: env::var(ROUNDS).map_or(1, |rounds| rounds.parse().expect("ROUNDS is a number")),
            run: OnceCell::new(),
        }
    }

    /// Checks a claim about the run.
    pub async fn check(&self, claim: Claim) -> Result<(), String> {
        let run = || async {
            let run = time::timeout(LIMIT, run(&self.scenarios, self.rounds)).await;
            let run = run.context("it is not over in time").and_then(|run| run);
            run.map_err(|error| format!("{error:#}"))
        };
        let run = self.run.get_or_init(run).await.as_ref().map_err(Clone::clone)?;
        claim(run).map_err(|error| format!("{error:#}"))
    }
}

async fn run(scenarios: &[Scenario], rounds: usize) -> Result<Run> {
    let plane = ControlPlane::start().await?;
    let audit_log = plane.audit_log();
    let stage = Stage::set_for_a_kubelet(Box::new(plane), NODE).await?;
    let record = Record::default();
    let path = stage.containerd.workspace().dir().join("agent.sock");
    let recorder = Recorder::start(path, stage.containerd.socket(), "agent", &record)?;
    let kubelet = Kubelet::start(&stage).await?;
    let sweeps = Sweeps::watch(&stage.starter.dirs().pod_logs_dir)?;
    let agent = stage.agent(Path::new(AGENT))?.flag("--mode", "observe");
    let agent = agent.flag("--cri-endpoint", recorder.endpoint()).start().await?;
    let observed = agent.during(terminate(&stage, scenarios, rounds, &sweeps));
    let mounted = observed
        .await
        .with_context(|| format!("the kubelet's log ends with:\n{}", kubelet.log_tail()))?;

    let socket = stage.containerd.workspace().dir().join("agent/admin.sock");
    let pods = rounds * scenarios.len() + 1;
    let all = async || {
        let report: Report = client::get(&socket, &request_path(Duration::from_secs(86_400))).await?;
        Ok((report.terminations >= pods as u64).then_some(report))
    };
    let report = eventually(REPORT_LIMIT, "all terminations to be reported", all).await;
    let report = report.with_context(|| format!("the agent's log ends with:\n{}", agent.log_tail()))?;
    let text = agent.ask(&["report", "--since", "1d", "-o", "wide"]).await?;
    let status = agent.ask(&["status"]).await?;
    let structured: StatusReport = client::get(&socket, admin::STATUS).await?;
    ensure!(
        structured.counters.observations.values().sum::<u64>() >= pods as u64,
        "{:?}",
        structured.counters.observations
    );
    let refused = match agent.ask(&["resume"]).await {
        Ok(text) => text,
        Err(error) => format!("{error:#}"),
    };
    let log = fs::read_to_string(&audit_log).context("read the audit log")?;
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let is_write = |event: &Value| {
        let verb = event["verb"].as_str().unwrap_or_default();
        let by_agent = event["userAgent"]
            .as_str()
            .is_some_and(|it| it.starts_with("pod-teardown/"));
        by_agent && !["get", "list", "watch"].contains(&verb)
    };
    Ok(Run {
        report,
        text,
        status,
        refused,
        calls: record.methods("agent"),
        writes: events.filter(is_write).collect(),
        mount: mounted.0.clone(),
        pods,
    })
}

/// Runs and deletes all pods, beside the one that leaves something.
async fn terminate(stage: &Stage, scenarios: &[Scenario], rounds: usize, sweeps: &Sweeps) -> Result<Mounted> {
    let namespace = json!({ "metadata": { "name": LEFT } });
    stage.admin.create("/api/v1/namespaces", &namespace).await?.ok()?;
    let path = format!("/api/v1/namespaces/{LEFT}/pods");
    let mut spec = single("Always", &ends(0));
    spec["nodeName"] = NODE.into();
    let pod = json!({ "metadata": { "name": LEFT }, "spec": spec });
    let pod = stage.admin.create(&path, &pod).await?.ok()?;
    let path = format!("{path}/{LEFT}");
    let is_running = async || Ok(runs(&stage.admin.get(&path).await?.ok()?).then_some(()));
    eventually(START_LIMIT, "the pod that leaves something to run", is_running).await?;
    let uid = pod["metadata"]["uid"].as_str().context("a UID")?;
    let dir = stage.starter.dirs().pods().join(uid).join("foreign");
    fs::create_dir(&dir).with_context(|| format!("create {}", dir.display()))?;
    mount(Some("tmpfs"), &dir, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    let mounted = Mounted(dir);
    stage.admin.delete(&path, None).await?.ok()?;
    for round in 1..=rounds {
        let half = Half {
            namespace: &format!("observed-{round}"),
            stage,
            scenarios,
            keeps_objects: false,
        };
        half.create().await?;
        half.write_to_running().await?;
        half.wait_for_loops().await?;
        half.wait_reached(|| sweeps.wait_for_quiet()).await?;
        half.end_without_objects().await?;
    }
    Ok(mounted)
}

/// The observations but for the one of the pod that leaves something.
fn of_scenarios(run: &Run) -> impl Iterator<Item = &Observation> {
    run.report.observations.iter().filter(|it| it.name != LEFT)
}

#[allow(clippy::print_stdout, reason = "the table is what the run is for")]
fn only_documented_differences(run: &Run) -> Result<()> {
    let mut counts = BTreeMap::<(Verdict, String), usize>::new();
    for observation in of_scenarios(run) {
        let mut why: Vec<_> = observation.differences.iter().map(|it| it.documented.clone()).collect();
        why.dedup();
        let mut why: Vec<_> = why
            .into_iter()
            .map(|it| it.unwrap_or("NOT DOCUMENTED".to_owned()))
            .collect();
        why.extend(observation.reason.clone());
        why.extend(observation.leftovers.iter().map(|it| format!("left {}", it.kind)));
        *counts.entry((observation.verdict, why.join("; "))).or_default() += 1;
    }
    println!("{}\n| verdict | why | pods |\n|---|---|---|", run.status);
    for ((verdict, why), count) in &counts {
        println!("| {verdict} | {why} | {count} |");
    }
    println!("\n{}", run.text);
    ensure!(run.report.terminations == run.pods as u64, "{} pods", run.pods);
    let is_wrong = |it: &&Observation| match it.verdict {
        Verdict::Same | Verdict::Unknown => false,
        Verdict::Different => !it.differs_as_documented(),
        Verdict::Leftovers => true,
    };
    let wrong: Vec<_> = of_scenarios(run).filter(is_wrong).collect();
    ensure!(wrong.is_empty(), "{wrong:#?}");
    let unknown: Vec<_> = of_scenarios(run).filter(|it| it.verdict == Verdict::Unknown).collect();
    ensure!(unknown.len() * PODS_PER_UNKNOWN <= run.pods, "{unknown:#?}");
    Ok(())
}

fn touches_nothing(run: &Run) -> Result<()> {
    expect_reads(&run.calls, &["ListPodSandbox", "ListContainers", "ContainerStatus"])?;
    // Its own reports are about the Node.
    let is_of_node = |event: &&Value| match event["objectRef"]["resource"].as_str() {
        Some("nodes") => event["objectRef"]["subresource"] == "status",
        Some("events") => event["objectRef"]["namespace"] == "default",
        _ => false,
    };
    let others: Vec<_> = run.writes.iter().filter(|event| !is_of_node(event)).collect();
    ensure!(others.is_empty(), "{others:#?}");
    ensure!(run.status.contains("observing"), "{}", run.status);
    ensure!(run.refused.contains("--mode observe"), "{}", run.refused);
    Ok(())
}

fn names_leftovers(run: &Run) -> Result<()> {
    let mut all = run.report.observations.iter();
    let left = all
        .find(|it| it.name == LEFT)
        .context("the pod that leaves something")?;
    ensure!(left.verdict == Verdict::Leftovers, "{left:#?}");
    let path = run.mount.display().to_string();
    let is_mount = left
        .leftovers
        .iter()
        .any(|it| it.kind == LeftoverKind::Mount && it.object == path);
    ensure!(is_mount, "{path}: {left:#?}");
    let text = report::text(&run.report, Some(Verdict::Leftovers), false);
    ensure!(text.contains(&path), "{text}");
    Ok(())
}
