//! Pod cgroups in all cgroup hierarchies of this node: v1, v2 or both.
//!
//! cgroups-rs thaws. This module implements the rest:
//! - Lists of processes: its `procs` turns a read error into an empty list, which would mean "nothing runs".
//! - Removal: its `delete` for v1 stops at the first controller that fails, and sleeps on the calling thread.
//! - SIGKILL: it writes `cgroup.kill` only for a hierarchy of its own, and kernels without that file need pidfds.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use super::{
    dirs::Dir,
    effects::{Effects, Outcome},
    fault::{BadPart, Fault, errno},
    mounts::MountTable,
    systemd::Systemd,
};

mod destroy;
mod freezer;
mod group;
mod hierarchy;
mod kill;
mod name;
mod slice;
pub(super) mod survivor;

use group::Group;
pub(super) use group::is_valid_pid;
pub use hierarchy::{Hierarchy, HierarchyKind};
pub use name::{PodCgroup, Qos, pod_cgroup_name, pod_slice_name, uid_in};
pub use survivor::{Survivor, Survivors};

type NameOf = fn(&str, Qos, &str) -> Result<PodCgroup, BadPart>;

/// How the cgroup drivers name the cgroup of a pod.
const DRIVERS: [NameOf; 2] = [pod_cgroup_name, pod_slice_name];
const QOS: [Qos; 3] = [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort];

/// All cgroup hierarchies in which a pod may have a cgroup.
#[derive(Debug, Clone)]
pub struct Cgroups {
    /// The mounted hierarchies, each once.
    pub hierarchies: Vec<Hierarchy>,
    /// Creates and stops the slices of the systemd driver.
    systemd: Systemd,
}

// === impl Cgroups ===

impl Cgroups {
    /// Finds the hierarchies mounted at or below `root`, such as `/sys/fs/cgroup`, from the file `mountinfo`.
    pub fn detect(mountinfo: &Path, root: &Path) -> Result<Self, Fault> {
        let text = fs::read(mountinfo).map_err(|error| Fault::new("read", mountinfo, errno(&error)))?;
        let table = MountTable::parse(&text, root).map_err(|_| Fault::new("read", mountinfo, Errno::EBADMSG))?;
        let hierarchies = hierarchy::distinct(table.all());
        if hierarchies.is_empty() {
            return Err(Fault::new("find cgroup hierarchies in", root, Errno::ENOENT));
        }
        Ok(Self {
            hierarchies,
            systemd: Systemd::default(),
        })
    }

    /// The cgroups that the pod has: below any QoS parent, because the class in the API may be wrong, and of each driver that has pods
    /// here. A node may have changed its driver, and the wrong one would find nothing.
    pub fn of_pod(&self, cgroup_root: &str, uid: &str) -> Result<Vec<PodCgroup>, BadPart> {
        // An invalid name is no path either. Of the others, systemd cannot represent each.
        pod_cgroup_name(cgroup_root, Qos::Guaranteed, uid)?;
        let drivers = DRIVERS.into_iter().filter(|name| self.has_pods(*name, cgroup_root));
        let names = drivers.flat_map(|name| QOS.map(|qos| name(cgroup_root, qos, uid)));
        Ok(names.flatten().filter(|name| self.exists(name)).collect())
    }

    /// Whether the parent of all pods below this cgroup root exists, as this driver names it.
    fn has_pods(&self, name_of: NameOf, cgroup_root: &str) -> bool {
        let any = name_of(cgroup_root, Qos::Guaranteed, "any").ok();
        any.is_some_and(|any| any.path().parent().is_some_and(|kubepods| self.may_exist(kubepods)))
    }

    /// Whether pods below this cgroup root are in slices of the systemd driver, and none is in a cgroup of the cgroupfs
    /// driver.
    pub fn has_slices(&self, cgroup_root: &str) -> bool {
        self.has_pods(pod_slice_name, cgroup_root) && !self.has_pods(pod_cgroup_name, cgroup_root)
    }

    /// UIDs of all pods with a cgroup below this cgroup root, in any hierarchy, of any QoS class and either driver.
    pub fn pod_uids(&self, cgroup_root: &str) -> Result<BTreeSet<String>, Fault> {
        let mut pods = BTreeSet::new();
        for (name_of, qos) in DRIVERS.iter().flat_map(|name_of| QOS.map(|qos| (name_of, qos))) {
            // A root that is invalid for one driver may be valid for the other.
            let Ok(any) = name_of(cgroup_root, qos, "any") else {
                continue;
            };
            let parent = any.path().parent().unwrap_or_else(|| Path::new(""));
            for hierarchy in &self.hierarchies {
                let names = Dir::open(&hierarchy.path.join(parent))?.map(|dir| dir.names());
                for name in names.transpose()?.unwrap_or_default() {
                    let is_named_so = |uid: &String| {
                        name_of(cgroup_root, qos, uid).is_ok_and(|pod| pod.path().file_name() == Some(&name))
                    };
                    pods.extend(name.to_str().and_then(name::uid_in).filter(is_named_so));
                }
            }
        }
        Ok(pods)
    }

    /// Whether the pod's cgroup exists in any hierarchy.
    pub fn exists(&self, pod: &PodCgroup) -> bool {
        self.may_exist(pod.path())
    }

    fn may_exist(&self, path: &Path) -> bool {
        let mut hierarchies = self.hierarchies.iter();
        hierarchies.any(|it| group::may_exist(&it.path.join(path)))
    }

    /// PIDs of all processes in the pod's cgroup, in any hierarchy.
    pub fn processes(&self, pod: &PodCgroup) -> Result<BTreeSet<i32>, Fault> {
        Ok(self.populated_children(pod)?.into_values().flatten().collect())
    }

    /// Names of the child cgroups that have processes, in any hierarchy, each with its PIDs. The empty name stands for the pod's own
    /// cgroup.
    pub fn populated_children(&self, pod: &PodCgroup) -> Result<BTreeMap<OsString, BTreeSet<i32>>, Fault> {
        let mut populated = BTreeMap::<_, BTreeSet<_>>::new();
        for group in self.cgroups_of(pod) {
            for (child, pids) in group.populated_children()? {
                populated.entry(child).or_default().extend(pids);
            }
        }
        Ok(populated)
    }

    /// Directories of the pod's cgroup, one in each hierarchy that has it.
    pub fn directories(&self, pod: &PodCgroup) -> Vec<PathBuf> {
        let there = self.cgroups_of(pod).filter(Group::exists);
        there.map(|group| group.path).collect()
    }

    /// Cgroups at or below the pod's whose processes are frozen, or are being frozen.
    pub fn frozen(&self, pod: &PodCgroup) -> Result<Vec<PathBuf>, Fault> {
        let mut frozen = Vec::new();
        for group in self.cgroups_of(pod) {
            frozen.extend(group.frozen()?);
        }
        Ok(frozen)
    }

    /// Thaws the pod's cgroup. A frozen process handles no stop signal, and on v1 no SIGKILL. A failure in one hierarchy does not
    /// keep the others frozen.
    pub fn thaw(&self, pod: &PodCgroup, effects: &Effects) -> (Outcome, Vec<Fault>) {
        Outcome::collect(self.cgroups_of(pod).map(|group| group.thaw(effects)))
    }

    fn cgroups_of<'a>(&'a self, pod: &'a PodCgroup) -> impl Iterator<Item = Group> + 'a {
        self.hierarchies.iter().map(|it| Group {
            hierarchy: it.path.clone(),
            path: it.path.join(pod.path()),
            kind: it.kind,
        })
    }
}

impl fmt::Display for Cgroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_v1 = |it: &&Hierarchy| it.kind != HierarchyKind::V2;
        let v1 = self.hierarchies.iter().filter(is_v1).count();
        match (v1, self.hierarchies.len() > v1) {
            (0, _) => f.write_str("v2"),
            (v1, true) => write!(f, "hybrid: {v1} v1 hierarchies and the unified one"),
            (v1, false) => write!(f, "v1: {v1} hierarchies"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroups(hierarchies: Vec<Hierarchy>) -> Cgroups {
        Cgroups {
            hierarchies,
            systemd: Systemd::default(),
        }
    }

    fn hierarchy(root: &Path, name: &str, kind: HierarchyKind) -> Hierarchy {
        Hierarchy {
            path: root.join(name),
            kind,
        }
    }

    #[test]
    fn cgroups_of_a_pod_are_found_below_any_qos_parent_of_each_driver_with_pods_here() {
        const SLICE: &str = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_a.slice";
        for (dirs, expected) in [
            (vec!["pids/kubepods", "cpu/kubepods"], vec![]),
            (
                vec!["pids/kubepods/pod1-a", "cpu/kubepods/pod1-a"],
                vec!["kubepods/pod1-a"],
            ),
            (
                vec!["cpu/kubepods/besteffort/pod1-a", "cpu/kubepods/pod2"],
                vec!["kubepods/besteffort/pod1-a"],
            ),
            // What a removal has left in one hierarchy.
            (
                vec!["cpu/kubepods", "pids/kubepods/burstable/pod1-a"],
                vec!["kubepods/burstable/pod1-a"],
            ),
            (vec!["pids/kubepods/pod1-a"], vec!["kubepods/pod1-a"]),
            // The driver was changed.
            (
                vec!["cpu/kubepods/pod1-a", &format!("cpu/{SLICE}")],
                vec!["kubepods/pod1-a", SLICE],
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let names = ["cpu", "pids"];
            let cgroups = cgroups(names.map(|name| hierarchy(dir.path(), name, HierarchyKind::V1)).into());
            for path in &dirs {
                fs::create_dir_all(dir.path().join(path)).unwrap();
            }
            let found = cgroups.of_pod("/", "1-a").unwrap();
            assert_eq!(
                Vec::from_iter(found.iter().map(PodCgroup::path)),
                Vec::from_iter(expected.iter().map(Path::new)),
                "{dirs:?}"
            );
            assert!(cgroups.of_pod("/", "../x").is_err());
        }
    }

    #[test]
    fn cgroup_root_that_systemd_cannot_represent_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = cgroups(vec![hierarchy(dir.path(), "cpu", HierarchyKind::V1)]);
        fs::create_dir_all(dir.path().join("cpu/my_root/kubepods/pod1-a")).unwrap();
        assert_eq!(cgroups.of_pod("/my_root", "1-a").unwrap().len(), 1);
    }

    #[test]
    fn pods_are_found_below_every_parent_of_either_driver() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["cpu", "pids", "missing"];
        let cgroups = cgroups(names.map(|name| hierarchy(dir.path(), name, HierarchyKind::V1)).into());
        for path in [
            "cpu/kubepods/pod11-a",
            "pids/kubepods/burstable/pod22-b",
            "pids/kubepods/besteffort/pod11-a",
            "cpu/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod33_c.slice",
            "cpu/kubepods.slice/kubepods-pod44_d.slice/cri-containerd-1.scope",
            "cpu/kubepods.slice/other-pod55_e.slice",
            "cpu/pod66-f",
        ] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        let found = cgroups.pod_uids("/").unwrap();
        assert_eq!(Vec::from_iter(found), ["11-a", "22-b", "33-c", "44-d"]);
        assert!(cgroups.pod_uids("/elsewhere").unwrap().is_empty());
    }

    #[test]
    fn failure_in_one_hierarchy_keeps_no_other_frozen() {
        let dir = tempfile::tempdir().unwrap();
        let pod = pod_cgroup_name("/", Qos::Guaranteed, "11-a").unwrap();
        let cgroups = cgroups(vec![
            hierarchy(dir.path(), "freezer", HierarchyKind::Freezer),
            hierarchy(dir.path(), "unified", HierarchyKind::V2),
        ]);
        let [unreadable, frozen] = ["freezer", "unified"].map(|name| dir.path().join(name).join(pod.path()));
        fs::create_dir_all(unreadable.join("freezer.state")).unwrap();
        fs::create_dir_all(&frozen).unwrap();
        fs::write(frozen.join("cgroup.freeze"), "1").unwrap();
        let (outcome, faults) = cgroups.thaw(&pod, &Effects::ungated());
        assert_eq!((outcome, faults.len()), (Outcome::Done, 1), "{faults:?}");
        assert_eq!(fs::read_to_string(frozen.join("cgroup.freeze")).unwrap(), "0");
    }
}
