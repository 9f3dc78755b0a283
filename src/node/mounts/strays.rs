//! Mounts of pods outside of the pod's directory: it was renamed, or the kubelet has another root directory.
//!
//! They are found by the UID in their path.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// Name of the directory with all pods, in every kubelet's root directory.
const PODS: &str = "pods";
/// Directories of a pod with mounts on the node.
const MOUNTED_IN: [&str; 2] = ["volumes", "volume-subpaths"];
/// Directories that a kubelet creates in a pod's directory.
const POD_ENTRIES: [&str; 6] = [
    "volumes",
    "volume-subpaths",
    "volumeDevices",
    "plugins",
    "containers",
    "etc-hosts",
];
/// Directory of a plugin with mapped raw block devices, in files named by the pod's UID.
const DEVICES: &str = "volumeDevices";
/// Directories in which CSI drivers stage devices.
const STAGED: [&str; 3] = ["csi", DEVICES, "staging"];
/// Lengths of the hexadecimal groups in a UUID.
const UUID: [usize; 5] = [8, 4, 4, 4, 12];

/// Mounts of pods at unexpected paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strays {
    paths: Vec<PathBuf>,
    /// Indexes in `paths`, by possible pod UID.
    by_uid: HashMap<OsString, Vec<usize>>,
    devices: HashMap<OsString, Vec<PathBuf>>,
    without_uid: Vec<PathBuf>,
}

// === impl Strays ===

impl Strays {
    /// Records a mount outside of the pods directory. Most are not of a pod.
    pub fn note_outside(&mut self, path: &Path) {
        let is_pod_entry =
            |part: &OsStr| part == PODS || part == DEVICES || MOUNTED_IN.iter().any(|name| part == *name);
        if !path.iter().any(is_pod_entry) {
            return;
        }
        let parts: Vec<&OsStr> = path.iter().collect();
        self.note(path, &parts, false);
        // Staged devices are in sibling directories, named by volumes.
        if let Some((last, above)) = parts.split_last()
            && above.iter().any(|part| *part == DEVICES)
            && !above
                .windows(STAGED.len())
                .any(|window| window == STAGED.map(OsStr::new))
        {
            let devices = self.devices.entry((*last).to_owned()).or_default();
            devices.push(path.to_owned());
        }
    }

    /// Records a mount below the pods directory; `relative` is its path from there. A tenant may choose names inside a
    /// pod's directory, so such a mount never counts for another pod.
    pub fn note_inside(&mut self, path: &Path, relative: &Path) {
        if !is_of_a_pod(relative) {
            let parts: Vec<&OsStr> = relative.iter().collect();
            self.note(path, &parts, parts.len() == 1);
        }
    }

    /// `is_pod_dir`: the mount point may be a pod's directory itself.
    fn note(&mut self, path: &Path, parts: &[&OsStr], is_pod_dir: bool) {
        let mut uids: Vec<OsString> = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            // Directories above the kubelet's root directory may have the same name.
            let is_in_pods = at > 0 && parts[at - 1] == PODS;
            if is_in_pods {
                uids.push((*part).to_owned());
            }
            let is_a_pods = match parts.get(at + 1) {
                Some(next) => MOUNTED_IN.iter().any(|name| next == name),
                None => is_pod_dir,
            };
            if is_a_pods {
                uids.extend(uids_in(part));
                // A tenant chooses the names in a pod's directory.
                if is_in_pods || uids_in(part).any(|uid| is_certain(&uid)) {
                    break;
                }
            }
        }
        uids.sort_unstable();
        uids.dedup();
        let is_named = uids.iter().any(|uid| is_certain(uid)) || parts.contains(&OsStr::new(PODS));
        if !is_named && is_volume(parts) {
            self.without_uid.push(path.to_owned());
        }
        if uids.is_empty() {
            return;
        }
        for uid in uids {
            self.by_uid.entry(uid).or_default().push(self.paths.len());
        }
        self.paths.push(path.to_owned());
    }

    /// Mounts of the pod with this UID outside of its directory: it was renamed, or the kubelet has another root directory.
    pub fn of_pod(&self, uid: &str) -> impl Iterator<Item = &Path> {
        let at = self.by_uid.get(OsStr::new(uid)).into_iter().flatten();
        at.map(|&at| self.paths[at].as_path())
    }

    /// Paths at which raw block devices are mapped for this pod.
    pub fn devices_of(&self, uid: &str) -> &[PathBuf] {
        self.devices.get(OsStr::new(uid)).map_or(&[], Vec::as_slice)
    }

    /// UIDs of all pods with such devices.
    pub fn with_devices(&self) -> impl Iterator<Item = &OsStr> {
        self.devices.keys().map(OsString::as_os_str)
    }

    /// Volumes in paths without a UID.
    pub fn volumes_without_uid(&self) -> &[PathBuf] {
        &self.without_uid
    }
}

/// Whether a mount at this path below the pods directory is where a pod's mounts are expected.
fn is_of_a_pod(relative: &Path) -> bool {
    let mut parts = relative.iter();
    match (parts.next(), parts.next()) {
        (None, _) => true,
        (Some(first), None) => is_plain(first),
        (Some(first), Some(second)) => is_plain(first) && POD_ENTRIES.iter().any(|name| second == *name),
    }
}

/// `volumes/<plugin>/<volume>` or `volume-subpaths/<volume>/<container>/<index>`, at any depth.
fn is_volume(parts: &[&OsStr]) -> bool {
    let is = |window: &[&OsStr]| match window {
        [dir, plugin, _, ..] if *dir == MOUNTED_IN[0] => plugin.as_bytes().contains(&b'~'),
        [dir, _, _, index] if *dir == MOUNTED_IN[1] => index.as_bytes().iter().all(u8::is_ascii_digit),
        _ => false,
    };
    (0..parts.len()).any(|at| is(&parts[at..]))
}

fn is_part(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'-'
}

/// Whether a pod's directory may have this name.
fn is_plain(name: &OsStr) -> bool {
    name.as_bytes().iter().all(is_part) && uids_in(name).all(|uid| uid == name)
}

/// Possible pod UIDs in the name of a directory, also in `UID.old` and `UID-old`.
fn uids_in(name: &OsStr) -> impl Iterator<Item = OsString> {
    let words = name.as_bytes().split(|byte| !is_part(byte));
    let words = words.filter(|word| !word.is_empty());
    words.flat_map(|word| {
        let uuids = word.windows(36).filter(|window| is_uuid(window));
        std::iter::once(word)
            .chain(uuids.filter(move |uuid| *uuid != word))
            .map(|uid| OsStr::from_bytes(uid).to_owned())
    })
}

/// Whether the text can only be a UID: a UUID, or a static pod's digest.
fn is_certain(text: &OsStr) -> bool {
    let bytes = text.as_bytes();
    is_uuid(bytes) || bytes.len() == 32 && bytes.iter().all(u8::is_ascii_hexdigit)
}

fn is_uuid(text: &[u8]) -> bool {
    let mut groups = text.split(|byte| *byte == b'-');
    let is_group = |length| {
        let group: Option<&[u8]> = groups.next();
        group.is_some_and(|group| group.len() == length && group.iter().all(u8::is_ascii_hexdigit))
    };
    UUID.into_iter().all(is_group) && groups.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "5f0d7f0e-1b1c-4f7e-8d2b-6a9c1c7e0a01";

    fn strays(outside: &[&str], inside: &[&str]) -> Strays {
        let mut strays = Strays::default();
        for path in outside {
            strays.note_outside(Path::new(path));
        }
        for path in inside {
            let relative = Path::new(path).strip_prefix("/kubelet/pods").unwrap();
            strays.note_inside(Path::new(path), relative);
        }
        strays
    }

    #[test]
    fn volume_in_a_renamed_directory_is_found_by_the_uid_in_its_name() {
        let inside = ["{}.bak", "{}-old", ".{}", "old_{}", "x-{}", "old/{}", "{}.bak/extra"];
        let inside = inside.map(|name| format!("/kubelet/pods/{}/volumes/a~b/v", name.replace("{}", UID)));
        let outside = ["{}", "{}.bak", "tmp-{}"];
        let outside = outside.map(|name| format!("/root/{}/volume-subpaths/v/c/0", name.replace("{}", UID)));
        for path in &inside[..6] {
            assert_eq!(strays(&[], &[path]).of_pod(UID).count(), 1, "{path}");
        }
        // Nothing that a kubelet makes.
        assert_eq!(strays(&[], &[&inside[6]]).of_pod(UID).count(), 0);
        for path in &outside {
            assert_eq!(strays(&[path], &[]).of_pod(UID).count(), 1, "{path}");
        }
        let itself = format!("/kubelet/pods/{UID}.bak");
        assert_eq!(strays(&[], &[&itself]).of_pod(UID).count(), 1);
        assert_eq!(
            strays(&[], &["/kubelet/pods/web.bak/volumes/a~b/v"])
                .of_pod("web")
                .count(),
            1
        );
    }

    #[test]
    fn names_chosen_by_a_tenant_never_count_for_another_pod() {
        let other = "0f3a8c1e-7a55-4d0e-9d0c-5f2f7a3b9c11";
        for path in [
            "volumes/kubernetes.io~empty-dir/{}",
            "volumes/kubernetes.io~csi/{}/mount/{}/volumes/a~b/v",
        ] {
            let path = format!("/kubelet/pods/{other}/{}", path.replace("{}", UID));
            assert_eq!(strays(&[], &[&path]), Strays::default(), "{path}");
        }
        let drivers = [format!("/var/lib/driver/{UID}"), format!("/var/lib/driver/{UID}/mount")];
        for path in &drivers {
            assert_eq!(strays(&[path], &[]), Strays::default(), "{path}");
        }
        // Names of a volume and a container, seen through a data disk with the kubelet's root.
        for dir in ["pods", "backup"] {
            let view = format!("/data/kubelet/{dir}/{other}/volume-subpaths/{UID}/volumes/0");
            let strays = strays(&[&view], &[]);
            assert_eq!(
                (strays.of_pod(UID).count(), strays.of_pod(other).count()),
                (0, 1),
                "{view}"
            );
        }
        // A longer name is another one.
        assert_eq!(strays(&[], &["/kubelet/pods/web-2/volumes/a~b/v"]), Strays::default());
    }

    #[test]
    fn volume_in_a_path_without_uid_is_recorded() {
        for (path, without_uid) in [
            ("/root/backup/volumes/kubernetes.io~projected/token", true),
            ("/root/backup/volume-subpaths/v/app/0", true),
            ("/srv/kubelet/pods/u1/volumes/kubernetes.io~projected/token", false),
            ("/srv/volumes/data", false),
            ("/srv/volumes/data/x", false),
        ] {
            assert_eq!(
                strays(&[path], &[]).volumes_without_uid().len(),
                usize::from(without_uid),
                "{path}"
            );
        }
        let named = format!("/root/{UID}/volumes/kubernetes.io~projected/token");
        assert_eq!(strays(&[&named], &[]).volumes_without_uid().len(), 0);
    }

    #[test]
    fn raw_block_device_belongs_to_the_pod_named_by_its_file() {
        let path = format!("/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv/{UID}");
        let staged = "/kubelet/plugins/kubernetes.io/csi/volumeDevices/staging/pv";
        let strays = strays(&[&path, staged], &[]);
        assert_eq!(strays.devices_of(UID), [PathBuf::from(&path)]);
        assert!(strays.devices_of("pv").is_empty(), "what is staged is no pod's");
        assert_eq!(strays.of_pod(UID).count(), 0, "it is where it belongs");
        assert_eq!(strays.with_devices().collect::<Vec<_>>(), [UID]);
    }
}
