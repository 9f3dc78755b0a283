//! The value of a plan.

use serde::{Deserialize, Serialize};

use crate::model::{step::Step, termination::GraceStart};

/// What a teardown of a pod would do now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Its object has a `deletionTimestamp`. Without one nothing would be done now.
    pub is_deleted: bool,
    /// It mirrors a static pod: nothing is ever done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_mirror: bool,
    /// Why nothing may be touched now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocked: Vec<String>,
    /// The pods that terminate before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<PlannedWait>,
    /// Grace period in seconds, as the process that terminates the pod counts it.
    pub grace_seconds: u64,
    /// Seconds of it that are left; all of it if it has not begun.
    pub grace_left_seconds: u64,
    /// What the grace period is counted from.
    pub grace_counted_from: GraceStart,
    /// The steps, in their order.
    pub steps: Vec<PlannedStep>,
    /// What could not be read, and so may be missing in the steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// A wait for other pods before the first step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedWait {
    /// What they need this pod as: `a driver` or `a node service`.
    pub needed_as: String,
    /// The terminating pods that need it now.
    pub pods: Vec<String>,
    /// The longest wait, in seconds.
    pub at_most_seconds: u64,
}

/// One step with what it touches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedStep {
    /// The step.
    pub step: Step,
    /// What it does. Actions of one step run at once unless one names what it waits for.
    pub actions: Vec<PlannedAction>,
}

/// One action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "action", rename_all = "camelCase", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "most fields are named as in the object that is touched")]
pub enum PlannedAction {
    /// Runs a preStop hook.
    RunHook {
        container: String,
        id: String,
        /// `exec`, `httpGet`, `sleep` or `invalid`.
        handler: String,
        /// The command, URL or duration.
        target: String,
    },
    /// `StopContainer`: the stop signal, and SIGKILL after the timeout.
    StopContainer {
        container: String,
        id: String,
        /// Timeout in seconds, if it is called now. The deadline of the pod limits it.
        timeout_seconds: u64,
        /// Containers that exit first, unless the deadline passes.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        after: Vec<String>,
    },
    /// `StopPodSandbox`.
    StopSandbox { id: String },
    /// The drivers unprepare a claim, named `NAMESPACE/NAME`.
    UnprepareClaim { claim: String, drivers: Vec<String> },
    /// A claim stays prepared, since the pod with this UID uses it.
    KeepClaim { claim: String, used_by: String },
    /// Patches the status.
    ReportStatus,
    /// Unmounts a file system.
    Unmount { path: String, fs_type: String },
    /// Unmounts the device of a raw block volume for this pod, and detaches its loop device.
    UnmapDevice { path: String },
    /// `NodeUnpublishVolume`.
    UnpublishVolume {
        /// The CSI driver; `None` if the kubelet's file does not name it: then it is searched by other means.
        driver: Option<String>,
        handle: Option<String>,
        target: String,
    },
    /// `NodeUnstageVolume`, unless another pod of the node uses the volume.
    UnstageVolume {
        driver: Option<String>,
        handle: Option<String>,
        path: String,
    },
    /// A volume that stays as it is, and blocks the pod.
    LeaveVolume { path: String, why: String },
    /// Removes the file with the user IDs of its user namespace: other pods may get these IDs then.
    ReleaseUserIds { path: String },
    /// Removes a directory.
    RemoveDirectory { path: String },
    /// Kills what is left in a cgroup, and removes it.
    RemoveCgroup {
        /// Its path below the root of its hierarchy: the same in each.
        cgroup: String,
        /// Its path in each hierarchy of this node.
        paths: Vec<String>,
    },
    /// `DELETE` of the object, with this UID as precondition and grace period 0.
    DeleteObject {
        uid: String,
        /// Finalizers that keep the object after it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        kept_by: Vec<String>,
    },
    /// `RemoveContainer`.
    RemoveContainer { container: String, id: String },
    /// `RemovePodSandbox`.
    RemoveSandbox { id: String },
    /// Actions that are not known, since a fact could not be read.
    NotKnown {
        /// The fact, and why it could not be read.
        fact: String,
    },
}

// === impl Plan ===

impl Plan {
    /// All actions, in the order of their steps.
    pub fn actions(&self) -> impl Iterator<Item = (Step, &PlannedAction)> {
        self.steps
            .iter()
            .flat_map(|planned| planned.actions.iter().map(|action| (planned.step, action)))
    }
}
