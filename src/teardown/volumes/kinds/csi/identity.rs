//! Identifies the driver and handle of a volume by a file of the kubelet, which may be damaged, or by its PersistentVolume.

use std::{ffi::OsStr, path::Path};

use super::super::super::storage::{Storage, fault_of};
use crate::{
    node::{
        csi_files::{FILE, VolumeData, VolumeDataFile, unique_name},
        fault::Fault,
    },
    why::Why,
};

/// Driver and handle of a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub driver: String,
    pub handle: String,
}

// === impl Identity ===

impl Identity {
    /// Name in the node's `volumesInUse`.
    pub fn unique_name(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }

    /// Driver and handle in the kubelet's file in the directory `dir`, or why it does not identify its volume.
    pub fn read(data: VolumeDataFile, dir: &Path) -> Result<Self, Why> {
        let why = match data {
            VolumeDataFile::Missing => "it does not exist".to_owned(),
            VolumeDataFile::Invalid(why) => why,
            VolumeDataFile::Read(VolumeData {
                driver: Some(driver),
                handle: Some(handle),
                ..
            }) => return Ok(Self { driver, handle }),
            VolumeDataFile::Read(_) => "it lacks driver or handle".to_owned(),
        };
        Err(unidentified(dir, &why))
    }

    /// The volume of the PersistentVolume with this name, which is published or staged at `path`.
    pub async fn of_persistent_volume(
        storage: &Storage,
        name: &OsStr,
        path: &Path,
    ) -> Result<Option<Self>, Vec<Fault>> {
        let Some(name) = name.to_str() else { return Ok(None) };
        let found = storage.api.persistent_volume(name).await;
        let found = found.map_err(|why| fault_of("find the PersistentVolume of", path, &why))?;
        Ok(found.map(|(driver, handle)| Self { driver, handle }))
    }
}

/// Why the kubelet's file in the directory `dir` does not identify its volume.
pub fn unidentified(dir: &Path, why: &str) -> Why {
    format!("{:?} does not identify its volume ({why})", dir.join(FILE)).into()
}
