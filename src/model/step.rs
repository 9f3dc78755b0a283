//! The steps of a pod's teardown.

use serde::{Deserialize, Serialize};
use strum::{Display, IntoStaticStr, VariantArray};

/// Steps of a teardown, in the order of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[derive(Display, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "lowercase")]
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

impl Step {
    /// Its name in `status`, `timeline` and metrics.
    pub fn name(self) -> &'static str {
        self.into()
    }
}
