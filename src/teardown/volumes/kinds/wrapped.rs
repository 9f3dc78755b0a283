//! Volumes that are an `emptyDir` underneath, into which the kubelet writes what the API server has: nothing in them is
//! anybody's only copy.

use std::ffi::{OsStr, OsString};

use super::super::kind::VolumeKind;
use crate::{
    node::pod_dir::{VolumeDir, names},
    teardown::on_disk::Work,
};

/// One such kind, by its plugin's directory.
pub struct Wrapped(&'static str);

/// `projected`, also the token volume of every pod.
pub const PROJECTED: Wrapped = Wrapped("kubernetes.io~projected");
pub const SECRET: Wrapped = Wrapped("kubernetes.io~secret");
/// On the disk; the others are in memory.
pub const CONFIG_MAP: Wrapped = Wrapped("kubernetes.io~configmap");
pub const DOWNWARD_API: Wrapped = Wrapped("kubernetes.io~downward-api");
/// On the disk, a clone.
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
