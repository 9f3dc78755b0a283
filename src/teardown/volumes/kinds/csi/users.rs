//! The pods of this node that use a volume, with a file system or as a raw block device.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use super::{
    block_paths::{self, BlockVolumePaths},
    identity::{Identity, UnidentifiedFile},
    staging_path::StagingPath,
};
use crate::{
    node::{
        csi_files,
        fault::{Cause, Fault},
        pod_dir::{PodDir, VolumeDir, entries_by_plugin, names, other_pods},
    },
    teardown::volumes::storage::Storage,
};

/// A pod's use of one of its volumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// The pod's UID.
    pub pod: String,
    /// How the pod uses the volume.
    pub shape: Shape,
    /// Name of the volume in the pod, or of the PersistentVolume.
    pub volume: OsString,
}

/// How a pod uses a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    FileSystem,
    Block,
}

/// A pod that uses a volume, or may use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub of: Use,
    /// The file that does not show whether it is this volume.
    pub unread: Option<UnidentifiedFile>,
}

// === impl Use ===

impl Use {
    pub fn new(pod: &PodDir, shape: Shape, volume: &VolumeDir) -> Self {
        Self {
            pod: pod.uid().to_owned(),
            shape,
            volume: volume.name.clone(),
        }
    }
}

// === impl User ===

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod = &self.of.pod;
        match &self.unread {
            None => write!(f, "pod {pod} uses it"),
            Some(unread) => write!(
                f,
                "pod {pod} may use it: {unread}, so that it counts as a use of every volume until that pod has terminated; if \
                 nothing is mounted beside that file, remove its directory, otherwise delete that pod"
            ),
        }
    }
}

/// A pod that uses the volume, or that may use it. Blocks.
pub fn find_user(storage: &Storage, identity: &Identity, except: Option<&Use>) -> Result<Option<User>, Fault> {
    let is_user =
        |user: &Use, identified: Option<&Identity>| except != Some(user) && identified.is_none_or(|it| it == identity);
    find(storage, is_user)
}

/// Whether a pod of this node uses the volume, or may use it. Blocks.
pub fn is_csi_volume_used(storage: &Storage, driver: &str, handle: &str) -> Result<bool, Fault> {
    let identity = Identity {
        driver: driver.to_owned(),
        handle: handle.to_owned(),
    };
    Ok(find_user(storage, &identity, None)?.is_some())
}

/// A pod that uses the unidentified volume at this path, or that may use it. File systems are mounted for pods elsewhere. Blocks.
pub fn find_user_of_unidentified(storage: &Storage, stage: &StagingPath) -> Result<Option<User>, Fault> {
    find(storage, |user, identified| match stage {
        StagingPath::Block(paths) if user.shape == Shape::Block && user.volume == paths.volume => true,
        StagingPath::Block(_) | StagingPath::FileSystem(_) => identified.is_none(),
    })
}

/// The first certain user, else the first possible one.
fn find(storage: &Storage, is: impl Fn(&Use, Option<&Identity>) -> bool) -> Result<Option<User>, Fault> {
    let mut possible = None;
    let certain = each(storage, &mut |of, identified| {
        if !is(&of, identified.as_ref().ok()) {
            return None;
        }
        match identified {
            Ok(_) => Some(User { of, unread: None }),
            Err(unread) => {
                possible.get_or_insert(User {
                    of,
                    unread: Some(unread),
                });
                None
            }
        }
    });
    Ok(certain.map_err(unreadable_pod_dir)?.or(possible))
}

/// The fault may be of another pod's directory than the one that is torn down.
fn unreadable_pod_dir(fault: Fault) -> Fault {
    let why = format!(
        "{}; it is unknown whether the pod of this directory uses the volume, so that the volume stays staged: unmount or \
         remove what no kubelet has created there",
        fault.cause
    );
    Fault::new(fault.verb, fault.path, Cause::Message(why))
}

/// The first result of `check` over all uses of volumes and their identities. Blocks.
pub fn each<T>(
    storage: &Storage,
    check: &mut impl FnMut(Use, Result<Identity, UnidentifiedFile>) -> Option<T>,
) -> Result<Option<T>, Fault> {
    let mut devices: BTreeMap<OsString, BTreeSet<String>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for pod in other_pods(&storage.root, "")? {
        let pod = pod?;
        for (plugin, volume) in entries_by_plugin(&pod, names::DEVICES)? {
            if plugin == names::CSI {
                devices.entry(volume).or_default().insert(pod.name());
            }
        }
        let plugin = Path::new(names::VOLUMES).join(names::CSI);
        let Some(volumes) = pod.open_below(&plugin)? else {
            continue;
        };
        for volume in volumes.names()? {
            let Some(dir) = volumes.open_below(&volume)? else {
                continue;
            };
            let identified = Identity::read(&csi_files::read(&dir)?, dir.path());
            seen.insert((pod.name(), volume.clone()));
            let user = Use {
                pod: pod.name(),
                shape: Shape::FileSystem,
                volume,
            };
            if let Some(found) = check(user, identified) {
                return Ok(Some(found));
            }
        }
    }
    // A mount over the directory hides a volume, but does not remove it.
    let table = storage.all_mounts.read()?;
    for (pod, volume, dir) in table.all().filter_map(|it| published(storage, &it.path)) {
        if !seen.insert((pod.clone(), volume.clone())) {
            continue;
        }
        let unread = UnidentifiedFile::new(&dir, "a mount hides its directory");
        let shape = Shape::FileSystem;
        if let Some(found) = check(Use { pod, shape, volume }, Err(unread)) {
            return Ok(Some(found));
        }
    }
    for paths in block_paths::all(storage)? {
        devices
            .entry(paths.volume.clone())
            .or_default()
            .extend(paths.users(storage)?);
    }
    for (volume, pods) in devices {
        let identified = BlockVolumePaths::for_volume(storage, &volume).read_identity()?;
        for pod in pods {
            let user = Use {
                pod,
                shape: Shape::Block,
                volume: volume.clone(),
            };
            if let Some(found) = check(user, identified.clone()) {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// Pod, volume and the volume's directory of a file system that is mounted for a pod.
fn published(storage: &Storage, path: &Path) -> Option<(String, OsString, PathBuf)> {
    let mut parts = path.strip_prefix(storage.root.pods()).ok()?.iter();
    let (pod, volumes, plugin, volume) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_volume = volumes == names::VOLUMES && plugin == names::CSI;
    let dir = || storage.root.pods().join(pod).join(volumes).join(plugin).join(volume);
    is_volume.then(|| (pod.to_string_lossy().into_owned(), volume.to_owned(), dir()))
}
