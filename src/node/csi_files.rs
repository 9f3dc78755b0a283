//! The kubelet's `vol_data.json` files of CSI volumes, and the names that the kubelet gives CSI volumes.
//!
//! The kubelet writes the file in place without sync, so a crash may leave it empty or truncated. Drivers can write to
//! its directory, so its content is validated.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Deserializer};

use super::{
    dirs::{Dir, is_name},
    fault::{Cause, Fault},
};

/// The file's name, beside each mount.
pub const FILE: &str = "vol_data.json";
/// Below a volume's directory: its mount point for the pod.
pub const TARGET: &str = "mount";
/// Below the kubelet's root directory: staged volumes, by driver and [`staging_name`].
pub const STAGING: &str = "plugins/kubernetes.io/csi";
/// Below [`STAGING`], instead of a driver's name: block volumes.
pub const BLOCK: &str = "volumeDevices";

/// Maximum size in bytes. A volume handle has at most 128 bytes, a SELinux context little more.
const MAX_SIZE: u64 = 64 << 10;
/// Maximum length of a driver's name.
const MAX_DRIVER_NAME: usize = 63;

/// The fields of a `vol_data.json` that the agent uses. Each may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeData {
    /// Name of the driver, valid as a directory name.
    #[serde(rename = "driverName", deserialize_with = "unless_empty")]
    pub driver: Option<String>,
    /// The driver's ID of the volume: any text.
    #[serde(rename = "volumeHandle", deserialize_with = "unless_empty")]
    pub handle: Option<String>,
    /// Lifecycle mode of the volume.
    #[serde(rename = "volumeLifecycleMode")]
    pub lifecycle: Lifecycle,
}

/// `volumeLifecycleMode` of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum Lifecycle {
    /// Inline volume of a pod: created at publish, deleted at unpublish, never staged.
    Ephemeral,
    /// A PersistentVolume. Also if the mode is missing, as for block volumes.
    #[default]
    #[serde(other)]
    Persistent,
}

/// State of a `vol_data.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeDataFile {
    /// It does not exist.
    Missing,
    /// It exists but does not identify a volume, for this reason.
    Invalid(String),
    /// It is valid.
    Read(VolumeData),
}

fn unless_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(from)?;
    Ok(text.filter(|text| !text.is_empty()))
}

/// Reads the `vol_data.json` in this directory: of a pod's volume, of a staged volume, or in the `data` directory of a
/// block volume.
///
/// # Errors
/// When it cannot be read.
pub fn read(dir: &Dir) -> Result<VolumeDataFile, Fault> {
    match dir.read_file(OsStr::new(FILE), MAX_SIZE) {
        Ok(None) => Ok(VolumeDataFile::Missing),
        Ok(Some(bytes)) => Ok(parse(&bytes)),
        Err(Fault {
            cause: cause @ (Cause::TooLarge(_) | Cause::NotRegularFile),
            ..
        }) => Ok(VolumeDataFile::Invalid(cause.to_string())),
        Err(fault) => Err(fault),
    }
}

/// Like [`read`], in the directory at this path, which may not exist.
///
/// # Errors
/// When it cannot be read.
pub fn read_at(path: &Path) -> Result<VolumeDataFile, Fault> {
    Dir::open(path)?.map_or(Ok(VolumeDataFile::Missing), |dir| read(&dir))
}

/// Parses a `vol_data.json`.
pub fn parse(bytes: &[u8]) -> VolumeDataFile {
    // Its blocks may be all zero.
    let is_empty = bytes.iter().all(|byte| *byte == 0 || byte.is_ascii_whitespace());
    let why = match serde_json::from_slice::<VolumeData>(bytes) {
        _ if is_empty => "it is empty".to_owned(),
        Err(error) if error.is_eof() => "it is cut off".to_owned(),
        Err(error) => format!("it is not what a kubelet writes: {error}"),
        Ok(data) => match &data.driver {
            Some(driver) if !is_driver(driver) => format!("{driver:?} is not the name of a driver"),
            _ => return VolumeDataFile::Read(data),
        },
    };
    VolumeDataFile::Invalid(why)
}

/// Whether a driver may have this name. Such a name is safe in a path.
pub fn is_driver(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    is_name(name.as_ref()) && name.len() <= MAX_DRIVER_NAME && name.bytes().all(allowed)
}

/// Name of the directory with a staged volume's mount and file, below that of its driver.
pub fn staging_name(handle: &str) -> String {
    let hash = digest(&SHA256, handle.as_bytes());
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Path of a staged volume below the kubelet's root directory; `None` if the driver's name is invalid.
pub fn staging_dir(driver: &str, handle: &str) -> Option<PathBuf> {
    is_driver(driver).then(|| Path::new(STAGING).join(driver).join(staging_name(handle)))
}

/// The name of a volume in the node's `volumesInUse`.
pub fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// Driver and [`staging_name`] of the volume with this [`unique_name`].
pub fn staged_as(unique_name: &str) -> Option<(String, String)> {
    let (driver, handle) = unique_name.strip_prefix("kubernetes.io/csi/")?.split_once('^')?;
    Some((driver.to_owned(), staging_name(handle)))
}

#[cfg(test)]
mod tests;
