//! Paths where drivers stage volumes.

use std::path::PathBuf;

use super::{super::super::storage::Storage, block_paths::BlockVolumePaths, staged::Staged};
use crate::{
    node::{
        csi_files::{self, VolumeDataFile},
        dirs::Dir,
        fault::Fault,
    },
    teardown::on_disk::DiskReport,
};

pub const VERB: &str = "unstage";

/// A path where a driver may have staged a volume. One volume may have several: as a file system, and as a raw block device for
/// each of its PersistentVolumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StagingPath {
    FileSystem(Staged),
    Block(BlockVolumePaths),
}

// === impl StagingPath ===

impl StagingPath {
    /// The staging target path for the driver.
    pub fn global(&self) -> PathBuf {
        match self {
            Self::FileSystem(staged) => staged.global(),
            Self::Block(paths) => paths.staged(),
        }
    }

    /// Directory of the kubelet's file.
    pub fn data(&self) -> PathBuf {
        match self {
            Self::FileSystem(staged) => staged.path.clone(),
            Self::Block(paths) => paths.data(),
        }
    }

    /// Removes everything that a kubelet created for it. Blocks.
    pub fn remove(&self, storage: &Storage) -> Result<DiskReport, Vec<Fault>> {
        match self {
            Self::FileSystem(staged) => staged.remove(storage),
            Self::Block(paths) => paths.remove(storage),
        }
    }

    /// Whether it may be staged: the kubelet creates the directory, then its file, and then calls a driver that stages. Blocks.
    pub fn may_be_staged(&self) -> Result<bool, Fault> {
        Ok(Dir::open(&self.global())?.is_some() && csi_files::read_at(&self.data())? != VolumeDataFile::Missing)
    }
}
