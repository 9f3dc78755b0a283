//! What the kubelet writes down of CSI volumes, and the names that it gives them.
//!
//! The file is written in place and never synced, so a crash may leave it empty or cut off; and it lies where drivers write,
//! so nothing in it is believed further than it can be checked.

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
/// Below the kubelet's root: staged volumes, by driver and [`staging_name`].
pub const STAGING: &str = "plugins/kubernetes.io/csi";
/// Below [`STAGING`], in place of a driver's name: block volumes.
pub const BLOCK: &str = "volumeDevices";

/// A volume handle has at most 128 bytes, a SELinux context little more.
const LIMIT: u64 = 64 << 10;
/// A driver's name is at most so long.
const LONGEST_DRIVER: usize = 63;

/// What a `vol_data.json` says; each part may be missing from it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeData {
    /// Name of the driver: one that can be the name of a directory.
    pub driver: Option<String>,
    /// The driver's name of the volume: any text.
    pub handle: Option<String>,
    /// Name of the VolumeAttachment.
    pub attachment_id: Option<String>,
    /// Name of the node, as the driver was told.
    pub node: Option<String>,
    /// Name of the PersistentVolume, or of the volume in the pod.
    pub spec_name: Option<String>,
    /// Who made the volume.
    pub lifecycle: Lifecycle,
}

/// Who made a volume, and so how long it lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Lifecycle {
    /// A PersistentVolume. Also where nothing is said of it, as for block volumes.
    #[default]
    Persistent,
    /// Written out in the pod: made at publish, gone at unpublish, never staged.
    Ephemeral,
}

/// What lies where a `vol_data.json` should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// No such file.
    Missing,
    /// One that does not say what volume it is about.
    Invalid(InvalidVolumeData),
    /// One that can be read.
    Read(VolumeData),
}

/// Why a `vol_data.json` says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVolumeData {
    /// It was created and never written; or its blocks were never, and are all zero.
    #[error("it is empty")]
    Empty,
    /// It ends before its end.
    #[error("it is cut off")]
    CutOff,
    /// It is not what a kubelet writes.
    #[error("it is not what a kubelet writes: {0}")]
    Garbage(String),
    /// It is too large for what it should be.
    #[error("it is larger than {LIMIT} bytes")]
    TooLarge,
    /// It is a link, a directory or the like.
    #[error("it is no ordinary file")]
    NotRegularFile,
    /// No driver can be called so.
    #[error("{0:?} is not the name of a driver")]
    BadDriver(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    driver_name: Option<String>,
    volume_handle: Option<String>,
    #[serde(rename = "attachmentID")]
    attachment_id: Option<String>,
    node_name: Option<String>,
    #[serde(rename = "specVolID")]
    spec_name: Option<String>,
    volume_lifecycle_mode: Option<String>,
}

/// What the `vol_data.json` in this directory says: a pod's volume, a staged one, or the `data` of a block volume.
///
/// # Errors
/// When it cannot be looked at.
pub fn read(dir: &Dir) -> Result<Found, Fault> {
    match dir.read_file(OsStr::new(FILE), LIMIT) {
        Ok(None) => Ok(Found::Missing),
        Ok(Some(bytes)) => Ok(parse(&bytes).map_or_else(Found::Invalid, Found::Read)),
        Err(Fault {
            cause: Cause::TooLarge(_),
            ..
        }) => Ok(Found::Invalid(InvalidVolumeData::TooLarge)),
        Err(Fault {
            cause: Cause::NotRegularFile,
            ..
        }) => Ok(Found::Invalid(InvalidVolumeData::NotRegularFile)),
        Err(fault) => Err(fault),
    }
}

/// The same in the directory of this path, which need not be there.
///
/// # Errors
/// When it cannot be looked at.
pub fn read_at(path: &Path) -> Result<Found, Fault> {
    Dir::open(path)?.map_or(Ok(Found::Missing), |dir| read(&dir))
}

/// What a `vol_data.json` says.
///
/// # Errors
/// It is torn.
pub fn parse(bytes: &[u8]) -> Result<VolumeData, InvalidVolumeData> {
    if bytes.iter().all(|byte| *byte == 0 || byte.is_ascii_whitespace()) {
        return Err(InvalidVolumeData::Empty);
    }
    let written: Written = serde_json::from_slice(bytes).map_err(|error| match error.is_eof() {
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

/// Whether a driver may have this name, which then is safe in a path.
pub fn is_driver(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    is_name(name.as_ref()) && name.len() <= LONGEST_DRIVER && name.bytes().all(allowed)
}

/// The directory of a staged volume's mount and file, in that of its driver.
pub fn staging_name(handle: &str) -> String {
    sha256([handle])
}

/// Where a volume is staged, below the kubelet's root; `None` for what is no name of a driver.
pub fn staging_dir(driver: &str, handle: &str) -> Option<PathBuf> {
    is_driver(driver).then(|| Path::new(STAGING).join(driver).join(staging_name(handle)))
}

/// The handle of a volume that is written out in a pod.
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
        // Cannot fail.
        let _written = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests;
