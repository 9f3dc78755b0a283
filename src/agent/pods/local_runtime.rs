//! The container runtime of this node, and its cgroups.

use crate::node::{
    cgroups::Cgroups,
    cri::{
        Cri,
        types::{CgroupDriver, RuntimeVersion},
    },
};

/// The container runtime of this node, and its cgroups.
pub(super) struct LocalRuntime {
    pub cri: Cri,
    pub version: RuntimeVersion,
    pub cgroups: Cgroups,
    /// Only for the log: existing cgroups are found under the names of both drivers.
    pub driver: CgroupDriver,
}
