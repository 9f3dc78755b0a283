//! The stage of successive runs: a private containerd and API server, with other pods that must not be changed.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_cri::v1::{ContainerState, ListContainersRequest, ListPodSandboxRequest, PodSandboxState};
use serde_json::{Value, json};
use testbed::{
    apiserver::{Config, MemApiServer},
    containerd::Containerd,
    pods::StartedPod,
    stage::Stage,
};

use super::{
    drivers::{Drivers, Storage, demand},
    pods::{POLITE, simple},
    scene::Scene,
};

pub struct SharedStage {
    pub api: Arc<MemApiServer>,
    /// `None` during a run.
    pub stage: Option<Arc<Stage>>,
    pub drivers: Arc<Drivers>,
    /// Volume and device of one of the other pods, from the same drivers.
    pub kept: Storage,
    node: String,
    other_pods: Vec<OtherPod>,
}

struct OtherPod {
    pod: StartedPod,
    object: Value,
    /// API path of its object.
    path: String,
}

impl SharedStage {
    pub async fn set(name: &str) -> Result<Self> {
        let api = Arc::new(MemApiServer::start(Config::default()).await?);
        let stage = Arc::new(Stage::set_on(Box::new(Arc::clone(&api)), name).await?);
        let drivers = Arc::new(Drivers::start(&stage)?);
        let scene = Scene::new(stage, None, "other-pods".to_owned()).await?;
        let mut lives = simple("lives", 10, POLITE);
        demand(&mut lives);
        let (lives, kept) = drivers.run(&scene, lives, None).await?;
        let fixed = static_pod(&scene).await?;
        let mut other_pods = Vec::new();
        for pod in [lives, fixed] {
            let path = scene.path(&pod.identity.name);
            let object = scene.object(&pod.identity.name).await?;
            other_pods.push(OtherPod { pod, object, path });
        }
        let Scene { stage, .. } = scene;
        Ok(Self {
            api,
            stage: Some(stage),
            drivers,
            kept,
            node: name.to_owned(),
            other_pods,
        })
    }

    /// The agent's user name.
    pub fn user(&self) -> String {
        format!("system:node:{}", self.node)
    }

    /// The other pods still run, and their objects are unchanged.
    pub async fn other_pods_are_unchanged(&self, stage: &Stage) -> Result<()> {
        self.kept.is_unchanged(stage).await?;
        for OtherPod { pod, object, path } in &self.other_pods {
            let now = stage.admin.get(path).await?.ok()?;
            ensure!(now == *object, "{path} was changed from\n{object}\nto\n{now}");
            let running = running(&stage.containerd, pod).await?;
            ensure!(
                running.len() == pod.containers.len() + 1,
                "of {path} runs only {running:?}"
            );
        }
        Ok(())
    }
}

/// A static pod whose mirror is being deleted.
async fn static_pod(scene: &Scene) -> Result<StartedPod> {
    let mut pod = simple("static", 10, POLITE);
    pod["metadata"]["namespace"] = scene.namespace.as_str().into();
    pod["spec"]["nodeName"] = scene.stage.node.as_str().into();
    pod["metadata"]["annotations"] = json!({
        "kubernetes.io/config.mirror": "1234",
        "kubernetes.io/config.hash": "1234",
        "kubernetes.io/config.source": "file",
    });
    scene.give_out(&mut pod)?;
    let stored = scene.stage.admin.create_pod(&pod).await?;
    let started = scene.stage.starter.start(&stored).await?;
    scene.delete(&started, None).await?;
    Ok(started)
}

/// Running containers and ready sandboxes of a pod, according to the runtime.
pub async fn running(containerd: &Containerd, pod: &StartedPod) -> Result<Vec<String>> {
    let mut cri = containerd.cri();
    let containers = cri.list_containers(ListContainersRequest::default()).await;
    let containers = containers.context("list containers")?.into_inner().containers;
    let sandboxes = cri.list_pod_sandbox(ListPodSandboxRequest::default()).await;
    let sandboxes = sandboxes.context("list sandboxes")?.into_inner().items;
    let containers = containers
        .into_iter()
        .filter(|it| it.pod_sandbox_id == pod.sandbox_id && it.state() == ContainerState::ContainerRunning)
        .map(|it| format!("container {}", it.metadata.unwrap_or_default().name));
    let sandboxes = sandboxes
        .into_iter()
        .filter(|it| it.id == pod.sandbox_id && it.state() == PodSandboxState::SandboxReady)
        .map(|_| "the sandbox".to_owned());
    Ok(containers.chain(sandboxes).collect())
}
