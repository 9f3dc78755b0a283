//! What this agent knows of the container runtime, in its own words: CRI protobuf ends at this file's neighbours.

use std::{collections::BTreeMap, fmt};

use jiff::Timestamp;

/// The labels and annotations by which a kubelet marks what it creates.
pub mod keys {
    /// Label on sandboxes and containers: the pod's name.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    /// Label on sandboxes and containers: the pod's namespace.
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    /// Label on sandboxes and containers: the pod's UID, the identity that everything here is decided by.
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    /// Label on containers: the name in the pod's spec.
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
    /// Annotation on containers: how often this container was restarted before.
    pub const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
    /// Annotation on containers: where the container writes its termination message, as it sees it.
    pub const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
    /// Annotation on containers: `File` or `FallbackToLogsOnError`.
    pub const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
    /// Annotation on sandboxes: where the pod came from, `api`, `file` or `http`.
    pub const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
}

/// State of a container as the runtime reports it. Anything else than the first three counts as unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContainerState {
    /// Created, never started.
    Created,
    /// Its process runs.
    Running,
    /// Its process has ended; exit code and times are known.
    Exited,
    /// The runtime cannot tell: it may be running, and is treated so.
    Unknown,
}

impl fmt::Display for CgroupDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Systemd => "systemd",
            Self::Cgroupfs => "cgroupfs",
        })
    }
}

impl ContainerState {
    /// Whether a process of this container may still be there.
    pub fn may_run(self) -> bool {
        matches!(self, Self::Running | Self::Unknown)
    }
}

/// One container instance of a pod, with everything that teardown and status need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Runtime's id.
    pub id: String,
    /// Name in the pod's spec.
    pub name: String,
    /// CRI attempt, the kubelet's restart count at creation.
    pub attempt: u32,
    /// The sandbox it lives in.
    pub sandbox_id: String,
    /// Last reported state.
    pub state: ContainerState,
    /// When it was created, by the runtime's clock.
    pub created_at: Timestamp,
    /// When it was started; `None` if never.
    pub started_at: Option<Timestamp>,
    /// When it ended; `None` while it runs.
    pub finished_at: Option<Timestamp>,
    /// Exit code; means something only when exited.
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
    /// Whether the end of the log stands in for an empty termination message after an error.
    pub message_falls_back_to_log: bool,
    /// Host path of the container's log; empty if the runtime names none.
    pub log_path: String,
    /// Only the list is known: the status could not be read, or has no real exit code.
    pub is_unread: bool,
}

#[cfg(test)]
impl Container {
    /// As a list shows it, for tests that change what matters to them.
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
            exit_code: 137,
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

/// State of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    /// Its network and cgroup stand.
    Ready,
    /// Stopped or dead.
    NotReady,
}

/// One sandbox of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Runtime's id.
    pub id: String,
    /// CRI attempt.
    pub attempt: u32,
    /// Last reported state.
    pub state: SandboxState,
    /// When it was created, by the runtime's clock.
    pub created_at: Timestamp,
    /// Pod annotations as they were when the sandbox was made.
    pub annotations: BTreeMap<String, String>,
    /// Pod IPs, first is the primary; empty for the host network and when not asked for.
    pub ips: Vec<String>,
}

impl Sandbox {
    /// Whether its network and cgroup stand.
    pub fn is_ready(&self) -> bool {
        self.state == SandboxState::Ready
    }

    /// Who told the kubelet to make it, if that is said.
    pub fn config_source(&self) -> Option<&str> {
        self.annotations.get(keys::CONFIG_SOURCE).map(String::as_str)
    }

    /// Whether it is said to come from the API server.
    pub fn is_from_api(&self) -> bool {
        self.config_source() == Some("api")
    }

    /// Whether it is said to come from somewhere else, as that of a static pod is.
    pub fn is_from_elsewhere(&self) -> bool {
        self.config_source().is_some_and(|source| source != "api")
    }
}

/// All that the runtime knows of one pod, newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimePod {
    /// Attempt descending, then creation descending, then id.
    pub sandboxes: Vec<Sandbox>,
    /// Creation descending.
    pub containers: Vec<Container>,
}

impl RuntimePod {
    /// The newest instance of the container with this name.
    pub fn newest(&self, name: &str) -> Option<&Container> {
        self.containers.iter().find(|container| container.name == name)
    }

    /// Containers of which a process may still be there.
    pub fn running(&self) -> impl Iterator<Item = &Container> {
        self.containers.iter().filter(|container| container.state.may_run())
    }

    /// Whether the status of a container that has exited could not be read.
    pub fn has_unread_exit(&self) -> bool {
        let mut containers = self.containers.iter();
        containers.any(|it| it.state == ContainerState::Exited && it.is_unread)
    }

    /// The same, with the ends that an earlier look could read and this one could not.
    #[must_use]
    pub fn with_exits_from(mut self, earlier: &Self) -> Self {
        let read = |it: &&Container| it.state == ContainerState::Exited && !it.is_unread;
        for container in self
            .containers
            .iter_mut()
            .filter(|it| it.is_unread && !it.state.may_run())
        {
            let known = earlier.containers.iter().filter(read).find(|it| it.id == container.id);
            if let Some(known) = known {
                container.clone_from(known);
            }
        }
        self
    }

    /// The same, where the kernel shows that nothing of it runs: how what ran has ended is unknown.
    #[must_use]
    pub fn with_all_exited(mut self) -> Self {
        for container in self.containers.iter_mut().filter(|it| it.state.may_run()) {
            container.state = ContainerState::Exited;
            container.is_unread = true;
        }
        for sandbox in &mut self.sandboxes {
            sandbox.state = SandboxState::NotReady;
        }
        self
    }

    /// A process of the pod may be there, or a network and a cgroup for it.
    pub fn may_run(&self) -> bool {
        self.running().next().is_some() || self.sandboxes.iter().any(Sandbox::is_ready)
    }

    /// Nothing of the pod is left in the runtime.
    pub fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }
}

/// A sandbox together with the pod that it belongs to, for looks at the whole node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSandbox {
    /// The pod's UID; empty if the sandbox was made by something that does not say.
    pub pod_uid: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The sandbox itself; without IPs.
    pub sandbox: Sandbox,
}

/// Who the runtime is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeVersion {
    /// Its name, such as `containerd`.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// The CRI version that it speaks.
    pub api_version: String,
}

/// Who manages the cgroups of pods on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// systemd, as slices and scopes.
    Systemd,
    /// Kubelet and runtime by themselves, as plain directories.
    Cgroupfs,
}

/// How a command in a container ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOutcome {
    /// Exit code of the command.
    pub exit_code: i32,
    /// The end of what it wrote to standard output.
    pub stdout: String,
    /// The end of what it wrote to standard error.
    pub stderr: String,
}
