//! `emptyDir` on disk, in memory or of huge pages. Its data is removed with its pod.

use std::ffi::{OsStr, OsString};

use super::super::kind::VolumeKind;
use crate::{
    node::pod_dir::{VolumeDir, names},
    teardown::on_disk::Work,
};

pub struct EmptyDir;

// === impl EmptyDir ===

impl VolumeKind for EmptyDir {
    fn plugin(&self) -> &'static str {
        names::EMPTY_DIR
    }

    fn marker(&self, volume: &OsStr) -> Option<OsString> {
        Some(volume.to_owned())
    }

    fn remove(&self, work: &mut Work<'_>, volume: &VolumeDir) {
        work.remove_volume(volume);
    }
}
