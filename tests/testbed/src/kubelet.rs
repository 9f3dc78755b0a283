//! A real kubelet on a stage: its own root, runtime, cgroups, ports and certificates, and a mount namespace in which its
//! writes to the machine are redirected.
//!
//! `binary → config.yaml → kubeconfig → process → Node is Ready`. It uses the stage's directories, so that an agent of
//! that stage finds everything that a dead kubelet leaves.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    control_plane::{binaries, free_ports, process::Process},
    pods::{NodeDirs, StartedPod},
    stage::{PODS, Stage},
    wait::eventually,
};

const START: &str = include_str!("kubelet/start.sh");
/// It takes 10 to 15 s; the rest is for a loaded machine.
const START_LIMIT: Duration = Duration::from_secs(120);
/// Limit for the start of all pods of a full node on a busy machine.
const PODS_LIMIT: Duration = Duration::from_secs(600);
/// Pods that are created at the same time.
const CREATES: usize = 8;
/// Limit for its exit after SIGTERM.
const END_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(100);

/// A running kubelet; killed when dropped. Its pods keep running.
#[derive(Debug)]
pub struct Kubelet {
    process: Process,
}

impl Kubelet {
    /// Starts it on a stage whose node it registers; the Node is Ready when this returns.
    pub async fn start(stage: &Stage) -> Result<Self> {
        Self::start_through(stage, &stage.containerd.endpoint()).await
    }

    /// As [`Self::start`], with another runtime endpoint.
    pub async fn start_through(stage: &Stage, endpoint: &str) -> Result<Self> {
        let kubelet = Self::spawn_through(stage, endpoint).await?;
        kubelet.until_ready(stage).await
    }

    /// Starts it, with the existing configuration if it is not the first, and waits for nothing.
    pub async fn spawn_through(stage: &Stage, endpoint: &str) -> Result<Self> {
        let program = binaries::find("kubelet").await?;
        Self::spawn(stage, &program, endpoint)
    }

    fn spawn(stage: &Stage, program: &Path, endpoint: &str) -> Result<Self> {
        let dirs = stage.starter.dirs();
        let own = stage.containerd.workspace().dir().join("kubelet-process");
        fs::create_dir_all(&own).with_context(|| format!("create {}", own.display()))?;
        let file = |name: &str, text: &str| {
            let path = own.join(name);
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
            Ok::<_, anyhow::Error>(path)
        };
        let kubeconfig = file("kubeconfig", &stage.api.node_kubeconfig(&stage.node))?;
        // kubeadm's path; the agent is given the same file.
        let config = dirs.config_file();
        // It reuses its ports.
        if !own.join("log").exists() {
            fs::write(&config, configuration(dirs, &own, free_ports()?))
                .with_context(|| format!("write {}", config.display()))?;
        }
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--propagation",
            "unchanged",
            "sh",
            "-c",
            START,
            "start-kubelet",
        ]);
        command.args([own.as_path(), program]);
        command.args([
            format!("--config={}", config.display()),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--root-dir={}", dirs.kubelet_root.display()),
            format!("--cert-dir={}", own.join("pki").display()),
            format!("--container-runtime-endpoint={endpoint}"),
            format!("--hostname-override={}", stage.node),
            format!("--node-ip={}", stage.containerd.host_ip()),
            "--v=2".to_owned(),
        ]);
        let process = Process::start(command, &own.join("log"))?;
        Ok(Self { process })
    }

    async fn until_ready(mut self, stage: &Stage) -> Result<Self> {
        let path = format!("/api/v1/nodes/{}", stage.node);
        let is_ready = |condition: &Value| {
            condition["type"] == "Ready" && condition["status"] == "True" && condition["reason"] == "KubeletReady"
        };
        let ready = async || {
            let node = stage.admin.get(&path).await?.body;
            let conditions = node["status"]["conditions"].as_array();
            ensure!(conditions.is_some_and(|all| all.iter().any(is_ready)), "{conditions:?}");
            Ok(())
        };
        self.process.until_ok(START_LIMIT, ready).await?;
        Ok(self)
    }

    /// Creates pods on its node, the only ones in their namespace, and waits until they run.
    pub async fn run_pods(&self, stage: &Stage, pods: &[Value]) -> Result<Vec<StartedPod>> {
        let creates = pods.iter().map(|pod| {
            let mut pod = pod.clone();
            pod["spec"]["nodeName"] = stage.node.as_str().into();
            async move { stage.admin.create_pod(&pod).await }
        });
        let created: Vec<_> = stream::iter(creates).buffer_unordered(CREATES).try_collect().await?;
        let running = eventually(PODS_LIMIT, "the kubelet to run all pods", async || {
            let pods = stage.admin.list(PODS, &[]).await?.ok()?["items"].take();
            let pods: Vec<Value> = serde_json::from_value(pods)?;
            let run = pods.iter().filter(|pod| pod["status"]["phase"] == "Running").count();
            Ok((run == created.len()).then_some(pods))
        });
        stage.starter.find(running.await?).await
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The end of its log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// Crashes it with SIGKILL.
    pub fn crash(self) {
        drop(self);
    }

    /// Stops it as a service manager would: SIGTERM, then SIGKILL.
    pub async fn stop(mut self) -> Result<()> {
        let pid = i32::try_from(self.pid()).context("a process id of that size")?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).context("stop the kubelet")?;
        let late = Instant::now() + END_LIMIT;
        while self.process.ended()?.is_none() && Instant::now() < late {
            sleep(POLL).await;
        }
        Ok(())
    }
}

/// Everything is below the stage's directories, and nothing requires systemd, swap accounting or a cloud.
fn configuration(dirs: &NodeDirs, own: &Path, [port, health_port]: [u16; 2]) -> String {
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": health_port,
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": dirs.cgroup_driver.name(),
        "cgroupRoot": dirs.cgroup_root,
        "podLogsDir": dirs.pod_logs_dir,
        "volumePluginDir": own.join("volume-plugins"),
        // Only pods have limits: nothing is moved into other cgroups.
        "enforceNodeAllocatable": ["none"],
        "failCgroupV1": false,
        "failSwapOn": false,
        // It evicts a pod whose volume exceeds its own limit. It checks every ten seconds, with volume statistics that
        // are a minute old by default.
        "localStorageCapacityIsolation": true,
        "volumeStatsAggPeriod": "2s",
        "makeIPTablesUtilChains": false,
        // Not every test machine grants CAP_SYS_RESOURCE.
        "oomScoreAdj": 0,
        "resolvConf": "",
        // The machine's disk does not matter: no eviction and no image removal because of disk pressure.
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        // No client limits, which are not compared.
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 500,
        "eventBurst": 1000,
        // Without it, every pod has an event about missing DNS servers.
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.test",
        "maxPods": 250,
    });
    // JSON is YAML.
    format!("{config:#}\n")
}
