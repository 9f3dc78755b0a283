//! An idle agent beside a kubelet that runs a full node. Everything is real, and the agent gets no requests while it is measured.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::{
    net::UnixDatagram,
    time::{Instant, sleep, sleep_until},
};

use super::{
    Table, machine, program,
    usage::{ANONYMOUS, OF_FILES, PEAK, RESIDENT, Usage},
};
use crate::{
    containerd::{POLITE, TOOL_IMAGE},
    control_plane::ControlPlane,
    kubelet::Kubelet,
    stage::{NODE, PODS, Stage},
};

/// Pause after the pods have started, and again after the agent has.
const SETTLE: Duration = Duration::from_secs(30);
const INTERVALS: u32 = 10;
/// One pod in this many has a container that exits after 45 s, and is restarted.
const RESTARTING: usize = 20;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long it is measured; with a unit, such as 10m.
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = humantime::parse_duration)]
    time: Duration,
    /// How many pods the kubelet runs.
    #[arg(long, value_name = "N", default_value_t = 110)]
    pods: usize,
    /// The agent [default: pod-teardown beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
}

impl Args {
    pub async fn run(&self) -> Result<bool> {
        let agent = program(self.agent.as_ref(), "pod-teardown")?;
        let stage = Stage::set_for_a_kubelet(Box::new(ControlPlane::start().await?), NODE).await?;
        println!("containerd {}, {}", stage.containerd.version(), machine()?);
        let measured = self.measure(&stage, &agent).await;
        stage.containerd.stop().await?;
        let (table, restarts) = measured?;
        let time = humantime::format_duration(self.time);
        let title = format!(
            "{} pods beside a kubelet, {time}; {restarts} restarts of containers",
            self.pods
        );
        println!("\n{METHOD}\n\n{}", table.text(&title));
        Ok(true)
    }

    async fn measure(&self, stage: &Stage, program: &std::path::Path) -> Result<(Table, i64)> {
        let kubelet = Kubelet::start(stage).await?;
        let settings = json!({ "metadata": { "name": "settings" }, "data": { "settings.yaml": "level: info\n" } });
        let path = "/api/v1/namespaces/default/configmaps";
        stage.admin.create(path, &settings).await?.ok()?;
        let pods: Vec<_> = (0..self.pods).map(pod).collect();
        kubelet.run_pods(stage, &pods).await?;
        println!("All pods run");
        sleep(SETTLE).await;
        // As its unit starts it, without the service manager.
        let socket = stage.containerd.workspace().dir().join("notify.sock");
        let notified = UnixDatagram::bind(&socket).with_context(|| format!("listen at {}", socket.display()))?;
        let agent = stage
            .agent(program)?
            .flag("--mode", "auto")
            .variable("NOTIFY_SOCKET", &socket)
            .variable("WATCHDOG_USEC", "60000000")
            .start()
            .await?;
        let sampling = async {
            sleep(SETTLE).await;
            let restarted = restarts(stage).await?;
            let table = self.sample(Usage(agent.pid().context("the agent has ended")?)).await?;
            let status = agent.status().await?;
            ensure!(
                status["role"]["reason"] == "kubelet-alive",
                "the agent is not standby: {status}"
            );
            Ok((table, restarts(stage).await? - restarted))
        };
        let receiving = async {
            let mut buffer = [0; 4096];
            while notified.recv(&mut buffer).await.is_ok() {}
        };
        let sampled = tokio::select! {
            sampled = sampling => sampled?,
            () = receiving => bail!("the notify socket cannot be read"),
        };
        agent.stop().await?;
        kubelet.stop().await?;
        Ok(sampled)
    }

    async fn sample(&self, usage: Usage) -> Result<Table> {
        let mut table = Table::default();
        let begin = (Instant::now(), usage.cpu()?);
        let mut last = begin;
        for interval in 0..=INTERVALS {
            sleep_until(begin.0 + self.time / INTERVALS * interval).await;
            table.add_with_goal("resident", "MiB", Some(10.0), [usage.mib(RESIDENT)?]);
            table.add("  of it pages of files", "MiB", [usage.mib(OF_FILES)?]);
            table.add("  of it anonymous", "MiB", [usage.mib(ANONYMOUS)?]);
            let now = (Instant::now(), usage.cpu()?);
            let share =
                |since: (Instant, Duration)| 100.0 * (now.1 - since.1).as_secs_f64() / (now.0 - since.0).as_secs_f64();
            if interval == INTERVALS {
                table.add("resident, peak since the start", "MiB", [usage.mib(PEAK)?]);
                table.add_with_goal("CPU, of one processor", "%", Some(0.02), [share(begin)]);
            }
            table.add("CPU, each tenth of the time", "%", (interval > 0).then(|| share(last)));
            last = now;
        }
        Ok(table)
    }
}

const METHOD: &str = "\
Control plane, containerd and kubelet are real, and the agent has the node's credentials, its defaults, and a service manager
that it notifies. Resident memory as the kernel counts it for the process, in ten samples and one at the begin; CPU: user
and system time of all its threads, of one processor. No other client queries the agent.";

/// Number of container restarts so far.
async fn restarts(stage: &Stage) -> Result<i64> {
    let pods = stage.admin.list(PODS, &[]).await?.ok()?;
    let pods = pods["items"].as_array().into_iter().flatten();
    let containers = pods.flat_map(|pod| pod["status"]["containerStatuses"].as_array().into_iter().flatten());
    Ok(containers
        .filter_map(|container| container["restartCount"].as_i64())
        .sum())
}

/// A typical pod.
fn pod(index: usize) -> Value {
    let app = format!("app-{}", index / 5);
    let mut containers = vec![container("main", POLITE)];
    if index.is_multiple_of(RESTARTING) {
        containers.push(container("restarts", "sleep 45"));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{app}-{index}"),
            "labels": { "app": app, "pod-template-hash": "5d8f7c9b64" },
            "annotations": { "example.com/checksum": "3f5a1c0d8e7b6a4925c1f0e3d2b4a6978c5e1f0a" },
        },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": containers,
            "volumes": [
                { "name": "settings", "configMap": { "name": "settings" } },
                { "name": "scratch", "emptyDir": {} },
            ],
        },
    })
}

fn container(name: &str, script: &str) -> Value {
    json!({
        "name": name,
        "image": TOOL_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "env": [
            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
            { "name": "LOG_LEVEL", "value": "info" },
        ],
        "lifecycle": { "preStop": { "exec": { "command": ["sleep", "1"] } } },
        "ports": [{ "name": "http", "containerPort": 8080 }],
        "resources": { "requests": { "cpu": "1m", "memory": "8Mi" }, "limits": { "memory": "64Mi" } },
        "volumeMounts": [
            { "name": "settings", "mountPath": "/etc/app", "readOnly": true },
            { "name": "scratch", "mountPath": "/scratch" },
        ],
    })
}
