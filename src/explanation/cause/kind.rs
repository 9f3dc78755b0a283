//! What a cause is.

use serde::{Deserialize, Serialize};

use crate::model::{step::Step, termination::GraceStart};

/// A process of the pod, or one that uses a mount of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProcessName {
    /// PID in the agent's PID namespace.
    pub pid: i32,
    /// Its command name.
    pub command: String,
    /// Its pod, as `NAMESPACE/NAME`, if it is known to be of another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

/// Why SIGTERM does not terminate a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SigtermDisposition {
    /// It ignores it (`SIG_IGN`).
    Ignored,
    /// It blocks it.
    Blocked,
    /// It is PID 1 of its container and has no handler.
    InitWithoutHandler,
}

/// A cause. `kind` in JSON names the variant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum CauseKind {
    /// A step of this agent failed, and is tried again.
    StepFailed {
        /// The step.
        step: Step,
        /// Its target; may be empty.
        target: String,
        /// Why it failed.
        text: String,
    },
    /// It is not being deleted, and it has not terminated.
    NotDeleted {
        /// Phase in the API.
        phase: Option<String>,
        /// Number of its running containers; `None` if unknown.
        running: Option<usize>,
    },
    /// It has a terminal phase, and is not being deleted.
    EndedNotDeleted {
        /// Phase in the API.
        phase: Option<String>,
        /// Reason in the API.
        reason: Option<String>,
    },
    /// It mirrors a static pod.
    MirrorPod {
        /// Its object is being deleted.
        is_deleted: bool,
    },
    /// A kubelet runs, and has to terminate the pod.
    KubeletTerminates {
        /// The kubelet's process.
        kubelet: String,
    },
    /// No kubelet terminates it, and this agent may not.
    AgentBlocked {
        /// Why the agent may not.
        why: String,
    },
    /// A user has paused this agent, and no kubelet terminates it.
    AgentPaused {
        /// Since when, by whom, why, and how the agent is resumed.
        why: String,
    },
    /// The API server does not answer this agent.
    ApiServerUnreachable {
        /// The error.
        error: String,
    },
    /// As the API shows it, its node is unreachable: its kubelet does not report, and no agent reports that it is active.
    NodeUnreachable {
        /// Its node.
        node: String,
        /// State of the kubelet.
        kubelet: String,
        /// State of the agent.
        agent: String,
    },
    /// Its Node does not exist in the API.
    NodeMissing {
        /// Its node.
        node: String,
    },
    /// The kubelet of its node reports that it is not ready, and no agent reports that it is active.
    NodeNotReady {
        /// Its node.
        node: String,
        /// State of the kubelet.
        kubelet: String,
        /// State of the agent.
        agent: String,
    },
    /// A recent event about it.
    Reported {
        /// The component that sent it.
        component: String,
        /// Its reason.
        reason: String,
        /// Its message.
        text: String,
        /// How long ago it happened last.
        ago_seconds: u64,
    },
    /// The grace period has not expired.
    GracePeriod {
        /// Seconds left.
        left_seconds: u64,
        /// Seconds in total, if known.
        total_seconds: Option<u64>,
        /// What it is counted from.
        counted_from: GraceStart,
    },
    /// A container with a preStop hook runs, so the hook may still run.
    PreStopHook {
        /// The container.
        container: String,
        /// `exec`, `httpGet` or `sleep`.
        handler: String,
    },
    /// The container waits for the exit of others: sidecars stop last.
    SidecarWaits {
        /// The sidecar.
        container: String,
        /// Running containers that stop before it.
        others: Vec<String>,
    },
    /// The main process of a container does not act on SIGTERM.
    SigtermNotHandled {
        /// The container.
        container: String,
        /// Its main process.
        process: ProcessName,
        /// How.
        how: SigtermDisposition,
        /// Seconds until its SIGKILL; `None` if the grace period has expired.
        kill_in_seconds: Option<u64>,
    },
    /// Processes of the pod are frozen: they handle no signal.
    Frozen {
        /// Frozen cgroups, at most eight.
        cgroups: Vec<String>,
    },
    /// A file system of the pod is frozen: writes to it wait in the kernel.
    FileSystemFrozen {
        /// Where it is mounted.
        path: String,
        /// Its device.
        device: String,
        /// The command that thaws it.
        command: String,
    },
    /// A mount hides a cgroup of the pod.
    CgroupCovered {
        /// The mount point.
        path: String,
        /// The cgroup that is seen instead.
        cgroup: String,
    },
    /// A process sleeps uninterruptibly in the kernel: not even SIGKILL terminates it.
    Uninterruptible {
        /// The process.
        process: ProcessName,
        /// Its container, if known.
        container: Option<String>,
        /// The kernel function, if the kernel shows it.
        waits_in: Option<String>,
    },
    /// A container runs after the grace period, for no other known cause.
    StillRuns {
        /// The container.
        container: String,
        /// Seconds since the grace period expired.
        overdue_seconds: u64,
        /// Its process, if the runtime names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<ProcessName>,
        /// The cgroup of that process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cgroup: Option<String>,
        /// Seconds until this agent kills it; `None` if it does not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kill_in_seconds: Option<u64>,
    },
    /// The shim of a sandbox is stopped: the runtime can stop and kill nothing below it.
    ShimStopped {
        /// ID of the sandbox.
        sandbox: String,
        /// The shim.
        process: ProcessName,
    },
    /// The runtime does not know whether the container runs.
    ContainerUnknown {
        /// The container.
        container: String,
    },
    /// The runtime shows no running container, and processes are left in the pod's cgroups.
    ProcessesLeft {
        /// The first of them.
        processes: Vec<ProcessName>,
        /// Number of all of them.
        count: usize,
    },
    /// The runtime reports that it is not ready.
    RuntimeNotReady {
        /// Condition, such as `NetworkReady`.
        condition: String,
        /// The runtime's reason.
        reason: String,
        /// The runtime's message.
        text: String,
    },
    /// The runtime cannot be reached.
    RuntimeUnreachable {
        /// The error.
        error: String,
    },
    /// All containers have exited, and the sandbox is not stopped.
    SandboxNotStopped {
        /// ID of the sandbox.
        sandbox: String,
        /// Its process, if that runs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        process: Option<ProcessName>,
        /// The cgroup of that process.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cgroup: Option<String>,
        /// Seconds until this agent kills that process; `None` if it does not.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kill_in_seconds: Option<u64>,
    },
    /// Processes use a mount of the pod.
    MountBusy {
        /// The mount point.
        path: String,
        /// They are known to be outside of the pod.
        is_outside: bool,
        /// The processes.
        holders: Vec<ProcessName>,
        /// Number of further users, which may be the pod's own.
        more: usize,
    },
    /// A mount is left, and no process outside of the pod is known to use it.
    MountLeft {
        /// The mount point.
        path: String,
        /// Type of file system.
        fs_type: String,
    },
    /// A mount is left, and another one hides it.
    MountHidden {
        /// The mount point.
        path: String,
        /// The mount that hides it, and the command that removes that one.
        cover: String,
    },
    /// A file system of the pod has a server that may be needed for the unmount.
    ServerMount {
        /// The mount point.
        path: String,
        /// Type of file system.
        fs_type: String,
        /// Server and path.
        source: String,
    },
    /// The driver of a volume or claim is not registered on this node.
    DriverMissing {
        /// `CSI` or `DRA`.
        driver_kind: String,
        /// Name of the driver.
        driver: String,
        /// The volume or claim.
        needed_by: String,
        /// Namespace and name of the pod.
        pod: String,
        /// Mounts of the volume, in the order of their unmount.
        mounted: Vec<String>,
        /// Pods of this node that seem to be the driver, with their states.
        pods: Vec<String>,
        /// How it was detected.
        why: String,
    },
    /// Directories of volumes are left, without mounts.
    VolumeDirectoriesLeft {
        /// Their paths, at most eight.
        paths: Vec<String>,
    },
    /// Its cgroups are left, without processes.
    CgroupsLeft {
        /// Their paths, at most eight.
        paths: Vec<String>,
    },
    /// Nothing of it runs, and the API does not show a terminal phase.
    PhaseNotTerminal {
        /// Phase in the API.
        phase: Option<String>,
    },
    /// Everything is done but the final delete.
    FinalDeletePending,
    /// A finalizer keeps the object.
    Finalizer {
        /// Its name.
        finalizer: String,
        /// The component that usually removes it.
        removed_by: String,
    },
    /// A fact that could not be read.
    Unknown {
        /// What was read.
        what: String,
        /// Why it failed.
        why: String,
    },
    /// Nothing was found that blocks the pod.
    NothingFound,
}

// === impl CauseKind ===

impl CauseKind {
    /// The step that waits for it, if it is one of the teardown.
    pub fn step(&self) -> Option<Step> {
        match self {
            Self::StepFailed { step, .. } => Some(*step),
            // It explains every step of the stop that fails.
            Self::StillRuns { .. } => Some(Step::Term),
            Self::GracePeriod { .. }
            | Self::PreStopHook { .. }
            | Self::SidecarWaits { .. }
            | Self::SigtermNotHandled { .. }
            | Self::Frozen { .. }
            | Self::FileSystemFrozen { .. }
            | Self::Uninterruptible { .. }
            | Self::ShimStopped { .. }
            | Self::ContainerUnknown { .. }
            | Self::ProcessesLeft { .. } => Some(Step::Kill),
            Self::RuntimeNotReady { .. } | Self::SandboxNotStopped { .. } => Some(Step::Sandbox),
            Self::DriverMissing { driver_kind, .. } if driver_kind == "DRA" => Some(Step::Devices),
            Self::DriverMissing { .. }
            | Self::MountBusy { .. }
            | Self::MountLeft { .. }
            | Self::MountHidden { .. }
            | Self::ServerMount { .. }
            | Self::VolumeDirectoriesLeft { .. } => Some(Step::Volumes),
            Self::CgroupCovered { .. } | Self::CgroupsLeft { .. } => Some(Step::Cgroup),
            Self::PhaseNotTerminal { .. } => Some(Step::Status),
            Self::FinalDeletePending | Self::Finalizer { .. } => Some(Step::Delete),
            Self::NotDeleted { .. }
            | Self::EndedNotDeleted { .. }
            | Self::MirrorPod { .. }
            | Self::KubeletTerminates { .. }
            | Self::AgentBlocked { .. }
            | Self::AgentPaused { .. }
            | Self::ApiServerUnreachable { .. }
            | Self::NodeUnreachable { .. }
            | Self::NodeMissing { .. }
            | Self::NodeNotReady { .. }
            | Self::Reported { .. }
            | Self::RuntimeUnreachable { .. }
            | Self::Unknown { .. }
            | Self::NothingFound => None,
        }
    }
}
