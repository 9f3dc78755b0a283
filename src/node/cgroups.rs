//! Pod cgroups in all hierarchies of this machine: v1, v2, and both side by side.
//!
//! The cgroups-rs crate is not used: its removal sleeps on the calling thread once per controller, it neither writes
//! `cgroup.kill` nor thaws, and in a hybrid setup it leaves the directory in the unified hierarchy behind.

use std::{
    ffi::OsStr,
    fmt, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::io::Errno;

use super::{
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
    mounts::{Mount, MountTable, errno},
};

mod group;
mod name;

use group::Group;
pub use name::{BadPart, PodCgroup, Qos, pod_cgroup_name, pod_slice_name};

/// The kernel empties a cgroup a moment after its processes have died; rarely more than a few milliseconds.
const FIRST_WAIT: Duration = Duration::from_millis(1);
/// Waits double, so that all of them together take a second: then it is the next attempt's turn.
const TRIES: u32 = 10;

/// All cgroup hierarchies in which a pod may have a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroups {
    hierarchies: Vec<Hierarchy>,
}

/// One hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub path: PathBuf,
    /// What it can do.
    pub kind: HierarchyKind,
}

/// What a hierarchy can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HierarchyKind {
    /// A v1 hierarchy.
    V1,
    /// The v1 hierarchy with the freezer.
    Freezer,
    /// The unified hierarchy, alone or beside v1.
    V2,
}

/// How many hierarchies are looked into. Runtimes put a process at the same place in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Breadth {
    /// One that has the cgroup: enough to see that something is there.
    One,
    /// Every one: to see that nothing is.
    Every,
}

// === impl Cgroups ===

impl Cgroups {
    /// Finds the hierarchies mounted at or below `root`, such as `/sys/fs/cgroup`, in the file `mountinfo`.
    pub fn detect(mountinfo: &Path, root: &Path) -> Result<Self, Fault> {
        let text = fs::read(mountinfo).map_err(|error| Fault::new("read", mountinfo, errno(&error)))?;
        let table = MountTable::parse(&text, root).map_err(|_| Fault::new("read", mountinfo, Errno::BADMSG))?;
        let hierarchies = hierarchies(table.all());
        if hierarchies.is_empty() {
            return Err(Fault::new("find cgroup hierarchies in", root, Errno::NOENT));
        }
        Ok(Self { hierarchies })
    }

    /// The hierarchies, each once.
    pub fn hierarchies(&self) -> &[Hierarchy] {
        &self.hierarchies
    }

    /// Whether slices of the systemd driver hold the pods below this cgroup root, and nothing of the cgroupfs driver
    /// does.
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

    /// Whether the pod's cgroup exists in any hierarchy.
    pub fn exists(&self, pod: &PodCgroup) -> bool {
        self.groups(pod).any(|group| group.exists())
    }

    /// Ids of all processes in the pod's cgroup, in whichever hierarchy.
    pub fn processes(&self, pod: &PodCgroup) -> Result<Vec<i32>, Fault> {
        self.processes_but(pod, Breadth::Every, |_| false)
    }

    /// The same without those that are `known` by the name of the cgroup directly below the pod's that they are in or
    /// below. The empty name stands for the pod's own cgroup.
    pub fn processes_but(
        &self,
        pod: &PodCgroup,
        breadth: Breadth,
        known: impl Fn(&OsStr) -> bool,
    ) -> Result<Vec<i32>, Fault> {
        let mut all = Vec::new();
        let there = self.groups(pod).filter(Group::exists);
        for group in there.take(if breadth == Breadth::One { 1 } else { usize::MAX }) {
            all.extend(group.processes_but(&known)?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Lets what is frozen in the pod's cgroup run: a frozen process does not die of SIGKILL.
    pub fn thaw(&self, pod: &PodCgroup, effects: &Effects) -> Result<Outcome, Fault> {
        let mut outcome = Outcome::Nothing;
        for group in self.groups(pod) {
            match group.thaw(effects)? {
                Outcome::Nothing => {}
                done => outcome = done,
            }
        }
        Ok(outcome)
    }

    /// Removes the pod's cgroup from all hierarchies, and kills whatever is in it.
    pub async fn destroy(&self, pod: &PodCgroup, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        let mut wait = FIRST_WAIT;
        let mut tries = 1;
        let mut done = Outcome::Nothing;
        loop {
            match self.round(pod, effects).await {
                // That nothing is left now may be the work of a round before.
                Ok(Outcome::Nothing) => return Ok(done),
                Ok(outcome) => return Ok(outcome),
                Err(faults) if tries == TRIES || faults.iter().any(Fault::is_held) => {
                    return Err(faults);
                }
                Err(_again) => done = Outcome::Done,
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
            tries += 1;
        }
    }

    async fn round(&self, pod: &PodCgroup, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
        let groups: Vec<Group> = self.groups(pod).collect();
        let result = effects.work(move |effects| round(&groups, effects)).await;
        result.unwrap_or_else(|why| Err(vec![Fault::new("remove cgroup", pod.path(), why)]))
    }

    fn groups<'a>(&'a self, pod: &'a PodCgroup) -> impl Iterator<Item = Group> + 'a {
        self.hierarchies.iter().map(|it| Group {
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

/// One attempt in all hierarchies. Most pods' cgroups are empty by now: looking into them comes after trying.
fn round(groups: &[Group], effects: &Effects) -> Result<Outcome, Vec<Fault>> {
    let mut outcome = Outcome::Nothing;
    let mut faults = Vec::new();
    let mut busy = Vec::new();
    for group in groups {
        match group.remove(effects) {
            Ok(Outcome::Nothing) => {}
            Ok(done) => outcome = done,
            Err(Fault {
                cause: Cause::Errno(Errno::BUSY | Errno::NOTEMPTY),
                ..
            }) => busy.push(group),
            Err(fault) => faults.push(fault),
        }
    }
    // The unified hierarchy kills all at once, also what forks meanwhile; so it comes first.
    busy.sort_by_key(|group| group.kind != HierarchyKind::V2);
    faults.extend(busy.iter().filter_map(|group| group.kill(effects).err()));
    for group in busy {
        match group.remove_tree(effects) {
            Ok(Outcome::Nothing) => {}
            Ok(done) => outcome = done,
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() { Ok(outcome) } else { Err(faults) }
}

/// Each hierarchy once: controllers that share one show the same device. Of several mounts the whole and shortest wins.
fn hierarchies(mounts: &[Mount]) -> Vec<Hierarchy> {
    let is_cgroup = |mount: &&Mount| mount.fs_type == "cgroup" || mount.fs_type == "cgroup2";
    let mut found: Vec<&Mount> = mounts.iter().filter(is_cgroup).collect();
    found.sort_by_key(|mount| (mount.device, mount.root != Path::new("/"), mount.path.as_os_str().len()));
    found.dedup_by_key(|mount| mount.device);
    found
        .into_iter()
        .map(|mount| Hierarchy {
            path: mount.path.clone(),
            kind: kind(mount),
        })
        .collect()
}

fn kind(mount: &Mount) -> HierarchyKind {
    let options = mount.super_options.to_string_lossy();
    if mount.fs_type == "cgroup2" {
        HierarchyKind::V2
    } else if options.split(',').any(|option| option == "freezer") {
        HierarchyKind::Freezer
    } else {
        HierarchyKind::V1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(lines: &[&str]) -> Result<Vec<(String, HierarchyKind)>, Fault> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), lines.join("\n")).unwrap();
        let mut found: Vec<_> = Cgroups::detect(file.path(), Path::new("/sys/fs/cgroup"))?
            .hierarchies
            .into_iter()
            .map(|it| (it.path.to_str().unwrap().to_owned(), it.kind))
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    fn at(path: &str, kind: HierarchyKind) -> (String, HierarchyKind) {
        (format!("/sys/fs/cgroup{path}"), kind)
    }

    #[test]
    fn hybrid_is_every_v1_hierarchy_and_the_unified_one() {
        let found = detect(&[
            "30 1 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs rw",
            "31 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            "32 30 0:29 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer",
            "33 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd",
            "34 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        ]);
        let expected = [
            at("/cpu,cpuacct", HierarchyKind::V1),
            at("/freezer", HierarchyKind::Freezer),
            at("/systemd", HierarchyKind::V1),
            at("/unified", HierarchyKind::V2),
        ];
        assert_eq!(found.unwrap(), expected);
    }

    #[test]
    fn a_hierarchy_that_is_mounted_twice_counts_once_by_its_shortest_whole_mount() {
        let found = detect(&[
            "1 0 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct",
            "2 0 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct",
            "3 0 0:28 /part /sys/fs/cgroup/c rw - cgroup cgroup rw,cpu,cpuacct",
            "4 0 0:28 / /run/other/cpu rw - cgroup cgroup rw,cpu,cpuacct",
        ]);
        assert_eq!(found.unwrap(), [at("/cpu", HierarchyKind::V1)]);
    }

    #[test]
    fn pure_v2_is_one_hierarchy_at_the_root() {
        let found = detect(&["1 0 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"]);
        assert_eq!(found.unwrap(), [at("", HierarchyKind::V2)]);
    }

    #[test]
    fn no_hierarchy_at_all_is_an_error_and_not_an_empty_success() {
        assert!(detect(&["1 0 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw"]).is_err());
        assert!(Cgroups::detect(Path::new("/no/such/file"), Path::new("/sys/fs/cgroup")).is_err());
    }
}
