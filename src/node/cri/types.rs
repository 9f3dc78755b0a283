//! State of the container runtime, in the agent's own types.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// Labels and annotations that the kubelet sets on sandboxes and containers.
pub mod keys {
    /// Label on sandboxes and containers: the pod's name.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// Label on sandboxes and containers: the pod's namespace.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// Label on sandboxes and containers: the pod's UID, which identifies a pod everywhere in the agent.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// Label on containers: the name in the pod's spec.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// Annotation on containers: number of earlier restarts.
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Annotation on containers: path of the termination message inside the container.
    pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// Annotation on containers: `File` or `FallbackToLogsOnError`.
    pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// Annotation on sandboxes: where the pod came from, `api`, `file` or `http`.
    pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
}

/// State of a container as the runtime reports it. Unknown values count as `Unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerState {
    /// Created, never started.
    Created,
    /// Its process runs.
    Running,
    /// Its process has exited; exit code and times are known.
    Exited,
    /// The runtime does not know. Treated as running.
    Unknown,
}

impl ContainerState {
    /// Whether a process of this container may exist.
    pub fn may_run(self) -> bool {
        matches!(self, Self::Running | Self::Unknown)
    }
}

/// One container of a pod, with everything that teardown and status need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// Runtime's id.
    pub id: String,
    /// Name in the pod's spec.
    pub name: String,
    /// CRI attempt, the kubelet's restart count at creation.
    pub attempt: u32,
    /// The sandbox it belongs to.
    pub sandbox_id: String,
    /// Last reported state.
    pub state: ContainerState,
    /// When it was created, by the runtime's clock.
    pub created_at: Timestamp,
    /// When it was started; `None` if never.
    pub started_at: Option<Timestamp>,
    /// When it exited; `None` while it runs.
    pub finished_at: Option<Timestamp>,
    /// Exit code; valid only if exited.
    pub exit_code: i32,
    /// Runtime's reason, such as `Completed`, `Error`, `OOMKilled`.
    pub reason: String,
    /// Runtime's message.
    pub message: String,
    /// Image as the user wrote it.
    pub image: String,
    /// Image as the runtime resolved it.
    pub image_ref: String,
    /// From the kubelet's annotation; 0 if absent or unreadable.
    pub restart_count: i32,
    /// Host path of the termination message file, if the runtime reports its mount.
    pub termination_message_file: Option<String>,
    /// Whether the end of the log replaces an empty termination message after an error.
    pub message_falls_back_to_log: bool,
    /// Host path of the container's log; empty if the runtime reports none.
    pub log_path: String,
    /// Only the list is known: the status could not be read, or has no real exit code.
    pub is_unread: bool,
}

/// One sandbox of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Runtime's id.
    pub id: String,
    /// CRI attempt.
    pub attempt: u32,
    /// Whether its network and cgroup exist, by its last reported state.
    pub is_ready: bool,
    /// When it was created, by the runtime's clock.
    pub created_at: Timestamp,
    /// Source of the pod, if the sandbox has the annotation: `api`, `file` or `http`.
    pub config_source: Option<String>,
    /// Pod IPs, the primary first; empty for the host network and if not requested.
    pub ips: Vec<String>,
}

impl Sandbox {
    /// Whether the annotation names the API server as source.
    pub fn is_from_api(&self) -> bool {
        self.config_source.as_deref() == Some("api")
    }

    /// Whether the annotation names another source, as for a static pod.
    pub fn is_from_elsewhere(&self) -> bool {
        self.config_source.as_ref().is_some_and(|source| source != "api")
    }
}

/// Sandboxes and containers of one pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimePod {
    /// Ordered by attempt descending, then creation descending, then ID.
    pub sandboxes: Vec<Sandbox>,
    /// Ordered by creation descending.
    pub containers: Vec<Container>,
}

impl RuntimePod {
    /// The newest container with this name.
    pub fn newest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// Containers that may have a process.
    pub fn possibly_running(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| container.state.may_run())
    }

    /// Whether the status of an exited container could not be read.
    pub fn has_unread_exit(&self) -> bool {
        let mut containers = self.containers.iter();
        containers.any(|it| it.state == ContainerState::Exited && it.is_unread)
    }

    /// Takes exit codes that this read lacks from an earlier one.
    #[must_use]
    pub fn with_exits_from(mut self, earlier: &Self) -> Self {
        let read = |it: &&Container| it.state == ContainerState::Exited && !it.is_unread;
        let lacks = |it: &&mut Container| it.is_unread && !it.state.may_run();
        for container in self.containers.iter_mut().filter(lacks) {
            let known = earlier.containers.iter().filter(read).find(|it| it.id == container.id);
            if let Some(known) = known {
                container.clone_from(known);
            }
        }
        self
    }

    /// Marks all containers as exited, since the kernel shows no process. The exit codes are unknown.
    #[must_use]
    pub fn with_all_exited(mut self) -> Self {
        for container in self.containers.iter_mut().filter(|it| it.state.may_run()) {
            container.state = ContainerState::Exited;
            container.is_unread = true;
        }
        for sandbox in &mut self.sandboxes {
            sandbox.is_ready = false;
        }
        self
    }

    /// Whether the pod may have a process, a network or a cgroup.
    pub fn may_run(&self) -> bool {
        self.possibly_running().next().is_some() || self.sandboxes.iter().any(|sandbox| sandbox.is_ready)
    }

    /// Whether the runtime has nothing of the pod.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

/// A sandbox together with its pod, for lists of the whole node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSandbox {
    /// The pod's UID; empty if the sandbox has no such label.
    pub pod_uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The sandbox itself; without IPs.
    pub sandbox: Sandbox,
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Container {
        /// A container as a list shows it, for tests.
        pub fn listed(name: &str, state: ContainerState) -> Self {
            Self {
                id: format!("{name}-0"),
                name: name.to_owned(),
                attempt: 0,
                sandbox_id: "s".to_owned(),
                state,
                created_at: Timestamp::UNIX_EPOCH,
                started_at: None,
                finished_at: None,
                exit_code: crate::model::pod::UNKNOWN_EXIT_CODE,
                reason: String::new(),
                message: String::new(),
                image: String::new(),
                image_ref: String::new(),
                restart_count: 0,
                termination_message_file: None,
                message_falls_back_to_log: false,
                log_path: String::new(),
                is_unread: true,
            }
        }
    }
}
