//! Identifies the driver and handle of a volume, even if the kubelet's file is damaged.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use super::super::super::storage::{Storage, fault_of};
use crate::node::{
    csi_files::{FILE, VolumeData, VolumeDataFile, staging_name, unique_name},
    fault::Fault,
    mounts::Mount,
};

/// Driver and handle of a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub driver: String,
    pub handle: String,
}

/// A file of the kubelet that does not identify its volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file:?} does not identify its volume ({why})")]
pub struct UnidentifiedFile {
    file: PathBuf,
    why: String,
}

// === impl Identity ===

impl Identity {
    /// Name in the node's `volumesInUse`.
    pub fn unique_name(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }

    /// Driver and handle in the kubelet's file in the directory `dir`, if it has both.
    pub fn read(data: &VolumeDataFile, dir: &Path) -> Result<Self, UnidentifiedFile> {
        let why = match data {
            VolumeDataFile::Missing => "it does not exist".to_owned(),
            VolumeDataFile::Invalid(why) => why.to_string(),
            VolumeDataFile::Read(VolumeData {
                driver: Some(driver),
                handle: Some(handle),
                ..
            }) => {
                return Ok(Self {
                    driver: driver.clone(),
                    handle: handle.clone(),
                });
            }
            VolumeDataFile::Read(_) => "it lacks driver or handle".to_owned(),
        };
        Err(UnidentifiedFile::new(dir, why))
    }
}

// === impl UnidentifiedFile ===

impl UnidentifiedFile {
    /// The file in the directory `dir`.
    pub fn new(dir: &Path, why: impl Into<String>) -> Self {
        Self {
            file: dir.join(FILE),
            why: why.into(),
        }
    }
}

/// Identifies a volume by the PersistentVolume with its name.
pub async fn by_persistent_volume(
    storage: &Storage,
    volume: &OsStr,
    path: &Path,
) -> Result<Option<Identity>, Vec<Fault>> {
    let Some(name) = volume.to_str() else {
        return Ok(None);
    };
    let found = storage.cluster.persistent_volume(name.to_owned()).await;
    let found = found.map_err(|why| fault_of("find the PersistentVolume of", path, &why))?;
    Ok(found.map(|(driver, handle)| Identity { driver, handle }))
}

/// Whether one is a mount of the other, or of a part of it: the same file system, and nothing outside of it.
pub fn is_of(mount: &Mount, staged: &Mount) -> bool {
    mount.device == staged.device && mount.root.starts_with(&staged.root)
}

/// The handle with this staging directory, among the node's `volumesInUse`.
pub fn handle_in_use(in_use: &[String], driver: &str, directory: &str) -> Option<String> {
    let prefix = unique_name(driver, "");
    let handles = in_use.iter().filter_map(|name| name.strip_prefix(&prefix));
    handles
        .map(str::to_owned)
        .find(|handle| staging_name(handle) == directory)
}
