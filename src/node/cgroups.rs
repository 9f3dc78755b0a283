//! Pod cgroups in all cgroup hierarchies of this node: v1, v2 or both.
//!
//! cgroups-rs kills, freezes and thaws. This module implements the rest:
//! - Lists of processes: its `procs` turns a read error into an empty list, which would mean "nothing runs".
//! - Removal: its `delete` for v1 stops at the first controller that fails, and sleeps on the calling thread.
//! - Waiting until a cgroup is frozen, and SIGKILL by pidfd on kernels without `cgroup.kill`: it has neither.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fmt, fs, io,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use super::{
    cri::types::CgroupDriver,
    effects::{Effects, Outcome},
    fault::{Cause, Fault, errno},
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
pub use name::{BadPart, PodCgroup, Qos, pod_cgroup_name, pod_slice_name, uid_in};
pub use survivor::{Survivor, Survivors};

/// All cgroup hierarchies in which a pod may have a cgroup.
#[derive(Debug, Clone)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    /// Creates and stops the slices of the systemd driver.
    systemd: Systemd,
    /// Drivers whose cgroup names are searched.
    drivers: &'static [CgroupDriver],
}

/// How many hierarchies are searched. Runtimes put a process into the same cgroup in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HierarchySearch {
    /// Only the first one that has the cgroup. Enough to prove that a process exists.
    First,
    /// All of them. Needed to prove that no process exists.
    All,
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
            systemd: Systemd::of_host(),
            drivers: &[CgroupDriver::Cgroupfs, CgroupDriver::Systemd],
        })
    }

    /// Restricts the search to the names of this driver. By default the names of both are searched: a node may have
    /// changed its driver, and the wrong one would find nothing.
    #[must_use]
    pub fn with_driver(self, driver: CgroupDriver) -> Self {
        let drivers = match driver {
            CgroupDriver::Cgroupfs => &[CgroupDriver::Cgroupfs],
            CgroupDriver::Systemd => &[CgroupDriver::Systemd],
        };
        Self { drivers, ..self }
    }

    /// The names that the pod's cgroup may have.
    pub fn pod_cgroups(&self, cgroup_root: &str, qos: Qos, uid: &str) -> Result<Vec<PodCgroup>, BadPart> {
        let name = |driver: &CgroupDriver| match driver {
            CgroupDriver::Cgroupfs => pod_cgroup_name(cgroup_root, qos, uid),
            CgroupDriver::Systemd => pod_slice_name(cgroup_root, qos, uid),
        };
        let (names, bad): (Vec<_>, Vec<_>) = self.drivers.iter().map(name).partition(Result::is_ok);
        // A root that is invalid for one driver may be valid for the other.
        match bad.into_iter().find_map(Result::err) {
            Some(bad) if names.is_empty() => Err(bad),
            _ => Ok(names.into_iter().flatten().collect()),
        }
    }

    /// All cgroups that the pod may have: below any QoS parent, because the class in the API may be wrong, and of each driver that
    /// has pods here.
    pub fn possible_pod_cgroups(&self, cgroup_root: &str, uid: &str) -> Result<Vec<PodCgroup>, BadPart> {
        let mut possible = Vec::new();
        for guaranteed in self.pod_cgroups(cgroup_root, Qos::Guaranteed, uid)? {
            let kubepods = guaranteed.path().parent().unwrap_or_else(|| Path::new(""));
            if !self.may_exist(kubepods) {
                continue;
            }
            let make = if guaranteed.is_slice() {
                pod_slice_name
            } else {
                pod_cgroup_name
            };
            for qos in [Qos::Burstable, Qos::BestEffort] {
                possible.push(make(cgroup_root, qos, uid)?);
            }
            possible.push(guaranteed);
        }
        Ok(possible)
    }

    /// The hierarchies, each once.
    pub fn hierarchies(&self) -> &[Hierarchy] {
        &self.hierarchies
    }

    /// Whether pods below this cgroup root are in slices of the systemd driver, and none is in a cgroup of the cgroupfs
    /// driver.
    pub fn has_slices(&self, cgroup_root: &str) -> bool {
        let parent =
            |name: Result<PodCgroup, BadPart>| name.ok().and_then(|name| Some(name.path().parent()?.to_owned()));
        let (slices, plain) = (
            parent(pod_slice_name(cgroup_root, Qos::Guaranteed, "any")),
            parent(pod_cgroup_name(cgroup_root, Qos::Guaranteed, "any")),
        );
        let exists = |path: Option<PathBuf>| {
            path.is_some_and(|path| self.hierarchies.iter().any(|it| it.path.join(&path).exists()))
        };
        exists(slices) && !exists(plain)
    }

    /// UIDs of all pods with a cgroup below this cgroup root, in any hierarchy, of any QoS class and either driver.
    pub fn pod_uids(&self, cgroup_root: &str) -> Result<BTreeSet<String>, Fault> {
        let mut pods = BTreeSet::new();
        for make in [pod_cgroup_name, pod_slice_name] {
            for qos in [Qos::Guaranteed, Qos::Burstable, Qos::BestEffort] {
                // A root that is invalid for one driver may be valid for the other.
                let Ok(any) = make(cgroup_root, qos, "any") else {
                    continue;
                };
                let parent = any.path().parent().unwrap_or_else(|| Path::new(""));
                for hierarchy in &self.hierarchies {
                    for name in names_in(&hierarchy.path.join(parent))? {
                        let is_made_so = |uid: &String| {
                            make(cgroup_root, qos, uid).is_ok_and(|pod| pod.path().file_name() == Some(name.as_ref()))
                        };
                        pods.extend(name::uid_in(&name).filter(is_made_so));
                    }
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
    pub fn processes(&self, pod: &PodCgroup) -> Result<Vec<i32>, Fault> {
        self.processes_except(pod, HierarchySearch::All, |_| false)
    }

    /// PIDs of the processes in the pod's cgroup, except those in child cgroups whose name is `known`. The empty name
    /// stands for the pod's own cgroup.
    pub fn processes_except(
        &self,
        pod: &PodCgroup,
        search: HierarchySearch,
        known: impl Fn(&OsStr) -> bool,
    ) -> Result<Vec<i32>, Fault> {
        let mut all = Vec::new();
        let there = self.cgroups_of(pod).filter(Group::exists);
        for group in there.take(if search == HierarchySearch::First {
            1
        } else {
            usize::MAX
        }) {
            all.extend(group.processes_except(&known)?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Names of the child cgroups that have processes, in any hierarchy. The empty name stands for the pod's own cgroup.
    pub fn populated_children(&self, pod: &PodCgroup) -> Result<BTreeSet<OsString>, Fault> {
        let mut populated = BTreeSet::new();
        for group in self.cgroups_of(pod) {
            populated.extend(group.populated_children()?);
        }
        Ok(populated)
    }

    /// Directories of the pod's cgroup, one in each hierarchy that has it.
    pub fn directories(&self, pod: &PodCgroup) -> Vec<PathBuf> {
        let there = self.cgroups_of(pod).filter(Group::exists);
        there.map(|group| group.path).collect()
    }

    /// Mount points that hide the pod's cgroup, each with the cgroup that is seen instead.
    pub fn covers(&self, pod: &PodCgroup) -> Vec<(PathBuf, PathBuf)> {
        let cover = |group: Group| match group.tree().err()?.cause {
            Cause::CgroupCovered { path, root } => Some((path, root)),
            _ => None,
        };
        self.cgroups_of(pod).filter_map(cover).collect()
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
        let mut done = Outcome::Nothing;
        let mut faults = Vec::new();
        for group in self.cgroups_of(pod) {
            match group.thaw(effects) {
                Ok(thawed) => done = done.and(thawed),
                Err(fault) => faults.push(fault),
            }
        }
        (done, faults)
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
        let v1 = self
            .hierarchies
            .iter()
            .filter(|it| it.kind != HierarchyKind::V2)
            .count();
        match (v1, self.hierarchies.len() > v1) {
            (0, _) => f.write_str("v2"),
            (v1, true) => write!(f, "hybrid: {v1} v1 hierarchies and the unified one"),
            (v1, false) => write!(f, "v1: {v1} hierarchies"),
        }
    }
}

/// Names of the directory's entries that are UTF-8. Empty if the directory does not exist.
fn names_in(dir: &Path) -> Result<Vec<String>, Fault> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries,
    };
    let names = entries.and_then(|entries| {
        entries
            .map(|entry| Ok(entry?.file_name().into_string().ok()))
            .collect::<io::Result<Vec<_>>>()
    });
    let names = names.map_err(|error| Fault::new("read", dir, errno(&error)))?;
    Ok(names.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cgroups(hierarchies: Vec<Hierarchy>) -> Cgroups {
        Cgroups {
            hierarchies,
            systemd: Systemd::of_host(),
            drivers: &[CgroupDriver::Cgroupfs, CgroupDriver::Systemd],
        }
    }

    fn hierarchy(root: &Path, name: &str, kind: HierarchyKind) -> Hierarchy {
        Hierarchy {
            path: root.join(name),
            kind,
        }
    }

    #[test]
    fn both_drivers_are_searched_unless_one_is_configured() {
        let cgroups = || cgroups(Vec::new());
        let units = |cgroups: &Cgroups, root| {
            let names = cgroups.pod_cgroups(root, Qos::Guaranteed, "1-a").unwrap();
            names.iter().map(|name| name.unit().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(units(&cgroups(), "/"), ["pod1-a", "kubepods-pod1_a.slice"]);
        // systemd cannot represent this root.
        assert_eq!(units(&cgroups(), "/my_root"), ["pod1-a"]);
        assert_eq!(units(&cgroups().with_driver(CgroupDriver::Cgroupfs), "/"), ["pod1-a"]);
        assert!(
            cgroups()
                .with_driver(CgroupDriver::Systemd)
                .pod_cgroups("/my_root", Qos::Guaranteed, "1-a")
                .is_err()
        );
        assert!(cgroups().pod_cgroups("/", Qos::Guaranteed, "../x").is_err());
    }

    #[test]
    fn pod_may_have_a_cgroup_only_of_a_driver_that_has_pods_here() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = cgroups(
            ["cpu", "pids"]
                .map(|name| hierarchy(dir.path(), name, HierarchyKind::V1))
                .into(),
        );
        let possible = || {
            let mut names = cgroups.possible_pod_cgroups("/", "1-a").unwrap();
            names.sort_by_key(|name| name.path().to_owned());
            names
                .iter()
                .map(|name| name.path().display().to_string())
                .collect::<Vec<_>>()
        };
        let plain = [
            "kubepods/besteffort/pod1-a",
            "kubepods/burstable/pod1-a",
            "kubepods/pod1-a",
        ];
        assert!(possible().is_empty());
        fs::create_dir_all(dir.path().join("pids/kubepods")).unwrap();
        assert_eq!(possible(), plain);
        fs::create_dir_all(dir.path().join("cpu/kubepods.slice")).unwrap();
        let slices = [
            "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod1_a.slice",
            "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_a.slice",
            "kubepods.slice/kubepods-pod1_a.slice",
        ];
        assert_eq!(possible(), [plain, slices].concat());
        assert!(cgroups.possible_pod_cgroups("/", "../x").is_err());
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
