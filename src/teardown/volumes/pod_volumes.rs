//! The content of a pod's directory, sorted by what happens to it.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use super::kinds::{self, Kind, OwnKind, SharedKind};
use crate::node::{
    dirs::Dir,
    fault::{Cause, Fault},
    pod_dir::{PodDir, VolumeDir, entries_by_plugin, names, volumes_in},
};

/// The volumes of one pod.
#[derive(Default)]
pub(super) struct PodVolumes {
    /// Volumes that are torn down together.
    pub own: Vec<Volume<OwnKind>>,
    /// Volumes that are torn down one by one. Their subPath targets are unmounted before.
    pub shared: Vec<Volume<SharedKind>>,
    /// Directories `volume-subpaths/<volume>` without a volume: of hostPath volumes, or of removed volumes.
    pub stray: Vec<PathBuf>,
    /// Why volumes stay unchanged.
    pub skipped: Vec<Fault>,
    /// Directories of subPath targets that stay with their volume.
    pub kept: Vec<PathBuf>,
}

/// A volume to tear down.
pub(super) struct Volume<K> {
    pub dir: VolumeDir,
    pub kind: K,
    /// Its directory, or the link of a raw block volume.
    pub path: PathBuf,
    /// Directory of its subPath targets.
    pub subpaths: Option<PathBuf>,
}

// === impl PodVolumes ===

impl PodVolumes {
    /// Only the raw block volumes `mapped` for this pod, whose directory does not exist or cannot be seen.
    pub fn without_dir(pod: &PodDir, mapped: Vec<VolumeDir>) -> Self {
        let mut found = Self::default();
        // All have a supported kind.
        found.add_devices(&pod.path().join(names::DEVICES), mapped);
        found
    }

    /// The volumes in this pod's directory, and the raw block volumes `mapped` for it elsewhere.
    pub fn in_dir(dir: &Dir, mapped: Vec<VolumeDir>) -> Result<Self, Fault> {
        let all_subpaths = dir.path().join(names::SUBPATHS);
        let subpaths = dir.open_below(names::SUBPATHS)?;
        let mut subpaths = subpaths.map_or(Ok(Vec::new()), |subpaths| subpaths.names())?;
        let (volumes, unknown): (Vec<_>, Vec<_>) = volumes_in(dir)?
            .into_iter()
            .map(|volume| (kinds::for_plugin(&volume.plugin), volume))
            .partition(|(kind, _)| kind.is_some());
        let mut devices = entries_by_plugin(dir, names::DEVICES)?;
        devices.extend(mapped.into_iter().map(|it| (it.plugin, it.name)));
        devices.sort();
        devices.dedup();
        let devices = devices.into_iter().map(|(plugin, name)| VolumeDir { plugin, name });

        let mut found = Self::default();
        let unknown: Vec<_> = unknown.into_iter().map(|(_, volume)| volume).collect();
        let at = dir.path().join(names::VOLUMES);
        found
            .skipped
            .extend(unknown.iter().map(|it| unsupported("unmount", &at, it)));
        let unknown_devices = found.add_devices(&dir.path().join(names::DEVICES), devices);
        let is_other = |wanted: &OsStr| unknown.iter().chain(&unknown_devices).any(|it| it.name == wanted);

        for (kind, volume) in volumes {
            let path = dir.path().join(volume.relative());
            let target = all_subpaths.join(&volume.name);
            let has_subpaths = subpaths.contains(&volume.name);
            if has_subpaths && is_other(&volume.name) {
                found.skipped.push(Fault::new("unmount", target, Cause::SharedName));
                continue;
            }
            let subpaths = has_subpaths.then_some(target);
            match kind {
                Some(Kind::Own(kind)) => found.own.push(Volume::new(volume, kind, path, subpaths)),
                Some(Kind::Shared(kind)) => found.shared.push(Volume::new(volume, kind, path, subpaths)),
                None => {}
            }
        }
        let own = found.own.iter().map(|volume| &volume.dir.name);
        let named: Vec<_> = own.chain(found.shared.iter().map(|volume| &volume.dir.name)).collect();
        subpaths.retain(|name| !named.contains(&name));
        let (kept, stray): (Vec<_>, Vec<_>) = subpaths.into_iter().partition(|name| is_other(name));
        let paths = |names: Vec<OsString>| names.into_iter().map(|name| all_subpaths.join(name)).collect();
        (found.kept, found.stray) = (paths(kept), paths(stray));
        Ok(found)
    }

    /// Adds raw block volumes with links in the directory `at`. Returns those that are not supported.
    fn add_devices(&mut self, at: &Path, devices: impl IntoIterator<Item = VolumeDir>) -> Vec<VolumeDir> {
        let mut unknown = Vec::new();
        for device in devices {
            match kinds::for_device_plugin(&device.plugin) {
                Some(kind) => {
                    let path = at.join(&device.plugin).join(&device.name);
                    self.shared.push(Volume::new(device, kind, path, None));
                }
                None => {
                    self.skipped.push(unsupported("unmap", at, &device));
                    unknown.push(device);
                }
            }
        }
        unknown
    }

    /// All directories of subPath targets to remove.
    pub fn subpaths(&self) -> impl Iterator<Item = &Path> {
        let own = self.own.iter().map(|volume| &volume.subpaths);
        own.chain(self.shared.iter().map(|volume| &volume.subpaths))
            .flatten()
            .chain(&self.stray)
            .map(PathBuf::as_path)
    }
}

fn unsupported(verb: &'static str, at: &Path, volume: &VolumeDir) -> Fault {
    let VolumeDir { plugin, name } = volume.clone();
    Fault::new(
        verb,
        at.join(&plugin).join(&name),
        Cause::UnknownPlugin { plugin, name },
    )
}

// === impl Volume ===

impl<K> Volume<K> {
    fn new(dir: VolumeDir, kind: K, path: PathBuf, subpaths: Option<PathBuf>) -> Self {
        Self {
            dir,
            kind,
            path,
            subpaths,
        }
    }

    /// All paths with mounts of the volume, at or below, in the order of their unmount.
    pub fn paths(&self) -> Vec<&Path> {
        self.subpaths.iter().chain([&self.path]).map(PathBuf::as_path).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn found(paths: &[&str]) -> (PathBuf, PodVolumes) {
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        for path in paths {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        let found = PodVolumes::in_dir(&Dir::open(&root).unwrap().unwrap(), Vec::new()).unwrap();
        (root, found)
    }

    #[test]
    fn subpaths_belong_to_the_volume_of_their_name() {
        let (root, found) = found(&[
            "volumes/kubernetes.io~empty-dir/a",
            "volumes/kubernetes.io~secret/b",
            "volume-subpaths/a/c/0",
            "volume-subpaths/host/c/1",
        ]);
        let subpaths: Vec<_> = found.own.iter().map(|volume| volume.subpaths.clone()).collect();
        assert_eq!(subpaths, [Some(root.join("volume-subpaths/a")), None]);
        assert_eq!(found.stray, [root.join("volume-subpaths/host")]);
        assert_eq!(found.skipped, []);
    }

    #[test]
    fn unsupported_volumes_keep_their_subpaths_and_are_reported() {
        let (root, found) = found(&[
            "volumes/kubernetes.io~iscsi/pv",
            "volumeDevices/kubernetes.io~iscsi/block",
            "volume-subpaths/pv/c/0",
            "volume-subpaths/block/c/0",
        ]);
        assert_eq!((found.own.len(), found.stray.len(), found.kept.len()), (0, 0, 2));
        let paths: Vec<_> = found.skipped.iter().map(|fault| fault.path.clone()).collect();
        assert_eq!(
            paths,
            [
                root.join("volumes/kubernetes.io~iscsi/pv"),
                root.join("volumeDevices/kubernetes.io~iscsi/block")
            ]
        );
        let text = found.skipped[0].to_string();
        assert!(
            text.contains("kubernetes.io~iscsi") && text.contains("\"pv\""),
            "{text}"
        );
    }

    #[test]
    fn volume_with_ambiguous_subpaths_is_not_removed() {
        let both = ["volumes/kubernetes.io~empty-dir/data", "volumes/kubernetes.io~fc/data"];
        let (root, shared) = found(&[both[0], both[1], "volume-subpaths/data/c/0"]);
        assert_eq!((shared.own.len(), shared.stray.len()), (0, 0));
        assert_eq!(
            shared.skipped[1],
            Fault::new("unmount", root.join("volume-subpaths/data"), Cause::SharedName)
        );
        let (_, apart) = found(&both);
        assert_eq!(apart.own.len(), 1, "without subpaths there is nothing to mix up");
    }
}
