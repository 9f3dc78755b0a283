//! Volumes on an `emptyDir` with content from the API server. The content may be deleted.

use std::ffi::{OsStr, OsString};

use super::super::kind::VolumeKind;
use crate::{
    node::pod_dir::{VolumeDir, names},
    teardown::on_disk::Work,
};

/// A kind, with its plugin's directory.
pub struct Wrapped(&'static str);

/// `projected`, such as the token volume of every pod.
pub const PROJECTED: Wrapped = Wrapped("kubernetes.io~projected");
pub const SECRET: Wrapped = Wrapped("kubernetes.io~secret");
/// On disk. The others are in memory.
pub const CONFIG_MAP: Wrapped = Wrapped("kubernetes.io~configmap");
pub const DOWNWARD_API: Wrapped = Wrapped("kubernetes.io~downward-api");
/// On disk, a clone.
pub const GIT_REPO: Wrapped = Wrapped("kubernetes.io~git-repo");

// === impl Wrapped ===

impl VolumeKind for Wrapped {
    fn plugin(&self) -> &'static str {
        self.0
    }

    fn marker(&self, volume: &OsStr) -> Option<OsString> {
        let mut name = OsString::from(names::WRAPPED);
        name.push(volume);
        Some(name)
    }

    fn remove(&self, work: &mut Work<'_>, volume: &VolumeDir) {
        work.remove_volume(volume);
    }
}
