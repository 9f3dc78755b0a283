//! The scene of one claim: a stage, its agent, a namespace, and helpers.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use pod_teardown::model::trace::Trace;
use serde_json::{Value, json};
use testbed::{
    pods::StartedPod,
    rest::Patch,
    stage::{AgentProcess, Stage},
    wait::until_ok,
};
use tokio::time::Instant;

use super::{history::History, pods};

/// The agent under test.
pub const AGENT: &str = env!("CARGO_BIN_EXE_pod-teardown");
/// Longest wait on any machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The scene of one claim.
pub struct Scene {
    pub stage: Arc<Stage>,
    /// Its running agent.
    pub agent: Option<Arc<AgentProcess>>,
    /// Namespace of this claim.
    pub namespace: String,
    pods: Mutex<Vec<StartedPod>>,
}

/// The end of a pod's grace period, and when the agent was started since the pod's termination began: of its `timeline -ojson`.
pub fn grace_end(timeline: &str) -> Result<(Timestamp, Option<Timestamp>)> {
    let [trace]: [Trace; 1] = serde_json::from_str(timeline)?;
    let milliseconds = trace.grace_end_ms.context("its grace period has begun")?;
    let end = trace.began + SignedDuration::from_millis(milliseconds.try_into()?);
    Ok((end, trace.resumed))
}

pub async fn agent_on(stage: &Stage) -> Result<AgentProcess> {
    stage.start_agent(Path::new(AGENT)).await
}

impl Scene {
    pub async fn new(stage: Arc<Stage>, agent: Option<Arc<AgentProcess>>, namespace: String) -> Result<Self> {
        let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } });
        stage.admin.create("/api/v1/namespaces", &object).await?.ok()?;
        Ok(Self {
            stage,
            agent,
            namespace,
            pods: Mutex::default(),
        })
    }

    /// Path of a pod in the API.
    pub fn path(&self, name: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{name}", self.namespace)
    }

    /// Runs a pod on the stage's node.
    pub async fn run(&self, pod: Value) -> Result<StartedPod> {
        let started = self.run_all(vec![pod]).await?;
        started.into_iter().next().context("one pod in, one pod out")
    }

    pub async fn run_all(&self, pods: Vec<Value>) -> Result<Vec<StartedPod>> {
        let mut dressed = Vec::new();
        for mut pod in pods {
            pod["metadata"]["namespace"] = self.namespace.as_str().into();
            self.give_out(&mut pod)?;
            dressed.push(pod);
        }
        let started = self.stage.run_pods(&dressed).await?;
        self.known().extend(started.iter().cloned());
        for pod in &started {
            self.ready(pod).await?;
        }
        Ok(started)
    }

    /// Creates an empty `/out` for a pod and mounts it.
    #[allow(
        clippy::disallowed_methods,
        reason = "the directory is the test's own, not the agent's work"
    )]
    pub fn give_out(&self, pod: &mut Value) -> Result<()> {
        let out = self.out(pod["metadata"]["name"].as_str().unwrap_or_default());
        if out.exists() {
            // It may be of an earlier pod with this name.
            fs::remove_dir_all(&out).with_context(|| format!("remove {}", out.display()))?;
        }
        fs::create_dir_all(&out).with_context(|| format!("create {}", out.display()))?;
        pods::mount_out(pod, &out.display().to_string());
        Ok(())
    }

    /// Waits until all containers of a pod have set their traps.
    pub async fn ready(&self, pod: &StartedPod) -> Result<()> {
        until_ok(PATIENCE, async || {
            for container in pod.containers.keys() {
                let file = self.out(&pod.identity.name).join(pods::ready(container));
                ensure!(file.exists(), "container {container} does not get ready");
            }
            Ok(())
        })
        .await
    }

    pub async fn delete(&self, pod: &StartedPod, grace: Option<i64>) -> Result<()> {
        let deleted = self.stage.admin.delete_pod(&self.namespace, &pod.identity.name, grace);
        deleted.await?;
        Ok(())
    }

    /// Waits until the pod's object is deleted.
    pub async fn gone(&self, pod: &StartedPod) -> Result<()> {
        let gone = self
            .stage
            .admin
            .wait_gone(&self.namespace, &pod.identity.name, pod.uid(), PATIENCE);
        Ok(gone.await?)
    }

    /// Waits until nothing of the pod is left on the node.
    pub async fn clean(&self, pod: &StartedPod) -> Result<()> {
        until_ok(PATIENCE, async || {
            let left = self.stage.leftovers(std::slice::from_ref(pod)).await?;
            ensure!(left.is_empty(), "of {} is left:\n{left}", pod.identity.name);
            Ok(())
        })
        .await
    }

    /// Waits until the object is deleted and the node is clean.
    pub async fn gone_and_clean(&self, pod: &StartedPod) -> Result<()> {
        self.gone(pod).await?;
        self.clean(pod).await
    }

    /// Deletes a pod and waits until nothing of it is left. Returns how long its object stayed.
    pub async fn take_down(&self, pod: &StartedPod) -> Result<Duration> {
        let start = Instant::now();
        self.delete(pod, None).await?;
        self.gone(pod).await?;
        let took = start.elapsed();
        self.clean(pod).await?;
        Ok(took)
    }

    /// Records all states of a pod's object from now on.
    pub async fn follow(&self, pod: &StartedPod) -> Result<History> {
        History::follow(self, pod).await
    }

    /// The pod's current object.
    pub async fn object(&self, name: &str) -> Result<Value> {
        Ok(self.stage.admin.get(&self.path(name)).await?.ok()?)
    }

    /// Patches the pod's object or, with `/status` after its name, its status.
    pub async fn merge(&self, name: &str, patch: &Value) -> Result<Value> {
        let path = self.path(name);
        Ok(self.stage.admin.patch(&path, Patch::Merge, patch).await?.ok()?)
    }

    /// Waits for an event about a pod.
    pub async fn event(&self, pod: &StartedPod, reason: &str) -> Result<Value> {
        until_ok(PATIENCE, async || {
            let events = self.events(pod).await?;
            let found = events.iter().find(|event| event["reason"] == reason);
            found
                .cloned()
                .with_context(|| format!("no event {reason}, but {events:?}"))
        })
        .await
    }

    pub async fn events(&self, pod: &StartedPod) -> Result<Vec<Value>> {
        let path = format!("/api/v1/namespaces/{}/events", self.namespace);
        let list = self.stage.admin.get(&path).await?.ok()?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let about = |event: &Value| event["involvedObject"]["uid"] == pod.uid();
        Ok(items.into_iter().filter(about).collect())
    }

    /// The `/out` directory of a pod with this name.
    pub fn out(&self, name: &str) -> PathBuf {
        let dir = self.stage.containerd.workspace().dir().join("out");
        dir.join(&self.namespace).join(name)
    }

    /// The lines in a pod's `/out/log`.
    pub fn logged(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.out(name).join("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until a pod has written this line to `/out/log`.
    pub async fn wait_for_line(&self, name: &str, line: &str) -> Result<()> {
        until_ok(PATIENCE, async || {
            let log = self.logged(name);
            ensure!(
                log.iter().any(|said| said == line),
                "{name} does not write {line:?}, but {log:?}"
            );
            Ok(())
        })
        .await
    }

    /// Name of a pod for the command line.
    pub fn name(&self, pod: &str) -> String {
        format!("{}/{pod}", self.namespace)
    }

    /// Output of the agent's command line.
    pub async fn ask(&self, arguments: &[&str]) -> Result<String> {
        self.agent.as_ref().context("no agent runs")?.ask(arguments).await
    }

    /// Waits until `why` shows all these texts about a pod, and returns its output.
    pub async fn why(&self, pod: &str, texts: &[&str]) -> Result<String> {
        until_ok(PATIENCE, async || {
            let shown = self.ask(&["why", &self.name(pod)]).await?;
            let missing = texts.iter().find(|text| !shown.contains(**text));
            ensure!(missing.is_none(), "why does not show {missing:?}, but:\n{shown}");
            Ok(shown)
        })
        .await
    }

    /// Starts the agent, and waits until it watches.
    pub async fn start_agent(&mut self) -> Result<()> {
        self.agent = Some(Arc::new(agent_on(&self.stage).await?));
        Ok(())
    }

    /// Starts an agent without waiting.
    pub fn spawn_agent(&self) -> Result<AgentProcess> {
        self.stage.agent(Path::new(AGENT))?.spawn()
    }

    /// Kills the agent with SIGKILL.
    pub async fn crash_agent(&mut self) -> Result<()> {
        self.own_agent()?.crash().await
    }

    /// Stops the agent, which must exit successfully.
    pub async fn stop_agent(&mut self) -> Result<()> {
        self.own_agent()?.stop().await
    }

    /// Takes this scene's agent.
    pub fn own_agent(&mut self) -> Result<AgentProcess> {
        let agent = self.agent.take().context("no agent runs")?;
        Arc::into_inner(agent).context("the agent serves other claims, too")
    }

    /// `status` of the agent.
    pub async fn status(&self) -> Result<Value> {
        self.agent.as_ref().context("no agent runs")?.status().await
    }

    /// Takes a pod down. After that the agent has seen and handled all earlier writes.
    pub async fn fence(&self) -> Result<()> {
        let fence = self.run(pods::simple("fence", 10, pods::POLITE)).await?;
        self.take_down(&fence).await.map(drop)
    }

    /// Checks that a pod was not touched: its containers run and its object is unchanged.
    pub async fn untouched(&self, pod: &StartedPod, before: &Value) -> Result<()> {
        for container in pod.containers.keys() {
            let alive = self.stage.starter.exec(pod, container, &["true"]).await;
            alive.with_context(|| format!("container {container} of {} has to run", pod.identity.name))?;
        }
        let now = self.object(&pod.identity.name).await?;
        if now != *before {
            bail!("the object was changed from\n{before}\nto\n{now}");
        }
        Ok(())
    }

    /// Details for a failure.
    pub async fn explain(&self) -> String {
        let log = self.stage.containerd.workspace().dir().join("agent/log");
        let log = fs::read_to_string(log).unwrap_or_default();
        let (ours, all): (Vec<&str>, Vec<&str>) = (
            log.lines().filter(|line| line.contains(&self.namespace)).collect(),
            log.lines().collect(),
        );
        let tail = |lines: &[&str], count: usize| lines[lines.len().saturating_sub(count)..].join("\n");
        let mut text = format!(
            "\n--- the agent's log about {}\n{}\n--- its end\n{}",
            self.namespace,
            tail(&ours, 40),
            tail(&all, 15)
        );
        let Some(agent) = &self.agent else { return text };
        let names: Vec<_> = self.known().iter().map(|pod| pod.identity.name.clone()).collect();
        let mut output = vec![agent.ask(&["status"]).await];
        for name in names.iter().take(5) {
            output.push(agent.timeline(&self.namespace, name).await);
        }
        for output in output {
            let output = output.unwrap_or_else(|error| format!("{error:#}"));
            text.push_str(&format!("\n---\n{}", output.trim_end()));
        }
        text
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Vec<StartedPod>> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
