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
use nix::errno::Errno;

use super::{HierarchyKind, Survivors};
use crate::node::{
    checkpoint,
    effects::{Effect, Effects, Outcome},
    fault::{Cause, Fault, errno},
};

const PROCS: &str = "cgroup.procs";

/// A cgroup's directory, which may not exist.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub path: PathBuf,
    pub kind: HierarchyKind,
}

// === impl Group ===

impl Group {
    pub fn exists(&self) -> bool {
        may_exist(&self.path)
    }

    /// PIDs of all processes in it and below it. Invalid PIDs are left out.
    pub fn processes(&self) -> Result<Vec<i32>, Fault> {
        processes_of(tree(&self.path)?)
    }

    /// PIDs of the processes in it and below it, except those in child cgroups whose name is `known`. The empty name
    /// stands for the cgroup itself.
    pub fn processes_except(&self, known: impl Fn(&OsStr) -> bool) -> Result<Vec<i32>, Fault> {
        let mut dirs = Vec::new();
        if !known(OsStr::new("")) {
            dirs.push(self.path.clone());
        }
        for child in children(&self.path)? {
            if !known(child.file_name().unwrap_or_default()) {
                dirs.extend(tree(&child)?);
            }
        }
        processes_of(dirs)
    }

    /// Names of the child cgroups with processes, also of other PID namespaces. The empty name stands for the cgroup
    /// itself.
    pub fn populated_children(&self) -> Result<Vec<OsString>, Fault> {
        let mut populated = Vec::new();
        if has_processes(&self.path)? {
            populated.push(OsString::new());
        }
        for child in children(&self.path)? {
            for dir in tree(&child)? {
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
        remove(&self.path, effects)
    }

    /// Removes the cgroups below it, deepest first, then itself.
    pub fn remove_tree(&self, effects: &Effects) -> Result<Outcome, Fault> {
        let mut last = Ok(Outcome::Nothing);
        for dir in tree(&self.path)?.iter().rev() {
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

/// The cgroup and all cgroups below it, parents first.
pub(super) fn tree(path: &Path) -> Result<Vec<PathBuf>, Fault> {
    let mut dirs = vec![path.to_owned()];
    let mut next = 0;
    while let Some(dir) = dirs.get(next).cloned() {
        next += 1;
        dirs.extend(children(&dir)?);
    }
    Ok(dirs)
}

/// The child cgroups. Empty if the cgroup does not exist.
fn children(dir: &Path) -> Result<Vec<PathBuf>, Fault> {
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

fn remove(path: &Path, effects: &Effects) -> Result<Outcome, Fault> {
    const VERB: &str = "remove cgroup";
    if effects.is_dry_run() && !path.exists() {
        return Ok(Outcome::Nothing);
    }
    if !effects
        .allow(&Effect::new(VERB, &path))
        .map_err(|held| Fault::new(VERB, path, held))?
    {
        return Ok(Outcome::Withheld);
    }
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
    fn missing_cgroup_has_no_processes_and_counts_as_removed() {
        for kind in [HierarchyKind::V1, HierarchyKind::Freezer, HierarchyKind::V2] {
            let group = Group {
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
