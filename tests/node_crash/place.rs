//! Where runs follow each other: a containerd and an API server of their own, and pods beside, which nobody may touch.

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

pub struct Place {
    pub api: Arc<MemApiServer>,
    /// While no run has it.
    pub stage: Option<Arc<Stage>>,
    pub drivers: Arc<Drivers>,
    /// What one of the pods beside has of the same drivers.
    pub kept: Storage,
    node: String,
    beside: Vec<Beside>,
}

struct Beside {
    pod: StartedPod,
    object: Value,
    /// Path of its object.
    path: String,
}

// === impl Place ===

impl Place {
    pub async fn set(name: &str) -> Result<Self> {
        let api = Arc::new(MemApiServer::start(Config::default()).await?);
        let stage = Arc::new(Stage::set_on(Box::new(Arc::clone(&api)), name).await?);
        let drivers = Arc::new(Drivers::start(&stage)?);
        let scene = Scene::new(stage, None, "beside".to_owned()).await?;
        let mut lives = simple("lives", 10, POLITE);
        demand(&mut lives);
        let (lives, kept) = drivers.run(&scene, lives, None).await?;
        let fixed = static_pod(&scene).await?;
        let mut beside = Vec::new();
        for pod in [lives, fixed] {
            let path = scene.path(&pod.identity.name);
            let object = scene.object(&pod.identity.name).await?;
            beside.push(Beside { pod, object, path });
        }
        let Scene { stage, .. } = scene;
        Ok(Self {
            api,
            stage: Some(stage),
            drivers,
            kept,
            node: name.to_owned(),
            beside,
        })
    }

    /// The user that the agent is to the API server.
    pub fn user(&self) -> String {
        format!("system:node:{}", self.node)
    }

    /// Run on as they were: the pods beside, and their objects.
    pub async fn all_beside_are_untouched(&self, stage: &Stage) -> Result<()> {
        self.kept.is_there(stage).await?;
        for Beside { pod, object, path } in &self.beside {
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

/// Its mirror is being deleted all the while.
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

/// What of a pod runs by the runtime's word: containers and ready sandboxes.
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
