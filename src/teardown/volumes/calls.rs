//! What is called for a volume.

use crate::teardown::plan::PlannedAction;

/// What is called for a volume, besides unmounts of the pod's own mounts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Calls {
    /// The CSI driver, if the volume has one that is known.
    pub driver: Option<String>,
    /// The path where the driver publishes it.
    pub target: Option<String>,
    /// Its mounts that the driver unmounts, in the order of their unmount.
    pub mounted: Vec<String>,
    /// The calls.
    pub actions: Vec<PlannedAction>,
}
