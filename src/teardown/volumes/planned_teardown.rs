//! How a volume would be torn down.

use serde::{Deserialize, Serialize};

/// How a volume would be torn down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(tag = "by", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum PlannedTeardown {
    /// The agent unmounts what is mounted, and removes the directory.
    Unmount,
    /// The agent unmounts what is mounted, then the device's own mount, and removes the directory.
    Local {
        /// The device's mount point; `None` if it is not mounted, or another pod uses it.
        device: Option<String>,
    },
    /// The agent unmounts the device of this pod and detaches its loop device.
    Unmap {
        /// The device for this pod.
        path: String,
    },
    /// The driver unpublishes the volume, and unstages it if no other pod of the node uses it.
    Csi {
        /// The driver; `None` if the kubelet's file does not name it.
        driver: Option<String>,
        /// The volume's handle.
        handle: Option<String>,
        /// Target of `NodeUnpublishVolume`.
        target: String,
        /// Staging path of `NodeUnstageVolume`; `None` for a volume that is never staged.
        staging: Option<String>,
        /// Its mounts that the driver unmounts, in the order of their unmount.
        mounted: Vec<String>,
    },
    /// It is not supported, stays as it is, and blocks the pod.
    Unsupported {
        /// Why.
        why: String,
    },
}
