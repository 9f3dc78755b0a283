//! One cgroup in one hierarchy: its processes and its removal.

use std::{
    collections::BTreeSet,
    error::Error as _,
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, OpenHow, ResolveFlag, openat2},
    sys::stat::Mode,
};

use super::{HierarchyKind, Survivors};
use crate::node::{
    effects::{Effects, Outcome},
    fault::{Cause, Fault, errno},
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
        let texts: Result<Vec<_>, _> = self.tree()?.iter().map(|dir| procs(dir)).collect();
        Ok(valid_pids(&texts?.join("\n")))
    }

    /// Names of the child cgroups with processes, also of other PID namespaces, each with its valid PIDs. The empty name stands for
    /// the cgroup itself.
    pub fn populated_children(&self) -> Result<Vec<(OsString, Vec<i32>)>, Fault> {
        let mut children = vec![(OsString::new(), vec![self.path.clone()])];
        for child in self.children(&self.path)? {
            children.push((child.file_name().unwrap_or_default().to_owned(), self.tree_at(child)?));
        }
        let mut populated = Vec::new();
        for (name, dirs) in children {
            let texts: Result<Vec<_>, _> = dirs.iter().map(|dir| procs(dir)).collect();
            let texts = texts?.join("\n");
            if !texts.trim().is_empty() {
                populated.push((name, valid_pids(&texts)));
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
            Err(fault) if fault.errno() == Some(Errno::EBUSY) => {
                self.check_no_processes(fault.verb)?;
                Err(fault)
            }
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
    /// If a mount hides it.
    fn children(&self, dir: &Path) -> Result<Vec<PathBuf>, Fault> {
        match self.find(dir) {
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

    /// Fails to `verb` it because of the remaining processes, if there are any.
    pub fn check_no_processes(&self, verb: &'static str) -> Result<(), Fault> {
        match self.processes()? {
            pids if pids.is_empty() => Ok(()),
            pids => Err(Fault::new(verb, &self.path, Cause::Processes(Survivors::read(&pids)))),
        }
    }
}

/// The text that lists a cgroup's processes; empty if the cgroup is removed.
fn procs(dir: &Path) -> Result<String, Fault> {
    let file = dir.join(PROCS);
    match fs::read_to_string(&file).map_err(|error| errno(&error)) {
        Ok(text) => Ok(text),
        // A threaded cgroup: its processes are listed in an ancestor.
        Err(errno) if is_removed(errno) || errno == Errno::EOPNOTSUPP => Ok(String::new()),
        Err(errno) => Err(Fault::new("read", file, errno)),
    }
}

/// The valid PIDs in texts of [`procs`], each once.
fn valid_pids(text: &str) -> Vec<i32> {
    let pids = text.lines().filter_map(|line| line.parse().ok()).filter(is_valid_pid);
    let pids: BTreeSet<i32> = pids.collect();
    pids.into_iter().collect()
}

fn remove(path: &Path, effects: &Effects) -> Result<Outcome, Fault> {
    const VERB: &str = "remove cgroup";
    let removed = effects.perform(VERB, path, || fs::remove_dir(path))?;
    match removed.map_err(|error| errno(&error)) {
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
                hierarchy: "/sys/fs/cgroup".into(),
                path: "/sys/fs/cgroup/no/such/group".into(),
                kind,
            };
            assert!(!group.exists());
            assert_eq!(group.processes(), Ok(vec![]));
            assert_eq!(group.kill(&Effects::ungated()), Ok(Outcome::Nothing));
            assert_eq!(group.thaw_all(), Ok(()));
            assert_eq!(group.remove_tree(&Effects::ungated()), Ok(Outcome::Nothing));
        }
    }
}
