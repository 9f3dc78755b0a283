//! The content of a pod's directory, sorted by what happens to it.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

use super::{
    kind::{OneByOne, VolumeKind},
    kinds,
};
use crate::node::{
    dirs::Dir,
    fault::{Cause, Fault},
    pod_dir::{VolumeDir, entries_by_plugin, names, volumes_in},
};

/// The volumes of one pod.
pub(super) struct PodVolumes {
    /// Volumes that are torn down together.
    pub known: Vec<KnownVolume>,
    /// Volumes that are torn down one by one.
    pub one_by_one: Vec<SingleVolume>,
    /// Directories `volume-subpaths/<volume>` without a volume: of hostPath volumes, or of removed volumes.
    pub stray: Vec<PathBuf>,
    /// Why volumes stay unchanged.
    pub skipped: Vec<Fault>,
    /// Directories of subPath targets that stay with their volume.
    pub kept: Vec<PathBuf>,
}

/// A volume to tear down.
pub(super) struct KnownVolume {
    pub volume: VolumeDir,
    pub kind: &'static dyn VolumeKind,
    /// Its directory.
    pub path: PathBuf,
    /// Directory of its subPath targets.
    pub subpaths: Option<PathBuf>,
}

/// A volume to tear down by itself.
pub(super) struct SingleVolume {
    pub volume: VolumeDir,
    pub kind: &'static dyn OneByOne,
    /// Its directory.
    pub path: PathBuf,
    /// Directory of its subPath targets. They are unmounted first.
    pub subpaths: Option<PathBuf>,
}

// === impl PodVolumes ===

impl PodVolumes {
    /// The volumes in this pod's directory, and the raw block volumes `mapped` for it elsewhere.
    pub fn in_dir(dir: &Dir, mapped: Vec<VolumeDir>) -> Result<Self, Fault> {
        let all_subpaths = dir.path().join(names::SUBPATHS);
        let mut subpaths = match dir.open_below(names::SUBPATHS)? {
            Some(subpaths) => subpaths.names()?,
            None => Vec::new(),
        };
        let mut others = Vec::new();
        let mut volumes = Vec::new();
        for volume in volumes_in(dir)? {
            match kinds::for_plugin(&volume.plugin) {
                Some(kind) => volumes.push((volume, kind)),
                None => others.push((volume.plugin, volume.name)),
            }
        }
        let mut devices = entries_by_plugin(dir, names::DEVICES)?;
        devices.extend(mapped.into_iter().map(|it| (it.plugin, it.name)));
        devices.sort();
        devices.dedup();
        let (handled, devices): (Vec<_>, Vec<_>) = devices
            .into_iter()
            .partition(|(plugin, _)| kinds::for_device_plugin(plugin).is_some());
        let handled = handled.into_iter().map(|(plugin, name)| VolumeDir { plugin, name });
        let mut known = Vec::new();
        let mut one_by_one: Vec<_> = self::one_by_one(handled)
            .into_iter()
            .map(|(volume, kind)| SingleVolume {
                path: [
                    dir.path(),
                    names::DEVICES.as_ref(),
                    volume.plugin.as_ref(),
                    volume.name.as_ref(),
                ]
                .iter()
                .collect(),
                volume,
                kind,
                subpaths: None,
            })
            .collect();
        let mut skipped = unsupported("unmount", &dir.path().join(names::VOLUMES), &others);
        skipped.extend(unsupported("unmap", &dir.path().join(names::DEVICES), &devices));
        let is_other = |wanted: &OsStr| others.iter().chain(&devices).any(|(_, name)| name == wanted);

        for (volume, kind) in volumes {
            let target = all_subpaths.join(&volume.name);
            let has_subpaths = subpaths.contains(&volume.name);
            if has_subpaths && is_other(&volume.name) {
                skipped.push(Fault::new("unmount", target, Cause::SharedName));
                continue;
            }
            let path = dir.path().join(volume.relative());
            let subpaths = has_subpaths.then_some(target);
            match kind.one_by_one() {
                Some(kind) => one_by_one.push(SingleVolume {
                    volume,
                    kind,
                    path,
                    subpaths,
                }),
                None => known.push(KnownVolume {
                    volume,
                    kind,
                    path,
                    subpaths,
                }),
            }
        }
        let named = known.iter().map(|known| &known.volume.name);
        let named: Vec<_> = named
            .chain(one_by_one.iter().map(|single| &single.volume.name))
            .collect();
        subpaths.retain(|name| !named.contains(&name));
        let (kept, stray): (Vec<_>, Vec<_>) = subpaths.into_iter().partition(|name| is_other(name));
        let paths = |names: Vec<OsString>| names.into_iter().map(|name| all_subpaths.join(name)).collect();
        Ok(Self {
            known,
            one_by_one,
            stray: paths(stray),
            skipped,
            kept: paths(kept),
        })
    }

    /// All directories of subPath targets to remove.
    pub fn subpaths(&self) -> impl Iterator<Item = &Path> {
        let known = self.known.iter().map(|known| &known.subpaths);
        known
            .chain(self.one_by_one.iter().map(|single| &single.subpaths))
            .filter_map(Option::as_deref)
            .chain(self.stray.iter().map(PathBuf::as_path))
    }
}

/// Supported raw block volumes, with their kinds.
pub(super) fn one_by_one(devices: impl IntoIterator<Item = VolumeDir>) -> Vec<(VolumeDir, &'static dyn OneByOne)> {
    let with_kind = |volume: VolumeDir| {
        let kind = kinds::for_device_plugin(&volume.plugin)?;
        Some((volume, kind as &dyn OneByOne))
    };
    devices.into_iter().filter_map(with_kind).collect()
}

fn unsupported(verb: &'static str, dir: &Path, volumes: &[(OsString, OsString)]) -> Vec<Fault> {
    let fault = |(plugin, name): &(OsString, OsString)| {
        let cause = Cause::UnknownPlugin {
            plugin: plugin.clone(),
            name: name.clone(),
        };
        Fault::new(verb, dir.join(plugin).join(name), cause)
    };
    volumes.iter().map(fault).collect()
}

// === impl KnownVolume ===

impl KnownVolume {
    /// All paths with mounts of the volume, at or below.
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
        let subpaths: Vec<_> = found.known.iter().map(|known| known.subpaths.clone()).collect();
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
        assert_eq!((found.known.len(), found.stray.len(), found.kept.len()), (0, 0, 2));
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
        assert_eq!((shared.known.len(), shared.stray.len()), (0, 0));
        assert_eq!(
            shared.skipped[1],
            Fault::new("unmount", root.join("volume-subpaths/data"), Cause::SharedName)
        );
        let (_, apart) = found(&both);
        assert_eq!(apart.known.len(), 1, "without subpaths there is nothing to mix up");
    }
}
