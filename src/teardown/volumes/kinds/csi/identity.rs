//! Which driver has mounted a volume, and by which handle it knows it; also where the kubelet's file about it is torn.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    super::super::storage::{Storage, in_words},
    PLUGIN, TARGET, staging,
};
use crate::node::{
    csi_files::{FILE, Found, STAGING, VolumeData, staging_name, unique_name},
    fault::Fault,
    mounts::{Mount, MountTable},
    pod_dir::{PodDir, VolumeDir, names},
};

/// What a volume is called by its driver.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    pub driver: String,
    pub handle: String,
}

/// A file of the kubelet that does not tell which volume it is about.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file:?} does not tell which volume it is about ({why})")]
pub struct Unread {
    file: PathBuf,
    why: String,
}

// === impl Identity ===

impl Identity {
    /// As in the node's `volumesInUse`.
    pub fn unique_name(&self) -> String {
        unique_name(&self.driver, &self.handle)
    }

    /// What the kubelet's file in the directory `dir` says, if it says both.
    pub fn said(data: &Found, dir: &Path) -> Result<Self, Unread> {
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
        Err(Unread::new(dir, why))
    }
}

// === impl Unread ===

impl Unread {
    /// The file in the directory `dir`.
    pub fn new(dir: &Path, why: impl Into<String>) -> Self {
        Self {
            file: dir.join(FILE),
            why: why.into(),
        }
    }
}

/// Whose volume this is: by the pod's own file, else by what it is a mount of, else by the PersistentVolume.
pub async fn of_volume(
    storage: &Arc<Storage>,
    pod: &PodDir,
    volume: &VolumeDir,
    data: &Found,
    target: &Path,
) -> Result<Option<Identity>, Vec<Fault>> {
    match Identity::said(data, &pod.path().join(volume.relative())) {
        Ok(identity) => return Ok(Some(identity)),
        Err(why) => tracing::warn!(pod.uid = pod.uid(), %why, "Whose volume this is, is looked for elsewhere"),
    }
    if let Some(staged) = staged_as(storage, target.to_owned()).await? {
        return Ok(Some(staged));
    }
    by_persistent_volume(storage, &volume.name, target).await
}

/// Whose volume this is by the PersistentVolume, whose name is the volume's.
pub async fn by_persistent_volume(
    storage: &Storage,
    volume: &OsStr,
    place: &Path,
) -> Result<Option<Identity>, Vec<Fault>> {
    let Some(name) = volume.to_str() else {
        return Ok(None);
    };
    let told = storage.cluster.persistent_volume(name.to_owned()).await;
    let told = told.map_err(|why| in_words("find the PersistentVolume of", place, &why))?;
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

/// Where else than at the volume's own `places` something is mounted of what is mounted at or below `staged`, which is one of
/// them. Volumes of one server may share a file system without a device, each with mounts of its own: those are known by
/// where they are, and by whom they are used.
pub fn mounted_elsewhere(table: &MountTable, root: &Path, staged: &Path, places: &[PathBuf]) -> Option<PathBuf> {
    let here = table.mounts_at_or_below(&[staged]);
    let is_another_volumes = |other: &Mount| {
        let shared = other.device.0 == 0 && !other.source.as_encoded_bytes().starts_with(b"/dev/");
        shared && (is_staged(root, &other.path) || is_published(root, &other.path))
    };
    let is_own = |other: &Mount| places.iter().any(|place| other.path.starts_with(place));
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

/// `pods/UID/volumes/kubernetes.io~csi/VOLUME/mount`, or a part of such: of another volume, since nobody uses this one.
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

/// The handle with this staging directory, among those that the node has in use.
pub fn handle_in_use(in_use: &[String], driver: &str, directory: &str) -> Option<String> {
    let prefix = unique_name(driver, "");
    let handles = in_use.iter().filter_map(|name| name.strip_prefix(&prefix));
    handles
        .map(str::to_owned)
        .find(|handle| staging_name(handle) == directory)
}
