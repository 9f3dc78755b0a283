//! A whole node on one machine: runtime, API server, pods as a kubelet starts them, and the agent.

mod agent;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

pub use self::agent::{AgentCommand, AgentProcess};
use crate::{
    api::ApiServer,
    containerd::Containerd,
    leftovers::Leftovers,
    node_object::node_object,
    pods::{NodeDirs, PodStarter, StartedPod},
    rest::{Client, Patch},
};

/// Default name of a stage's node.
pub const NODE: &str = "node-0";
/// API path of the pods of a stage.
pub const PODS: &str = "/api/v1/namespaces/default/pods";

/// The node without its agent.
pub struct Stage {
    pub api: Box<dyn ApiServer>,
    pub node: String,
    /// The administrator's client.
    pub admin: Client,
    pub starter: PodStarter,
    /// The runtime; dropped last, because everything above is in its workspace.
    pub containerd: Containerd,
}

impl Stage {
    /// Starts a runtime and registers the node.
    pub async fn set(api: Box<dyn ApiServer>) -> Result<Self> {
        Self::set_on(api, NODE).await
    }

    /// As [`Self::set`] with a node of that name, so that several stages share an API server.
    pub async fn set_on(api: Box<dyn ApiServer>, node: &str) -> Result<Self> {
        let stage = Self::set_for_a_kubelet(api, node).await?;
        stage.register_node().await?;
        Ok(stage)
    }

    /// As [`Self::set_on`] without the Node, which a kubelet registers itself.
    pub async fn set_for_a_kubelet(api: Box<dyn ApiServer>, node: &str) -> Result<Self> {
        let containerd = Containerd::start().await?;
        let dirs = NodeDirs::create(containerd.workspace()).await?;
        let starter = PodStarter::new(&containerd, dirs);
        let admin = api.admin()?;
        Ok(Self {
            api,
            node: node.to_owned(),
            admin,
            starter,
            containerd,
        })
    }

    /// Creates the Node if missing, with this machine's identity.
    pub async fn register_node(&self) -> Result<()> {
        let node = node_object(&self.node, &self.containerd.host_ip());
        let created = self.admin.create("/api/v1/nodes", &node).await?;
        ensure!(
            matches!(created.code(), 201 | 409),
            "create node: {} {}",
            created.code(),
            created.message()
        );
        let status = json!({ "status": node["status"] });
        self.admin
            .patch(&format!("/api/v1/nodes/{}/status", self.node), Patch::Merge, &status)
            .await?
            .ok()?;
        Ok(())
    }

    /// Creates pods, starts them as a kubelet would, and reports them running.
    pub async fn run_pods(&self, pods: &[Value]) -> Result<Vec<StartedPod>> {
        let mut stored = Vec::new();
        for pod in pods {
            let mut pod = pod.clone();
            pod["spec"]["nodeName"] = self.node.as_str().into();
            stored.push(self.admin.create_pod(&pod).await?);
        }
        let started = self.starter.start_all(&stored).await?;
        for pod in &started {
            self.report(pod).await?;
        }
        Ok(started)
    }

    pub async fn run_pod(&self, pod: &Value) -> Result<StartedPod> {
        let started = self.run_pods(std::slice::from_ref(pod)).await?;
        started.into_iter().next().context("one pod in, one pod out")
    }

    /// Writes the status that a kubelet would have written.
    pub async fn report(&self, pod: &StartedPod) -> Result<()> {
        let status = json!({ "status": self.starter.status_of(pod).await? });
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/status",
            pod.identity.namespace, pod.identity.name
        );
        self.admin.patch(&path, Patch::Merge, &status).await?.ok()?;
        Ok(())
    }

    /// An agent with the node's own credentials, in mode `always`.
    pub fn agent(&self, binary: &Path) -> Result<AgentCommand> {
        AgentCommand::new(self, binary, "agent")
    }

    /// Starts it, and waits until it watches.
    pub async fn start_agent(&self, binary: &Path) -> Result<AgentProcess> {
        self.agent(binary)?.start().await
    }

    /// Output and exit code of `check` with the flags of this node's agent.
    pub async fn check(&self, binary: &Path) -> Result<(String, Option<i32>)> {
        AgentCommand::new(self, binary, "check")?.check().await
    }

    /// Leftovers of these pods on the node.
    pub async fn leftovers(&self, pods: &[StartedPod]) -> Result<Leftovers> {
        let uids = pods.iter().map(StartedPod::uid);
        Leftovers::of_all(self.starter.dirs(), self.containerd.cri(), uids).await
    }
}
