//! Mounts of pods that do not lie below the pod's own directory: that was renamed, or the kubelet has another root directory.
//!
//! A path lookup finds none of them. They are known by the UID in their path.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

/// What every kubelet calls the directory of its pods.
const PODS: &str = "pods";
/// Directories of a pod in which a kubelet mounts something on the node.
const MOUNTED_IN: [&str; 2] = ["volumes", "volume-subpaths"];
/// All that a kubelet makes in a pod's directory.
const OF_A_POD: [&str; 6] = [
    "volumes",
    "volume-subpaths",
    "volumeDevices",
    "plugins",
    "containers",
    "etc-hosts",
];
/// Raw block devices are mapped below this directory of a plugin, each in a file that is called as its pod's UID.
const DEVICES: &str = "volumeDevices";
/// Where CSI drivers stage devices.
const STAGED: [&str; 3] = ["csi", DEVICES, "staging"];
/// Groups of hexadecimal digits in a UUID.
const UUID: [usize; 5] = [8, 4, 4, 4, 12];

/// Mounts of pods in unexpected places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Strays {
    paths: Vec<PathBuf>,
    /// Where they stand in `paths`, by what may be a pod's UID.
    by_uid: HashMap<OsString, Vec<usize>>,
    devices: HashMap<OsString, Vec<PathBuf>>,
    without_uid: Vec<PathBuf>,
}

// === impl Strays ===

impl Strays {
    /// Notes a mount outside of the directory of all pods.
    pub fn note_outside(&mut self, path: &Path) {
        let is_told = |part: &OsStr| part == PODS || part == DEVICES || MOUNTED_IN.iter().any(|name| part == *name);
        if !path.iter().any(is_told) {
            return;
        }
        let parts: Vec<&OsStr> = path.iter().collect();
        self.note(path, &parts, false);
        // Beside them lies what is staged, by the names of volumes.
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

    /// Notes a mount below the directory of all pods; `relative` is its path from there. Names inside a pod's directory may be
    /// chosen by a tenant, so a mount there never counts for another pod.
    pub fn note_inside(&mut self, path: &Path, relative: &Path) {
        let parts: Vec<&OsStr> = relative.iter().collect();
        let is_of_a_pod = match parts.as_slice() {
            [] => true,
            [first] => is_plain(first),
            [first, second, ..] => is_plain(first) && OF_A_POD.iter().any(|name| second == name),
        };
        if !is_of_a_pod {
            self.note(path, &parts, parts.len() == 1);
        }
    }

    /// `is_whole`: the mount is on what may be the directory of a pod itself.
    fn note(&mut self, path: &Path, parts: &[&OsStr], is_whole: bool) {
        let mut uids: Vec<OsString> = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            // Directories above the kubelet's may be called so, too.
            if at > 0 && parts[at - 1] == PODS {
                uids.push((*part).to_owned());
            }
            let is_a_pods = match parts.get(at + 1) {
                Some(next) => MOUNTED_IN.iter().any(|name| next == name),
                None => is_whole,
            };
            if is_a_pods {
                uids.extend(uids_in(part));
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

    /// Those of the pod with this UID.
    pub fn of(&self, uid: &str) -> impl Iterator<Item = &Path> {
        let at = self.by_uid.get(OsStr::new(uid)).into_iter().flatten();
        at.map(|&at| self.paths[at].as_path())
    }

    /// Raw block devices that are mapped for it.
    pub fn devices_of(&self, uid: &str) -> &[PathBuf] {
        self.devices.get(OsStr::new(uid)).map_or(&[], Vec::as_slice)
    }

    /// UIDs of all pods that have such a device.
    pub fn with_devices(&self) -> impl Iterator<Item = &OsStr> {
        self.devices.keys().map(OsString::as_os_str)
    }

    /// Volumes in paths that do not tell whose they are.
    pub fn volumes_without_uid(&self) -> &[PathBuf] {
        &self.without_uid
    }
}

/// `volumes/<plugin>/<volume>` or `volume-subpaths/<volume>/<container>/<index>`, wherever that is.
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

/// Whether it may be the name of a pod's directory.
fn is_plain(name: &OsStr) -> bool {
    name.as_bytes().iter().all(is_part) && uids_in(name).all(|uid| uid == name)
}

/// What may be a pod's UID in the name of a directory: `UID.old` and `UID-old` as well.
fn uids_in(name: &OsStr) -> impl Iterator<Item = OsString> {
    let words = name
        .as_bytes()
        .split(|byte| !is_part(byte))
        .filter(|word| !word.is_empty());
    words.flat_map(|word| {
        let uuids = word.windows(36).filter(|window| is_uuid(window));
        std::iter::once(word)
            .chain(uuids.filter(move |uuid| *uuid != word))
            .map(|uid| OsStr::from_bytes(uid).to_owned())
    })
}

/// A UID that nothing else can be: a UUID, or a static pod's digest.
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
    fn a_volume_in_a_renamed_directory_is_its_pods_by_the_uid_in_the_new_name() {
        let inside = ["{}.bak", "{}-old", ".{}", "old_{}", "x-{}", "old/{}", "{}.bak/extra"];
        let inside = inside.map(|name| format!("/kubelet/pods/{}/volumes/a~b/v", name.replace("{}", UID)));
        let outside = ["{}", "{}.bak", "tmp-{}"];
        let outside = outside.map(|name| format!("/root/{}/volume-subpaths/v/c/0", name.replace("{}", UID)));
        for path in &inside[..6] {
            assert_eq!(strays(&[], &[path]).of(UID).count(), 1, "{path}");
        }
        // Nothing that a kubelet makes.
        assert_eq!(strays(&[], &[&inside[6]]).of(UID).count(), 0);
        for path in &outside {
            assert_eq!(strays(&[path], &[]).of(UID).count(), 1, "{path}");
        }
        let itself = format!("/kubelet/pods/{UID}.bak");
        assert_eq!(strays(&[], &[&itself]).of(UID).count(), 1);
        assert_eq!(
            strays(&[], &["/kubelet/pods/web.bak/volumes/a~b/v"]).of("web").count(),
            1
        );
    }

    #[test]
    fn names_that_a_tenant_chooses_make_no_mount_another_pods() {
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
        // A longer name is another one.
        assert_eq!(strays(&[], &["/kubelet/pods/web-2/volumes/a~b/v"]), Strays::default());
    }

    #[test]
    fn a_volume_in_a_path_without_any_uid_is_somebodys() {
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
    fn a_raw_block_device_is_mapped_for_the_pod_that_its_file_is_called_by() {
        let path = format!("/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv/{UID}");
        let staged = "/kubelet/plugins/kubernetes.io/csi/volumeDevices/staging/pv";
        let strays = strays(&[&path, staged], &[]);
        assert_eq!(strays.devices_of(UID), [PathBuf::from(&path)]);
        assert!(strays.devices_of("pv").is_empty(), "what is staged is no pod's");
        assert_eq!(strays.of(UID).count(), 0, "it is where it belongs");
        assert_eq!(strays.with_devices().collect::<Vec<_>>(), [UID]);
    }
}
