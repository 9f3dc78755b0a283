//! The kubelet's `vol_data.json` files of CSI volumes, and the names that the kubelet gives CSI volumes.
//!
//! The kubelet writes the file in place without sync, so a crash may leave it empty or truncated. Drivers can write to
//! its directory, so its content is validated.

use std::{
    ffi::OsStr,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use ring::digest::{Context, SHA256};
use serde::Deserialize;

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

/// Content of a `vol_data.json`. Each field may be missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeData {
    /// Name of the driver, valid as a directory name.
    pub driver: Option<String>,
    /// The driver's ID of the volume: any text.
    pub handle: Option<String>,
    /// Name of the VolumeAttachment.
    pub attachment_id: Option<String>,
    /// Name of the node, as the driver knows it.
    pub node: Option<String>,
    /// Name of the PersistentVolume, or of the volume in the pod.
    pub spec_name: Option<String>,
    /// Lifecycle mode of the volume.
    pub lifecycle: Lifecycle,
}

/// `volumeLifecycleMode` of a volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lifecycle {
    /// A PersistentVolume. Also if the mode is missing, as for block volumes.
    #[default]
    Persistent,
    /// Inline volume of a pod: created at publish, deleted at unpublish, never staged.
    Ephemeral,
}

/// State of a `vol_data.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeDataFile {
    /// It does not exist.
    Missing,
    /// It exists but does not identify a volume.
    Invalid(InvalidVolumeData),
    /// It is valid.
    Read(VolumeData),
}

/// Why a `vol_data.json` is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVolumeData {
    /// It was never written, or its blocks are all zero.
    #[error("it is empty")]
    Empty,
    /// It is truncated.
    #[error("it is cut off")]
    CutOff,
    /// It is not what a kubelet writes.
    #[error("it is not what a kubelet writes: {0}")]
    Garbage(String),
    /// It exceeds the limit.
    #[error("it is larger than {MAX_SIZE} bytes")]
    TooLarge,
    /// It is a link, a directory or the like.
    #[error("it is not a regular file")]
    NotRegularFile,
    /// The driver's name is invalid.
    #[error("{0:?} is not the name of a driver")]
    BadDriver(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawVolumeData {
    driver_name: Option<String>,
    volume_handle: Option<String>,
    #[serde(rename = "attachmentID")]
    attachment_id: Option<String>,
    node_name: Option<String>,
    #[serde(rename = "specVolID")]
    spec_name: Option<String>,
    volume_lifecycle_mode: Option<String>,
}

/// Reads the `vol_data.json` in this directory: of a pod's volume, of a staged volume, or in the `data` directory of a
/// block volume.
///
/// # Errors
/// When it cannot be read.
pub fn read(dir: &Dir) -> Result<VolumeDataFile, Fault> {
    match dir.read_file(OsStr::new(FILE), MAX_SIZE) {
        Ok(None) => Ok(VolumeDataFile::Missing),
        Ok(Some(bytes)) => Ok(parse(&bytes).map_or_else(VolumeDataFile::Invalid, VolumeDataFile::Read)),
        Err(Fault {
            cause: Cause::TooLarge(_),
            ..
        }) => Ok(VolumeDataFile::Invalid(InvalidVolumeData::TooLarge)),
        Err(Fault {
            cause: Cause::NotRegularFile,
            ..
        }) => Ok(VolumeDataFile::Invalid(InvalidVolumeData::NotRegularFile)),
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
///
/// # Errors
/// When it is invalid.
pub fn parse(bytes: &[u8]) -> Result<VolumeData, InvalidVolumeData> {
    if bytes.iter().all(|byte| *byte == 0 || byte.is_ascii_whitespace()) {
        return Err(InvalidVolumeData::Empty);
    }
    let written: RawVolumeData = serde_json::from_slice(bytes).map_err(|error| match error.is_eof() {
        true => InvalidVolumeData::CutOff,
        false => InvalidVolumeData::Garbage(error.to_string()),
    })?;
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    let driver = said(written.driver_name);
    if let Some(driver) = driver.as_deref().filter(|driver| !is_driver(driver)) {
        return Err(InvalidVolumeData::BadDriver(driver.to_owned()));
    }
    Ok(VolumeData {
        driver,
        handle: said(written.volume_handle),
        attachment_id: said(written.attachment_id),
        node: said(written.node_name),
        spec_name: said(written.spec_name),
        lifecycle: match written.volume_lifecycle_mode.as_deref() {
            Some("Ephemeral") => Lifecycle::Ephemeral,
            _ => Lifecycle::Persistent,
        },
    })
}

/// Whether a driver may have this name. Such a name is safe in a path.
pub fn is_driver(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    is_name(name.as_ref()) && name.len() <= MAX_DRIVER_NAME && name.bytes().all(allowed)
}

/// Name of the directory with a staged volume's mount and file, below that of its driver.
pub fn staging_name(handle: &str) -> String {
    sha256([handle])
}

/// Path of a staged volume below the kubelet's root directory; `None` if the driver's name is invalid.
pub fn staging_dir(driver: &str, handle: &str) -> Option<PathBuf> {
    is_driver(driver).then(|| Path::new(STAGING).join(driver).join(staging_name(handle)))
}

/// Volume handle of an inline volume.
pub fn ephemeral_handle(pod_uid: &str, volume_name: &str) -> String {
    format!("csi-{}", sha256([pod_uid, volume_name]))
}

/// Name of the VolumeAttachment of a volume on a node.
pub fn attachment_id(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256([handle, driver, node]))
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

fn sha256<const N: usize>(parts: [&str; N]) -> String {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part.as_bytes());
    }
    context.finish().as_ref().iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _written = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests;
