//! A volume of a pod, and what is called for it.

use std::path::{Path, PathBuf};

use crate::{
    node::pod_dir::{PodDir, VolumeDir},
    teardown::plan::PlannedAction,
};

/// A volume to tear down.
#[derive(Clone)]
pub struct Volume {
    pub pod: PodDir,
    pub dir: VolumeDir,
    pub shape: Shape,
    /// Its directory, or the link of a raw block volume.
    pub path: PathBuf,
    /// Directory of its subPath targets.
    pub subpaths: Option<PathBuf>,
}

/// How a pod uses a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    FileSystem,
    Block,
}

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

// === impl Volume ===

impl Volume {
    /// All paths with mounts of the volume, at or below, in the order of their unmount.
    pub fn paths(&self) -> Vec<&Path> {
        self.subpaths.iter().chain([&self.path]).map(PathBuf::as_path).collect()
    }
}
