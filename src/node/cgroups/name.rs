//! How the kubelet names the cgroup of a pod.

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

use crate::model::failure::Reasoned;

/// Quality of service, by which pods are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Qos {
    /// Requests equal limits: directly below `kubepods`.
    Guaranteed,
    /// Some requests or limits.
    Burstable,
    /// None at all.
    BestEffort,
}

/// The path of a pod's cgroup within each hierarchy; relative, and without a way out.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodCgroup(PathBuf);

/// Parts of which no cgroup name can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be part of the name of a cgroup")]
pub struct BadPart(String);

/// The node-allocatable root of all pods, below the configured cgroup root.
const KUBEPODS: &str = "kubepods";

// === impl Qos ===

impl Qos {
    /// From a pod's `status.qosClass`.
    pub fn from_class(class: &str) -> Option<Self> {
        match class {
            "Guaranteed" => Some(Self::Guaranteed),
            "Burstable" => Some(Self::Burstable),
            "BestEffort" => Some(Self::BestEffort),
            _ => None,
        }
    }

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
    /// As a path relative to the root of a hierarchy.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Whether it is a unit of systemd. No pod's name ends so with the other driver.
    pub fn is_slice(&self) -> bool {
        self.unit().ends_with(".slice")
    }

    /// Its last component, which with the systemd driver is the name of its unit.
    pub fn unit(&self) -> &str {
        self.0.file_name().and_then(OsStr::to_str).unwrap_or_default()
    }
}

/// The pod's cgroup with the cgroupfs driver.
pub fn pod_cgroup_name(cgroup_root: &str, qos: Qos, uid: &str) -> Result<PodCgroup, BadPart> {
    Ok(PodCgroup(parts(cgroup_root, qos, uid)?.iter().collect()))
}

/// The pod's slice with the systemd driver; its last component is the name of the unit.
pub fn pod_slice_name(cgroup_root: &str, qos: Qos, uid: &str) -> Result<PodCgroup, BadPart> {
    let mut path = PathBuf::new();
    let mut slice = String::new();
    for part in parts(cgroup_root, qos, uid)? {
        // The way back must be unambiguous: the kubelet refuses such parts as well.
        if part.contains('_') {
            return Err(BadPart(part));
        }
        if !slice.is_empty() {
            slice.push('-');
        }
        slice.push_str(&part.replace('-', "_"));
        path.push(format!("{slice}.slice"));
    }
    Ok(PodCgroup(path))
}

/// The UID in the name of a pod's cgroup or slice: the reverse of [`pod_cgroup_name`] and [`pod_slice_name`]. Whether such a
/// name is that of a pod's is told by where it is.
pub fn uid_in(name: &str) -> Option<String> {
    let uid = match name.strip_suffix(".slice") {
        // Parts are joined by `-`, and have none themselves: the UID's are written as `_`.
        Some(slice) => slice.rsplit('-').next()?.strip_prefix("pod")?.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    is_part(&uid).then_some(uid)
}

fn parts(cgroup_root: &str, qos: Qos, uid: &str) -> Result<Vec<String>, BadPart> {
    let root = cgroup_root.split('/').filter(|part| !part.is_empty());
    let pod = if is_part(uid) {
        format!("pod{uid}")
    } else {
        return Err(BadPart(uid.to_owned()));
    };
    let parts = root
        .chain([KUBEPODS])
        .chain(qos.parent())
        .map(str::to_owned)
        .chain([pod]);
    parts
        .map(|part| if is_part(&part) { Ok(part) } else { Err(BadPart(part)) })
        .collect()
}

fn is_part(part: &str) -> bool {
    !part.is_empty() && part.len() <= 255 && !part.starts_with('.') && !part.contains(['/', '\0', '\n'])
}

impl Reasoned for BadPart {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_its_place_with_both_drivers() {
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
    fn no_name_leads_out_of_the_hierarchy_or_to_another_pod() {
        for uid in ["", "..", "../x", "a/b", "/", ".", "a\n"] {
            assert!(pod_cgroup_name("/", Qos::Burstable, uid).is_err(), "{uid:?}");
            assert!(pod_slice_name("/", Qos::Burstable, uid).is_err(), "{uid:?}");
        }
        for root in ["..", "/a/../b", "/.", "a/\0"] {
            assert!(pod_cgroup_name(root, Qos::Burstable, "u").is_err(), "{root:?}");
        }
        assert_eq!(
            pod_slice_name("/my_root", Qos::Burstable, "u"),
            Err(BadPart("my_root".into()))
        );
    }

    #[test]
    fn no_uid_is_read_from_a_name_that_is_no_pods() {
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

    #[test]
    fn classes_are_read_as_the_api_writes_them() {
        assert_eq!(Qos::from_class("BestEffort"), Some(Qos::BestEffort));
        assert_eq!(Qos::from_class("besteffort"), None);
    }
}
