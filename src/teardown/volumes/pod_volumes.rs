//! The content of a pod's directory, sorted by what happens to it.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{
    kinds::{self, Kind, OwnKind, SharedKind},
    volume::{Shape, Volume},
};
use crate::node::{
    dirs::Dir,
    fault::{Cause, Fault},
    pod_dir::{PodDir, VolumeDir, entries_by_plugin, names, volumes_in},
};

/// The volumes of one pod.
#[derive(Default)]
pub(super) struct PodVolumes {
    /// Volumes that are torn down together.
    pub own: Vec<(OwnKind, Volume)>,
    /// Volumes that are torn down one by one. Their subPath targets are unmounted before.
    pub shared: Vec<(SharedKind, Volume)>,
    /// Directories `volume-subpaths/<volume>` without a volume: of hostPath volumes, or of removed volumes.
    pub stray: Vec<PathBuf>,
    /// Why volumes stay unchanged.
    pub skipped: Vec<Fault>,
    /// Directories of subPath targets that stay with their volume.
    pub kept: Vec<PathBuf>,
}

// === impl PodVolumes ===

impl PodVolumes {
    /// Only the raw block volumes `mapped` for this pod, whose directory does not exist or cannot be seen.
    pub fn without_dir(pod: &PodDir, mapped: Vec<VolumeDir>) -> Self {
        let mut found = Self::default();
        for device in mapped {
            found.add(pod, Shape::Block, device, None);
        }
        found
    }

    /// The volumes in this pod's directory, and the raw block volumes `mapped` for it elsewhere.
    pub fn in_dir(pod: &PodDir, dir: &Dir, mapped: Vec<VolumeDir>) -> Result<Self, Fault> {
        let all_subpaths = dir.path().join(names::SUBPATHS);
        let subpaths = dir.open_below(names::SUBPATHS)?;
        let mut subpaths = subpaths.map_or(Ok(Vec::new()), |subpaths| subpaths.names())?;
        let mut devices = entries_by_plugin(dir, names::DEVICES)?;
        devices.extend(mapped.into_iter().map(|it| (it.plugin, it.name)));
        devices.sort();
        devices.dedup();
        let devices = devices.into_iter().map(|(plugin, name)| VolumeDir { plugin, name });
        let volumes = volumes_in(dir)?.into_iter().map(|volume| (Shape::FileSystem, volume));
        let (mut known, unknown): (Vec<_>, Vec<_>) = volumes
            .chain(devices.map(|device| (Shape::Block, device)))
            .partition(|(shape, it)| kinds::for_plugin(*shape, &it.plugin).is_some());

        let mut found = Self::default();
        let is_other = |wanted: &OsString| unknown.iter().any(|(_, it)| it.name == *wanted);
        for (shape, volume) in &unknown {
            found.add(pod, *shape, volume.clone(), None);
        }
        known.sort_by_key(|(shape, _)| *shape == Shape::FileSystem);
        for (shape, volume) in known {
            let target = all_subpaths.join(&volume.name);
            let has_subpaths = shape == Shape::FileSystem && subpaths.contains(&volume.name);
            if has_subpaths && is_other(&volume.name) {
                found.skipped.push(Fault::new("unmount", target, Cause::SharedName));
            } else {
                found.add(pod, shape, volume, has_subpaths.then_some(target));
            }
        }
        let own = found.own.iter().map(|(_, volume)| &volume.dir.name);
        let shared = found.shared.iter().map(|(_, volume)| &volume.dir.name);
        let named: Vec<_> = own.chain(shared).collect();
        subpaths.retain(|name| !named.contains(&name));
        let (kept, stray): (Vec<_>, Vec<_>) = subpaths.into_iter().partition(is_other);
        let paths = |names: Vec<OsString>| names.into_iter().map(|name| all_subpaths.join(name)).collect();
        (found.kept, found.stray) = (paths(kept), paths(stray));
        Ok(found)
    }

    /// Adds a volume. One of an unsupported kind is skipped.
    fn add(&mut self, pod: &PodDir, shape: Shape, dir: VolumeDir, subpaths: Option<PathBuf>) {
        let (verb, parent) = match shape {
            Shape::FileSystem => ("unmount", names::VOLUMES),
            Shape::Block => ("unmap", names::DEVICES),
        };
        let volume = Volume {
            path: pod.path().join(parent).join(&dir.plugin).join(&dir.name),
            pod: pod.clone(),
            dir,
            shape,
            subpaths,
        };
        match kinds::for_plugin(shape, &volume.dir.plugin) {
            Some(Kind::Own(kind)) => self.own.push((kind, volume)),
            Some(Kind::Shared(kind)) => self.shared.push((kind, volume)),
            None => {
                let VolumeDir { plugin, name } = volume.dir;
                let cause = Cause::UnknownPlugin { plugin, name };
                self.skipped.push(Fault::new(verb, volume.path, cause));
            }
        }
    }

    /// All directories of subPath targets to remove.
    pub fn subpaths(&self) -> impl Iterator<Item = &Path> {
        let own = self.own.iter().map(|(_, volume)| &volume.subpaths);
        own.chain(self.shared.iter().map(|(_, volume)| &volume.subpaths))
            .flatten()
            .chain(&self.stray)
            .map(PathBuf::as_path)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::node::kubelet_root::KubeletRoot;

    fn found(paths: &[&str]) -> (PathBuf, PodVolumes) {
        let temp = tempfile::tempdir().unwrap();
        let root = KubeletRoot::at(temp.path().canonicalize().unwrap());
        let pod = PodDir::new(&root, "u").unwrap();
        for path in paths {
            fs::create_dir_all(pod.path().join(path)).unwrap();
        }
        let found = PodVolumes::in_dir(&pod, &pod.open().unwrap().unwrap(), Vec::new()).unwrap();
        (pod.path().to_owned(), found)
    }

    #[test]
    fn subpaths_belong_to_the_volume_of_their_name() {
        let (root, found) = found(&[
            "volumes/kubernetes.io~empty-dir/a",
            "volumes/kubernetes.io~secret/b",
            "volume-subpaths/a/c/0",
            "volume-subpaths/host/c/1",
        ]);
        let subpaths: Vec<_> = found.own.iter().map(|(_, volume)| volume.subpaths.clone()).collect();
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
