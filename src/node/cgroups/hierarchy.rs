//! The mounted hierarchies and their capabilities.

use std::path::{Path, PathBuf};

use crate::node::mounts::Mount;

/// A mounted cgroup hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its mount point.
    pub path: PathBuf,
    /// What it can do.
    pub kind: HierarchyKind,
}

/// What a hierarchy offers against processes that fork while they are killed. The strongest comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HierarchyKind {
    /// The unified hierarchy, alone or beside v1. It kills all processes at once.
    V2,
    /// The v1 hierarchy with the freezer.
    Freezer,
    /// Another v1 hierarchy.
    V1,
}

/// Each hierarchy once: controllers that share one have the same device. Of several mounts, the shortest path to the
/// whole hierarchy is used.
pub(super) fn distinct<'a>(mounts: impl Iterator<Item = &'a Mount>) -> Vec<Hierarchy> {
    let is_cgroup = |mount: &&Mount| mount.fs_type == "cgroup" || mount.fs_type == "cgroup2";
    let mut found: Vec<&Mount> = mounts.filter(is_cgroup).collect();
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
    use std::fs;

    use super::*;
    use crate::node::{cgroups::Cgroups, fault::Fault};

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
    fn hybrid_node_has_every_v1_hierarchy_and_the_unified_one() {
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
    fn hierarchy_mounted_twice_counts_once_by_its_shortest_whole_mount() {
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
    fn no_hierarchy_is_an_error() {
        assert!(detect(&["1 0 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw"]).is_err());
        assert!(Cgroups::detect(Path::new("/no/such/file"), Path::new("/sys/fs/cgroup")).is_err());
    }
}
