//! The steps of a pod's teardown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Steps of a teardown, in the order of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Step {
    /// A preStop hook runs.
    Hook,
    /// A container has got its stop signal and terminates by itself.
    Term,
    /// A container is killed after its grace period.
    Kill,
    /// Sandboxes are stopped.
    Sandbox,
    /// Devices of dynamic resources are unprepared.
    Devices,
    /// Volumes are unmounted and their directories removed.
    Volumes,
    /// The pod's cgroup is emptied and removed.
    Cgroup,
    /// The status is sent.
    Status,
    /// The final delete.
    Delete,
    /// Containers, sandboxes, logs and the pod's directory are removed.
    Cleanup,
}

// === impl Step ===

impl Step {
    /// All steps, in the order of a timeline.
    pub const ALL: [Self; 10] = [
        Self::Hook,
        Self::Term,
        Self::Kill,
        Self::Sandbox,
        Self::Devices,
        Self::Volumes,
        Self::Cgroup,
        Self::Status,
        Self::Delete,
        Self::Cleanup,
    ];
}

impl Step {
    /// Its name in traces, metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hook => "hook",
            Self::Term => "term",
            Self::Kill => "kill",
            Self::Sandbox => "sandbox",
            Self::Devices => "devices",
            Self::Volumes => "volumes",
            Self::Cgroup => "cgroup",
            Self::Status => "status",
            Self::Delete => "delete",
            Self::Cleanup => "cleanup",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
