//! One cgroup in one hierarchy: its processes and its removal.

use std::{
    error::Error as _,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process,
};

use cgroups_rs::fs::{Cgroup, Hierarchy, Subsystem};
use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::Mode,
};

use super::{HierarchyKind, Survivors};
use crate::node::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{Cause, Fault, errno},
    mounts::{Mount, MountTable, unmount},
};

const PROCS: &str = "cgroup.procs";

/// A cgroup's directory, which may not exist.
///
/// A mount at or above it may show another cgroup, whose processes are not the pod's. Nothing here looks through such a mount.
#[derive(Debug, Clone)]
pub(super) struct Group {
    /// Mount point of its hierarchy.
    pub hierarchy: PathBuf,
    pub path: PathBuf,
    pub kind: HierarchyKind,
}

// === impl Group ===

impl Group {
    /// Whether it exists, or may exist below a mount.
    pub fn exists(&self) -> bool {
        !matches!(self.find(&self.path), Err(errno) if is_removed(errno))
    }

    /// PIDs of all processes in it and below it. Invalid PIDs are left out.
    pub fn processes(&self) -> Result<Vec<i32>, Fault> {
        processes_of(self.tree()?)
    }

    /// PIDs of the processes in it and below it, except those in child cgroups whose name is `known`. The empty name
    /// stands for the cgroup itself.
    pub fn processes_except(&self, known: impl Fn(&OsStr) -> bool) -> Result<Vec<i32>, Fault> {
        let mut dirs = Vec::new();
        if !known(OsStr::new("")) {
            dirs.push(self.path.clone());
        }
        for child in self.children(&self.path)? {
            if !known(child.file_name().unwrap_or_default()) {
                dirs.extend(self.tree_at(child)?);
            }
        }
        processes_of(dirs)
    }

    /// Names of the child cgroups with processes, also of other PID namespaces. The empty name stands for the cgroup
    /// itself.
    pub fn populated_children(&self) -> Result<Vec<OsString>, Fault> {
        let mut populated = Vec::new();
        let children = self.children(&self.path)?;
        if has_processes(&self.path)? {
            populated.push(OsString::new());
        }
        for child in children {
            for dir in self.tree_at(child.clone())? {
                if has_processes(&dir)? {
                    populated.push(child.file_name().unwrap_or_default().to_owned());
                    break;
                }
            }
        }
        Ok(populated)
    }

    /// Removes it if it has no processes.
    pub fn remove(&self, effects: &Effects) -> Result<Outcome, Fault> {
        match remove(&self.path, effects) {
            // A mount above may hide it.
            Ok(Outcome::Nothing) if self.exists() => Err(Fault::new("remove cgroup", &self.path, Errno::EBUSY)),
            done => done,
        }
    }

    /// Removes the cgroups below it, deepest first, then itself.
    pub fn remove_tree(&self, effects: &Effects) -> Result<Outcome, Fault> {
        let mut last = Ok(Outcome::Nothing);
        for dir in self.tree()?.iter().rev() {
            last = remove(dir, effects);
        }
        // If a child cannot be removed, its parents cannot either. Report which processes are in the way.
        match last {
            Err(Fault {
                verb,
                path,
                cause: Cause::Errno(Errno::EBUSY),
                ..
            }) => match self.processes()? {
                pids if pids.is_empty() => Err(Fault::new(verb, path, Errno::EBUSY)),
                pids => Err(Fault::new(verb, path, Cause::Processes(Survivors::read(&pids)))),
            },
            other => other,
        }
    }

    /// The cgroup and all cgroups below it, parents first.
    pub fn tree(&self) -> Result<Vec<PathBuf>, Fault> {
        self.tree_at(self.path.clone())
    }

    fn tree_at(&self, dir: PathBuf) -> Result<Vec<PathBuf>, Fault> {
        let mut dirs = vec![dir];
        let mut next = 0;
        while let Some(dir) = dirs.get(next).cloned() {
            next += 1;
            dirs.extend(self.children(&dir)?);
        }
        Ok(dirs)
    }

    /// The child cgroups of `dir`. Empty if it does not exist.
    ///
    /// # Errors
    /// If a mount of another cgroup hides it.
    fn children(&self, dir: &Path) -> Result<Vec<PathBuf>, Fault> {
        match self.find(dir) {
            Err(Errno::EXDEV) => drop(self.own_mounts()?),
            Err(errno) if is_removed(errno) => return Ok(Vec::new()),
            Err(errno) => return Err(Fault::new("find", dir, errno)),
            Ok(()) => {}
        }
        // A cgroup has two links plus one for each child. Its many files are slow to list.
        if fs::symlink_metadata(dir).is_ok_and(|found| found.nlink() == 2) {
            return Ok(Vec::new());
        }
        match list(dir) {
            Ok(found) => Ok(found),
            Err(error) if is_removed(errno(&error)) => Ok(Vec::new()),
            Err(error) => Err(Fault::new("list", dir, errno(&error))),
        }
    }

    /// Finds a directory of this hierarchy without crossing a mount, which fails with `EXDEV`.
    fn find(&self, dir: &Path) -> nix::Result<()> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let below = dir.strip_prefix(&self.hierarchy).map_err(|_| Errno::EXDEV)?;
        let hierarchy = nix::fcntl::open(&self.hierarchy, flags, Mode::empty())?;
        let resolve = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
        openat2(hierarchy, below, OpenHow::new().flags(flags).resolve(resolve)).map(drop)
    }

    /// Unmounts the mounts on it and below it, as container runtimes in containers create them. Blocks.
    ///
    /// # Errors
    /// If a mount shows another cgroup.
    pub fn unmount_own(&self, effects: &Effects) -> Result<Outcome, Fault> {
        let mut done = Outcome::Nothing;
        if self.tree()?.iter().any(|dir| self.find(dir) == Err(Errno::EXDEV)) {
            for mount in self.own_mounts()? {
                done = done.and(unmount(&mount.path, effects)?);
            }
        }
        Ok(done)
    }

    /// The mounts through which it is seen, or a cgroup below it, in unmount order.
    ///
    /// # Errors
    /// If a mount shows another cgroup.
    fn own_mounts(&self) -> Result<Vec<Mount>, Fault> {
        // The mounts of the calling thread, which are those that it can unmount.
        const MOUNTINFO: &str = "/proc/thread-self/mountinfo";
        let text = fs::read(MOUNTINFO).map_err(|error| Fault::new("read", MOUNTINFO, errno(&error)))?;
        let table = MountTable::parse(&text, &self.hierarchy);
        let table = table.map_err(|_| Fault::new("read", MOUNTINFO, Errno::EBADMSG))?;
        let covers = covers(&table, &self.hierarchy, &self.path);
        let is_other = |mount: &&Mount| !shows_own_cgroup(&table, &self.hierarchy, &self.path, mount);
        match covers.iter().find(is_other) {
            Some(other) => {
                let cause = Cause::CgroupCovered {
                    root: other.root.clone(),
                    path: other.path.clone(),
                };
                Err(Fault::new("use cgroup", &self.path, cause))
            }
            None => Ok(covers),
        }
    }

    /// Fails with the remaining processes if there are any.
    pub fn check_no_processes(&self) -> Result<(), Fault> {
        match self.processes()? {
            pids if pids.is_empty() => Ok(()),
            pids => {
                let left = Cause::Processes(Survivors::read(&pids));
                Err(Fault::new("kill the processes of", &self.path, left))
            }
        }
    }
}

// === impl Hierarchy ===

/// cgroups-rs needs a hierarchy for each cgroup: it takes a path within a hierarchy only as text, finds hierarchies only
/// at `/sys/fs/cgroup`, and never the unified one of a hybrid node.
impl Hierarchy for Group {
    fn subsystems(&self) -> Vec<Subsystem> {
        Vec::new()
    }

    fn root(&self) -> PathBuf {
        self.path.clone()
    }

    fn root_control_group(&self) -> Cgroup {
        Cgroup::load(Box::new(self.clone()), "")
    }

    fn parent_control_group(&self, _path: &str) -> Cgroup {
        self.root_control_group()
    }

    fn v2(&self) -> bool {
        self.kind == HierarchyKind::V2
    }
}

/// Whether the cgroup exists and has processes.
fn has_processes(dir: &Path) -> Result<bool, Fault> {
    let file = dir.join(PROCS);
    match fs::read_to_string(&file) {
        Ok(text) => Ok(!text.trim().is_empty()),
        Err(error) if is_removed(errno(&error)) => Ok(false),
        // A threaded cgroup: its processes are listed in an ancestor.
        Err(error) if errno(&error) == Errno::EOPNOTSUPP => Ok(false),
        Err(error) => Err(Fault::new("read", file, errno(&error))),
    }
}

/// PIDs of all processes in these cgroups. Invalid PIDs are left out.
fn processes_of(dirs: Vec<PathBuf>) -> Result<Vec<i32>, Fault> {
    let mut pids = Vec::new();
    for dir in dirs {
        let file = dir.join(PROCS);
        match fs::read_to_string(&file) {
            Ok(text) => pids.extend(text.lines().filter_map(|line| line.parse().ok()).filter(is_valid_pid)),
            Err(error) if is_removed(errno(&error)) => {}
            // A threaded cgroup: its processes are listed in an ancestor.
            Err(error) if errno(&error) == Errno::EOPNOTSUPP => {}
            Err(error) => return Err(Fault::new("read", file, errno(&error))),
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// The mounts in a hierarchy that hide this cgroup or one below it, in unmount order.
fn covers(table: &MountTable, hierarchy: &Path, cgroup: &Path) -> Vec<Mount> {
    let mut covers = table.mounts_at_or_below(&[cgroup]);
    let above = cgroup.ancestors().skip(1).take_while(|dir| *dir != hierarchy);
    covers.extend(above.flat_map(|dir| table.mounts_on(dir)));
    covers
}

/// Whether the mount shows this cgroup, or one below it, and no other.
fn shows_own_cgroup(table: &MountTable, hierarchy: &Path, cgroup: &Path, mount: &Mount) -> bool {
    let below = cgroup.strip_prefix(hierarchy).ok();
    let own = table.mounts_on(hierarchy).into_iter().next().zip(below);
    own.is_some_and(|(whole, below)| mount.device == whole.device && mount.root.starts_with(whole.root.join(below)))
}

fn remove(path: &Path, effects: &Effects) -> Result<Outcome, Fault> {
    const VERB: &str = "remove cgroup";
    effects
        .allow(&Effect::new(VERB, &path))
        .map_err(|held| Fault::new(VERB, path, held))?;
    let removed = fs::remove_dir(path).map_err(|error| errno(&error));
    checkpoint::after(VERB, &path);
    match removed {
        Ok(()) => Ok(Outcome::Done),
        Err(Errno::ENOENT) => Ok(Outcome::Nothing),
        Err(errno) => Err(Fault::new(VERB, path, errno)),
    }
}

fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// False only if the kernel says so.
pub(super) fn may_exist(path: &Path) -> bool {
    !matches!(fs::symlink_metadata(path), Err(error) if is_removed(errno(&error)))
}

/// Whether the cgroup is removed, or being removed: reading a file of a dying cgroup fails with `ENODEV`.
pub(super) fn is_removed(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENODEV)
}

/// The error number from the kernel; `EBADMSG` if cgroups-rs could not parse a file.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub(super) fn errno_of(error: cgroups_rs::fs::error::Error) -> Errno {
    let cause = error.source().and_then(|cause| cause.downcast_ref());
    cause.map_or(Errno::EBADMSG, errno)
}

/// Whether a PID can belong to a pod. A process of another PID namespace is listed as 0, which would signal the agent's
/// own process group; 1 and the agent itself are never a pod's.
pub(in crate::node) fn is_valid_pid(pid: &i32) -> bool {
    *pid > 1 && u32::try_from(*pid) != Ok(process::id())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::cgroups::kill::VictimState;

    #[test]
    fn invalid_pids_are_dropped() {
        let own = i32::try_from(process::id()).unwrap();
        let kept: Vec<i32> = [-5, -1, 0, 1, 2, own, 4242].into_iter().filter(is_valid_pid).collect();
        assert_eq!(
            kept,
            [2, 4242].into_iter().filter(|pid| *pid != own).collect::<Vec<_>>()
        );
    }

    #[test]
    fn only_mounts_of_the_pods_own_cgroup_are_its_own() {
        let line = |id, device: &str, root: &str, path: &str| {
            format!("{id} 1 {device} {root} /sys/fs/cgroup{path} rw - cgroup cgroup rw,pids\n")
        };
        let (hierarchy, pod) = (
            Path::new("/sys/fs/cgroup/pids"),
            Path::new("/sys/fs/cgroup/pids/kubepods/podx"),
        );
        for (whole, root, device, path, is_own) in [
            ("/", "/kubepods/podx", "0:5", "/kubepods/podx", true),
            ("/", "/kubepods/podx/main", "0:5", "/kubepods/podx/main", true),
            ("/docker/1", "/docker/1/kubepods/podx", "0:5", "/kubepods/podx", true),
            ("/docker/1", "/kubepods/podx", "0:5", "/kubepods/podx", false),
            ("/", "/kubepods/podx", "0:6", "/kubepods/podx", false),
            ("/", "/", "0:5", "/kubepods/podx", false),
            ("/", "/kubepods", "0:5", "/kubepods", false),
            ("/", "/kubepods/pody", "0:5", "/kubepods/podx/main", false),
        ] {
            let text = line(2, "0:5", whole, "/pids") + &line(3, device, root, &format!("/pids{path}"));
            let table = MountTable::parse(text.as_bytes(), hierarchy).unwrap();
            let covers = covers(&table, hierarchy, pod);
            let [cover] = &covers[..] else { panic!("{covers:?}") };
            assert_eq!(shows_own_cgroup(&table, hierarchy, pod, cover), is_own, "{root} {path}");
        }
    }

    #[test]
    fn missing_cgroup_has_no_processes_and_counts_as_removed() {
        for kind in [HierarchyKind::V1, HierarchyKind::Freezer, HierarchyKind::V2] {
            let group = Group {
                hierarchy: "/sys/fs/cgroup".into(),
                path: "/sys/fs/cgroup/no/such/group".into(),
                kind,
            };
            assert!(!group.exists());
            assert_eq!(group.processes(), Ok(vec![]));
            assert_eq!(
                group.kill(VictimState::MayFork, &Effects::ungated()),
                Ok(Outcome::Nothing)
            );
            assert_eq!(group.freeze(), Ok(()));
            assert_eq!(group.thaw_all(), Ok(()));
            assert_eq!(group.remove_tree(&Effects::ungated()), Ok(Outcome::Nothing));
        }
    }
}
