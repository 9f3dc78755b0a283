//! Identifies the driver and handle of a volume, even if the kubelet's file is damaged.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    super::super::storage::{Storage, fault_of},
    PLUGIN, TARGET, staging,
};
use crate::node::{
    csi_files::{FILE, Found, STAGING, VolumeData, staging_name, unique_name},
    fault::Fault,
    mounts::{Mount, MountTable},
    pod_dir::{PodDir, VolumeDir, names},
};

/// Driver and handle of a volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub driver: String,
    pub handle: String,
}

/// A file of the kubelet that does not identify its volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file:?} does not tell which volume it is about ({why})")]
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
    pub fn read(data: &Found, dir: &Path) -> Result<Self, UnidentifiedFile> {
        let why = match data {
            Found::Missing => "there is none".to_owned(),
            Found::Invalid(torn) => torn.to_string(),
            Found::Read(VolumeData {
                driver: Some(driver),
                handle: Some(handle),
                ..
            }) => {
                return Ok(Self {
                    driver: driver.clone(),
                    handle: handle.clone(),
                });
            }
            Found::Read(_) => "it lacks driver or handle".to_owned(),
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

/// Identifies a volume by the pod's file, else by the staged volume that it is a mount of, else by the PersistentVolume.
pub async fn of_volume(
    storage: &Arc<Storage>,
    pod: &PodDir,
    volume: &VolumeDir,
    data: &Found,
    target: &Path,
) -> Result<Option<Identity>, Vec<Fault>> {
    match Identity::read(data, &pod.path().join(volume.relative())) {
        Ok(identity) => return Ok(Some(identity)),
        Err(why) => tracing::warn!(pod.uid = pod.uid(), %why, "Volume is not identified by its file"),
    }
    if let Some(staged) = staged_as(storage, target.to_owned()).await? {
        return Ok(Some(staged));
    }
    by_persistent_volume(storage, &volume.name, target).await
}

/// Identifies a volume by the PersistentVolume with its name.
pub async fn by_persistent_volume(
    storage: &Storage,
    volume: &OsStr,
    place: &Path,
) -> Result<Option<Identity>, Vec<Fault>> {
    let Some(name) = volume.to_str() else {
        return Ok(None);
    };
    let told = storage.cluster.persistent_volume(name.to_owned()).await;
    let told = told.map_err(|why| fault_of("find the PersistentVolume of", place, &why))?;
    Ok(told.map(|(driver, handle)| Identity { driver, handle }))
}

/// The staged volume that this is a mount of.
async fn staged_as(storage: &Arc<Storage>, target: PathBuf) -> Result<Option<Identity>, Vec<Fault>> {
    let what = target.clone();
    let found = storage
        .look(&what, move |storage| {
            let table = storage.all_mounts.read()?;
            let Some(mount) = table.mounts_on(&target).into_iter().next() else {
                return Ok(None);
            };
            let staged = staging::all(storage)?;
            Ok(staged
                .into_iter()
                .find(|staged| staged.mount(&table).is_some_and(|it| is_of(&mount, &it))))
        })
        .await?;
    let Some(staged) = found else { return Ok(None) };
    staged.identity(storage).await
}

/// Whether one is a mount of the other, or of a part of it: the same file system, and nothing outside of it.
pub fn is_of(mount: &Mount, staged: &Mount) -> bool {
    mount.device == staged.device && mount.root.starts_with(&staged.root)
}

/// A mount of the file system at or below `staged` outside of the volume's own `paths`, which include `staged`. Volumes of one
/// server may share a file system without a device: then paths and users distinguish them.
pub fn mounted_elsewhere(table: &MountTable, root: &Path, staged: &Path, paths: &[PathBuf]) -> Option<PathBuf> {
    let here = table.mounts_at_or_below(&[staged]);
    let is_another_volumes = |other: &Mount| {
        let shared = other.device.0 == 0 && !other.source.as_encoded_bytes().starts_with(b"/dev/");
        shared && (is_staged(root, &other.path) || is_published(root, &other.path))
    };
    let is_own = |other: &Mount| paths.iter().any(|place| other.path.starts_with(place));
    let others = table.all().iter().filter(|other| !is_own(other));
    let mut others = others.filter(|other| !is_another_volumes(other));
    let other = others.find(|other| here.iter().any(|mount| is_of(other, mount)))?;
    Some(other.path.clone())
}

/// `plugins/kubernetes.io/csi/DRIVER/DIGEST/globalmount`.
fn is_staged(root: &Path, path: &Path) -> bool {
    let below = path.strip_prefix(root.join(STAGING));
    below.is_ok_and(|below| below.components().count() == 3 && below.ends_with(staging::GLOBAL))
}

/// `pods/UID/volumes/kubernetes.io~csi/VOLUME/mount`, or a part of it. It is of another volume: no pod uses this one.
fn is_published(root: &Path, path: &Path) -> bool {
    let Ok(below) = path.strip_prefix(root.join("pods")) else {
        return false;
    };
    let mut below = below.iter().skip(1);
    match below.next() {
        Some(dir) if dir == names::VOLUMES => below.next().is_some_and(|it| it == PLUGIN) && path.ends_with(TARGET),
        Some(dir) => dir == names::SUBPATHS,
        None => false,
    }
}

/// The handle with this staging directory, among the node's `volumesInUse`.
pub fn handle_in_use(in_use: &[String], driver: &str, directory: &str) -> Option<String> {
    let prefix = unique_name(driver, "");
    let handles = in_use.iter().filter_map(|name| name.strip_prefix(&prefix));
    handles
        .map(str::to_owned)
        .find(|handle| staging_name(handle) == directory)
}
