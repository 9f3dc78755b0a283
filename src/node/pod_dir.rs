//! The kubelet's directory of a pod, and its contents.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use super::{
    dirs::Dir,
    fault::Fault,
    kubelet_root::KubeletRoot,
    mounts::{MountTable, Mounts},
};
use crate::model::failure::Reasoned;

/// Names within a pod's directory, as the kubelet chooses them.
pub mod names {
    /// `volumes/<plugin>/<volume>`.
    pub const VOLUMES: &str = "volumes";
    /// `volumeDevices/<plugin>/<volume>`, a symlink.
    pub const DEVICES: &str = "volumeDevices";
    /// `volume-subpaths/<volume>/<container>/<index>`.
    pub const SUBPATHS: &str = "volume-subpaths";
    /// `plugins/kubernetes.io~empty-dir/<volume>/ready`.
    pub const PLUGINS: &str = "plugins";
    /// Plugin whose markers mean that a volume is set up.
    pub const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
    /// Plugin of CSI volumes.
    pub const CSI: &str = "kubernetes.io~csi";
    /// Prefix of the marker's directory for volumes based on an emptyDir.
    pub const WRAPPED: &str = "wrapped_";
}

/// A pod's directory, which may not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDir {
    pods: PathBuf,
    uid: String,
    path: PathBuf,
}

/// A UID that would lead to another directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a pod UID")]
pub struct BadUid(String);

/// A directory `volumes/<plugin>/<name>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeDir {
    /// Name of the plugin's directory.
    pub plugin: OsString,
    /// Name of the volume's directory: the name in the pod, or the PersistentVolume's.
    pub name: OsString,
}

// === impl PodDir ===

impl PodDir {
    /// The directory of the pod `uid`. A UID with other characters than letters, digits and `-` is refused.
    pub fn new(root: &KubeletRoot, uid: &str) -> Result<Self, BadUid> {
        if !is_uid(uid) {
            return Err(BadUid(uid.to_owned()));
        }
        Ok(Self {
            pods: root.pods().to_owned(),
            uid: uid.to_owned(),
            path: root.pods().join(uid),
        })
    }

    /// Its path, without symlinks.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The pod's UID, which is also its name.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Opens its parent directory; `None` if that does not exist.
    pub fn open_parent(&self) -> Result<Option<Dir>, Fault> {
        Dir::open(&self.pods)
    }

    /// Opens it; `None` if it does not exist. It must not be a mount point.
    pub fn open(&self) -> Result<Option<Dir>, Fault> {
        match self.open_parent()? {
            Some(pods) => pods.open_below(&self.uid),
            None => Ok(None),
        }
    }

    /// Leftover volumes, subPath targets, block devices and mounts. Blocks.
    pub fn leftovers(&self, mounts: &Mounts) -> Result<Vec<PathBuf>, Fault> {
        let leftovers = self.leftovers_on_disk()?;
        // Reading the table is expensive, and not needed if the disk already shows leftovers.
        if leftovers.is_empty() {
            Ok(self.mounted(&*mounts.read()?))
        } else {
            Ok(leftovers)
        }
    }

    /// Mount points at or below the directory.
    pub fn mounted(&self, table: &MountTable) -> Vec<PathBuf> {
        let mounts = table.mounts_at_or_below(&[&self.path]).into_iter();
        mounts.map(|mount| mount.path).collect()
    }

    /// Volumes, subPath targets and block devices that have an entry.
    pub fn leftovers_on_disk(&self) -> Result<Vec<PathBuf>, Fault> {
        let Some(dir) = self.open()? else { return Ok(Vec::new()) };
        let mut leftovers = Vec::new();
        for parent in [names::VOLUMES, names::DEVICES] {
            leftovers.extend(entries_by_plugin(&dir, parent)?.iter().map(|(plugin, name)| {
                let mut path = self.path.join(parent);
                path.extend([plugin, name]);
                path
            }));
        }
        if let Some(subpaths) = dir.open_below(names::SUBPATHS)? {
            leftovers.extend(subpaths.names()?.iter().map(|name| subpaths.path().join(name)));
        }
        Ok(leftovers)
    }
}

/// The volumes with a directory in this open pod directory.
pub fn volumes_in(dir: &Dir) -> Result<Vec<VolumeDir>, Fault> {
    let found = entries_by_plugin(dir, names::VOLUMES)?.into_iter();
    let volumes = found.map(|(plugin, name)| VolumeDir { plugin, name });
    Ok(volumes.collect())
}

/// The directories of all pods except the one with this UID, opened one after the other: there may be thousands.
pub fn other_pods(root: &KubeletRoot, uid: &str) -> Result<impl Iterator<Item = Result<Dir, Fault>>, Fault> {
    let pods = Dir::open(root.pods())?;
    let names = pods.as_ref().map(Dir::names).transpose()?.unwrap_or_default();
    let uid = OsString::from(uid);
    let open = move |name: OsString| match pods.as_ref()?.open_below(&name) {
        Ok(other) => other.map(Ok),
        // Not a pod's: the kubelet creates only directories here.
        Err(fault) if matches!(fault.errno(), Some(Errno::ENOTDIR | Errno::ELOOP)) => None,
        Err(fault) => Some(Err(fault)),
    };
    Ok(names.into_iter().filter(move |name| *name != uid).filter_map(open))
}

/// All `<parent>/<plugin>/<name>`, sorted.
pub fn entries_by_plugin(dir: &Dir, parent: impl AsRef<Path>) -> Result<Vec<(OsString, OsString)>, Fault> {
    let mut found = Vec::new();
    let Some(parent) = dir.open_below(parent)? else {
        return Ok(found);
    };
    for plugin in parent.names()? {
        if let Some(volumes) = parent.open_below(&plugin)? {
            found.extend(volumes.names()?.into_iter().map(|name| (plugin.clone(), name)));
        }
    }
    found.sort();
    Ok(found)
}

/// UIDs are UUIDs for API pods and 32 hex digits for static pods.
fn is_uid(uid: &str) -> bool {
    (1..=63).contains(&uid.len()) && uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

// === impl VolumeDir ===

impl VolumeDir {
    /// Its path relative to the pod's directory.
    pub fn relative(&self) -> PathBuf {
        [OsStr::new(names::VOLUMES), &self.plugin, &self.name].iter().collect()
    }
}

impl Reasoned for BadUid {}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    const UID: &str = "0f3a8c1e-7a55-4d0e-9d0c-5f2f7a3b9c11";

    fn pod() -> (tempfile::TempDir, PodDir) {
        let temp = tempfile::tempdir().unwrap();
        fs::create_dir_all(temp.path().join("pods").join(UID)).unwrap();
        let root = KubeletRoot::resolve(temp.path()).unwrap();
        let pod = PodDir::new(&root, UID).unwrap();
        (temp, pod)
    }

    fn nothing_mounted() -> Mounts {
        Mounts::new("/dev/null", "/")
    }

    #[test]
    fn uid_with_path_characters_is_refused() {
        let (temp, _pod) = pod();
        let root = KubeletRoot::resolve(temp.path()).unwrap();
        for uid in [
            "",
            ".",
            "..",
            "a/b",
            "/",
            "a b",
            "a\n",
            "ü",
            "a.b",
            "a_b",
            &"a".repeat(64),
        ] {
            assert_eq!(PodDir::new(&root, uid), Err(BadUid(uid.to_owned())), "{uid:?}");
        }
        for uid in [UID, "0123456789abcdef0123456789abcdef", "a", "ABC-1"] {
            assert!(PodDir::new(&root, uid).is_ok(), "{uid:?}");
        }
    }

    #[test]
    fn volumes_are_found_with_their_plugin() {
        let (_temp, pod) = pod();
        let plugins = ["configmap", "csi", "empty-dir", "unheard-of"];
        for plugin in plugins {
            fs::create_dir_all(pod.path().join(format!("volumes/kubernetes.io~{plugin}/v"))).unwrap();
        }
        fs::create_dir_all(pod.path().join("volumes/kubernetes.io~empty")).unwrap();
        let found = volumes_in(&pod.open().unwrap().unwrap()).unwrap().into_iter();
        let found: Vec<_> = found.map(|volume| volume.plugin).collect();
        assert_eq!(
            found,
            plugins.map(|plugin| OsString::from(format!("kubernetes.io~{plugin}")))
        );
    }

    #[test]
    fn missing_directory_is_clean_without_volumes() {
        let (_temp, pod) = pod();
        fs::remove_dir(pod.path()).unwrap();
        assert_eq!(pod.leftovers(&nothing_mounted()), Ok(vec![]));
    }

    #[test]
    fn only_empty_plugin_directories_are_clean() {
        let (_temp, pod) = pod();
        for name in [
            "volumes/p",
            "volumeDevices/p",
            "volume-subpaths",
            "containers/c",
            "plugins/p",
        ] {
            fs::create_dir_all(pod.path().join(name)).unwrap();
        }
        fs::write(pod.path().join("etc-hosts"), "").unwrap();
        assert_eq!(pod.leftovers(&nothing_mounted()), Ok(vec![]));
        for leftover in ["volumes/p/v", "volumeDevices/p/v", "volume-subpaths/v"] {
            symlink("nowhere", pod.path().join(leftover)).unwrap();
            assert_eq!(pod.leftovers(&nothing_mounted()), Ok(vec![pod.path().join(leftover)]));
            fs::remove_file(pod.path().join(leftover)).unwrap();
        }
    }

    #[test]
    fn directory_with_a_mount_below_is_not_clean() {
        let (_temp, pod) = pod();
        let table = tempfile::NamedTempFile::new().unwrap();
        let path = pod.path().join("containers");
        fs::write(table.path(), format!("9 1 0:4 / {} rw - tmpfs t rw\n", path.display())).unwrap();
        assert_eq!(pod.leftovers(&Mounts::new(table.path(), "/")), Ok(vec![path]));
    }

    #[test]
    fn link_instead_of_a_directory_is_an_error() {
        let (_temp, pod) = pod();
        for name in ["volumes", "volume-subpaths", "volumeDevices"] {
            symlink("/etc", pod.path().join(name)).unwrap();
            let fault = pod.leftovers(&nothing_mounted()).unwrap_err();
            assert_eq!(fault.errno(), Some(Errno::ELOOP), "{name}");
            fs::remove_file(pod.path().join(name)).unwrap();
        }
    }
}
