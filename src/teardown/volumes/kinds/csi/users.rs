//! The pods of this node that use a volume, with a file system or as a raw block device. All functions block.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use super::{
    identity::{Identity, unidentified},
    staging::{self, StagingPath},
};
use crate::{
    node::{
        csi_files,
        dirs::Dir,
        fault::{Cause, Fault},
        pod_dir::{entries_by_plugin, names, other_pods},
    },
    teardown::volumes::{
        storage::Storage,
        volume::{Shape, Volume},
    },
    why::Why,
};

/// A pod that uses a volume.
#[derive(Debug)]
pub struct User {
    /// The pod's UID.
    pub pod: String,
    /// How the pod uses the volume.
    shape: Shape,
    /// Name of the volume in the pod, or of the PersistentVolume.
    volume: OsString,
    /// The volume, or the file that does not show which one it is.
    pub identity: Result<Identity, Why>,
}

// === impl User ===

impl User {
    fn of_file_system(pod: String, volume: OsString, identity: Result<Identity, Why>) -> Self {
        Self {
            pod,
            shape: Shape::FileSystem,
            volume,
            identity,
        }
    }

    /// Whether this volume of a pod is the one that it uses.
    fn is_of(&self, volume: &Volume) -> bool {
        *self.pod == *volume.pod.uid() && self.shape == volume.shape && self.volume == volume.dir.name
    }

    /// Whether it uses this volume, or may use it.
    fn may_use(&self, identity: &Identity) -> bool {
        self.identity.as_ref().map_or(true, |own| own == identity)
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pod = &self.pod;
        match &self.identity {
            Ok(_) => write!(f, "pod {pod} uses it"),
            Err(unread) => write!(
                f,
                "pod {pod} may use it: {unread}, so that it counts as a use of every volume until that pod has terminated; if \
                 nothing is mounted beside that file, remove its directory, otherwise delete that pod"
            ),
        }
    }
}

/// A pod that uses the volume, or that may use it.
pub fn find_user(storage: &Storage, identity: &Identity, except: Option<&Volume>) -> Result<Option<User>, Fault> {
    let is_excepted = |user: &User| except.is_some_and(|volume| user.is_of(volume));
    find(storage, |user| !is_excepted(user) && user.may_use(identity))
}

/// Whether a pod of this node uses the volume, or may use it.
pub fn is_csi_volume_used(storage: &Storage, driver: &str, handle: &str) -> Result<bool, Fault> {
    let identity = Identity {
        driver: driver.to_owned(),
        handle: handle.to_owned(),
    };
    Ok(find_user(storage, &identity, None)?.is_some())
}

/// UIDs of the pods with a CSI volume of a driver for which `is_user` holds; `None` is a volume that nothing identifies.
pub fn csi_users(storage: &Storage, is_user: impl Fn(Option<&String>) -> bool) -> Result<BTreeSet<String>, Fault> {
    let mut users = Vec::new();
    read_users(storage, &mut users)?;
    users.retain(|user| is_user(user.identity.as_ref().ok().map(|it| &it.driver)));
    Ok(users.into_iter().map(|user| user.pod).collect())
}

/// A pod that uses the unidentified volume at this path, or that may use it. File systems are mounted for pods elsewhere.
pub fn find_user_of_unidentified(storage: &Storage, stage: &StagingPath) -> Result<Option<User>, Fault> {
    find(storage, |user| match stage {
        StagingPath::Block { volume, .. } if user.shape == Shape::Block && user.volume == *volume => true,
        StagingPath::Block { .. } | StagingPath::FileSystem { .. } => user.identity.is_err(),
    })
}

/// The first certain user, else the first possible one.
fn find(storage: &Storage, is_user: impl Fn(&User) -> bool) -> Result<Option<User>, Fault> {
    let mut users = Vec::new();
    let read = read_users(storage, &mut users);
    users.retain(is_user);
    if let Some(certain) = users.iter().position(|user| user.identity.is_ok()) {
        return Ok(Some(users.swap_remove(certain)));
    }
    read.map_err(unreadable_pod_dir)?;
    Ok(users.into_iter().next())
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

/// Adds all uses of volumes by pods of this node, up to the first that cannot be read.
pub fn read_users(storage: &Storage, users: &mut Vec<User>) -> Result<(), Fault> {
    let mut devices: BTreeMap<OsString, BTreeSet<String>> = BTreeMap::new();
    for pod in other_pods(&storage.root, "")? {
        let pod = pod?;
        for (plugin, volume) in entries_by_plugin(&pod, names::DEVICES)? {
            if plugin == names::CSI {
                devices.entry(volume).or_default().insert(pod.name());
            }
        }
        read_file_systems(&pod, users)?;
    }
    // A mount over the directory hides a volume, but does not remove it.
    let known = users.iter().filter(|it| it.shape == Shape::FileSystem);
    let mut seen: BTreeSet<_> = known.map(|it| (it.pod.clone(), it.volume.clone())).collect();
    let table = storage.all_mounts.read()?;
    for (pod, volume, dir) in table.all().filter_map(|it| published(storage, &it.path)) {
        if seen.insert((pod.clone(), volume.clone())) {
            let identity = Err(unidentified(&dir, "a mount hides its directory"));
            users.push(User::of_file_system(pod, volume, identity));
        }
    }
    // Raw block volumes may be mapped or published for pods without a link to them.
    for stage in StagingPath::all_block(storage)? {
        if let StagingPath::Block { volume, .. } = stage {
            let mut pods = staging::mapped(storage, &volume).users(storage)?;
            pods.extend(staging::published(storage, &volume).users(storage)?);
            devices.entry(volume).or_default().extend(pods);
        }
    }
    for (volume, pods) in devices {
        let identity = StagingPath::block(storage, &volume).read_identity()?;
        users.extend(pods.into_iter().map(|pod| User {
            pod,
            shape: Shape::Block,
            volume: volume.clone(),
            identity: identity.clone(),
        }));
    }
    Ok(())
}

/// Adds the volumes with a directory in this directory of a pod.
fn read_file_systems(pod: &Dir, users: &mut Vec<User>) -> Result<(), Fault> {
    let Some(volumes) = pod.open_below(Path::new(names::VOLUMES).join(names::CSI))? else {
        return Ok(());
    };
    for volume in volumes.names()? {
        if let Some(dir) = volumes.open_below(&volume)? {
            let identity = Identity::read(csi_files::read(&dir)?, dir.path());
            users.push(User::of_file_system(pod.name(), volume, identity));
        }
    }
    Ok(())
}

/// Pod, volume and the volume's directory of a file system that is mounted for a pod.
fn published(storage: &Storage, path: &Path) -> Option<(String, OsString, PathBuf)> {
    let mut parts = path.strip_prefix(storage.root.pods()).ok()?.iter();
    let (pod, volumes, plugin, volume) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_volume = volumes == names::VOLUMES && plugin == names::CSI;
    let dir = || storage.root.pods().join(pod).join(volumes).join(plugin).join(volume);
    is_volume.then(|| (pod.to_string_lossy().into_owned(), volume.to_owned(), dir()))
}
