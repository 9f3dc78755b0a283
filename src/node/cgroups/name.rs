//! Names of pod cgroups, as the kubelet chooses them.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use crate::node::fault::BadPart;

/// QoS class of a pod, which determines the parent cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Qos {
    /// Requests equal limits. Directly below `kubepods`.
    Guaranteed,
    /// Some requests or limits.
    Burstable,
    /// No requests and no limits.
    BestEffort,
}

/// Path of a pod's cgroup relative to the root of each hierarchy, without `..`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodCgroup(PathBuf);

/// Parent cgroup of all pods below the configured cgroup root (node allocatable).
const KUBEPODS: &str = "kubepods";

// === impl Qos ===

impl Qos {
    fn parent(self) -> Option<&'static str> {
        match self {
            Self::Guaranteed => None,
            Self::Burstable => Some("burstable"),
            Self::BestEffort => Some("besteffort"),
        }
    }
}

// === impl PodCgroup ===

impl PodCgroup {
    /// The path relative to the root of a hierarchy.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether it is a systemd slice. Pod cgroups of the cgroupfs driver never end like this.
    pub fn is_slice(&self) -> bool {
        self.unit().ends_with(".slice")
    }

    /// Its last component, which is the unit name with the systemd driver.
    pub fn unit(&self) -> &str {
        self.0.file_name().and_then(OsStr::to_str).unwrap_or_default()
    }
}

/// The pod's cgroup with the cgroupfs driver.
pub fn pod_cgroup_name(cgroup_root: &str, qos: Qos, uid: &str) -> Result<PodCgroup, BadPart> {
    Ok(PodCgroup(parts(cgroup_root, qos, uid)?.iter().collect()))
}

/// The pod's slice with the systemd driver; the last component is the unit name.
pub fn pod_slice_name(cgroup_root: &str, qos: Qos, uid: &str) -> Result<PodCgroup, BadPart> {
    let mut path = PathBuf::new();
    let mut slice = String::new();
    for part in parts(cgroup_root, qos, uid)? {
        // Names must be reversible: the kubelet refuses such parts as well.
        if part.contains('_') {
            return Err(BadPart(part, "cgroup"));
        }
        if !slice.is_empty() {
            slice.push('-');
        }
        slice.push_str(&part.replace('-', "_"));
        path.push(format!("{slice}.slice"));
    }
    Ok(PodCgroup(path))
}

/// The UID in the name of a pod's cgroup or slice: the reverse of [`pod_cgroup_name`] and [`pod_slice_name`]. The caller
/// checks that the name is at a pod's level.
pub fn uid_in(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        // Parts are joined by `-` and contain none: a UID's `-` is written as `_`.
        Some(slice) => slice.rsplit('-').next()?.strip_prefix("pod")?.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    is_part(&uid).then_some(uid)
}

fn parts(cgroup_root: &str, qos: Qos, uid: &str) -> Result<Vec<String>, BadPart> {
    if !is_part(uid) {
        return Err(BadPart(uid.to_owned(), "cgroup"));
    }
    let root = cgroup_root.split('/').filter(|part| !part.is_empty());
    let parents = root.chain([KUBEPODS]).chain(qos.parent()).map(str::to_owned);
    let parts: Vec<String> = parents.chain([format!("pod{uid}")]).collect();
    match parts.iter().find(|part| !is_part(part)) {
        Some(bad) => Err(BadPart(bad.clone(), "cgroup")),
        None => Ok(parts),
    }
}

fn is_part(part: &str) -> bool {
    !part.is_empty() && part.len() <= 255 && !part.starts_with('.') && !part.contains(['/', '\0', '\n'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_qos_class_has_its_cgroup_with_both_drivers() {
        let table = [
            (
                "/",
                Qos::Guaranteed,
                "kubepods/pod12-ab",
                "kubepods.slice/kubepods-pod12_ab.slice",
            ),
            (
                "",
                Qos::Burstable,
                "kubepods/burstable/pod12-ab",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice",
            ),
            (
                "/kubelet",
                Qos::BestEffort,
                "kubelet/kubepods/besteffort/pod12-ab",
                "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/\
                 kubelet-kubepods-besteffort-pod12_ab.slice",
            ),
            (
                "/a-b/c/",
                Qos::Guaranteed,
                "a-b/c/kubepods/pod12-ab",
                "a_b.slice/a_b-c.slice/a_b-c-kubepods.slice/a_b-c-kubepods-pod12_ab.slice",
            ),
        ];
        for (root, qos, cgroupfs, systemd) in table {
            assert_eq!(pod_cgroup_name(root, qos, "12-ab").unwrap().path(), Path::new(cgroupfs));
            assert_eq!(pod_slice_name(root, qos, "12-ab").unwrap().path(), Path::new(systemd));
            for path in [cgroupfs, systemd] {
                let name = path.rsplit('/').next().unwrap();
                assert_eq!(uid_in(name).as_deref(), Some("12-ab"), "{name}");
            }
        }
    }

    #[test]
    fn names_outside_of_the_hierarchy_or_of_another_pod_are_refused() {
        for uid in ["", "..", "../x", "a/b", "/", ".", "a\n"] {
            assert!(pod_cgroup_name("/", Qos::Burstable, uid).is_err(), "{uid:?}");
            assert!(pod_slice_name("/", Qos::Burstable, uid).is_err(), "{uid:?}");
        }
        for root in ["..", "/a/../b", "/.", "a/\0"] {
            assert!(pod_cgroup_name(root, Qos::Burstable, "u").is_err(), "{root:?}");
        }
        assert_eq!(
            pod_slice_name("/my_root", Qos::Burstable, "u"),
            Err(BadPart("my_root".into(), "cgroup"))
        );
    }

    #[test]
    fn names_of_other_cgroups_contain_no_uid() {
        for name in [
            "",
            "pod",
            "burstable",
            "kubepods-burstable.slice",
            "cri-containerd-12ab.scope",
            "kubepods-pod.slice",
            ".slice",
            "pod../x",
        ] {
            assert_eq!(uid_in(name), None, "{name:?}");
        }
    }
}
