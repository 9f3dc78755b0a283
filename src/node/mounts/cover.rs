//! Mounts that hide others: a later mount on a directory above, such as a second one of the kubelet's directory.

use std::{fmt, path::PathBuf};

use super::{Mount, MountTable, Mounted};
use crate::words::{format_count, shell_quoted};

/// A mount that hides another one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Cover {
    /// Its mount point.
    pub path: PathBuf,
    /// What it is.
    pub what: Mounted,
    /// Number of mounts on it.
    pub mounts: usize,
    /// It shows the directory that it is mounted on once more, and no other data.
    pub is_same: bool,
}

// === impl Cover ===

impl Cover {
    /// This mount, from its table.
    pub fn new(mount: &Mount, table: &MountTable) -> Self {
        Self {
            path: mount.path.clone(),
            what: mount.into(),
            mounts: table.count_mounts_on(mount),
            is_same: table.mounted_on(mount) == Some((mount.device, mount.root.clone())),
        }
    }

    /// The command that removes it: lazily, because a process may have open files there.
    pub fn command(&self) -> String {
        format!("umount -l {}", shell_quoted(&self.path))
    }
}

impl fmt::Display for Cover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, path, .. } = self;
        write!(f, "{what} is mounted over it at {path:?}, so that no path leads to it")?;
        match (self.is_same, self.mounts) {
            (true, 0) => write!(f, ": remove that mount with {}", self.command()),
            (true, more) => write!(
                f,
                ": remove that mount, and first the {} on it, with umount",
                format_count(more as u64, "mount")
            ),
            (false, _) => write!(
                f,
                ": it is another file system, and pods may have data and mounts there. Delete those pods first, and then remove that \
                 mount with {}",
                self.command()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// A table of mounts: ID, parent, path.
    fn table(mounts: &[(u64, u64, &str)]) -> MountTable {
        let line =
            |(id, parent, path): &(u64, u64, &str)| format!("{id} {parent} 0:{id} / {path} rw - ext4 /dev/s{id} rw\n");
        MountTable::parse(mounts.iter().map(line).collect::<String>().as_bytes(), Path::new("/")).unwrap()
    }

    fn cover_of(mounts: &[(u64, u64, &str)], path: &str) -> Option<u64> {
        table(mounts).cover_of(Path::new(path)).map(|cover| cover.id)
    }

    #[test]
    fn only_a_later_mount_above_hides_a_mount() {
        let (root, kubelet, volume) = ((1, 0, "/"), (2, 1, "/kubelet"), (3, 2, "/kubelet/pods/v"));
        let path = "/kubelet/pods/v";
        assert_eq!(cover_of(&[root, kubelet, volume], path), None);
        assert_eq!(cover_of(&[root, kubelet, volume, (4, 2, "/kubelet")], path), Some(4));
        assert_eq!(
            cover_of(&[root, kubelet, volume, (4, 2, "/kubelet/pods")], path),
            Some(4)
        );
        // The kubelet's directory was no mount before.
        assert_eq!(cover_of(&[root, (3, 1, path), (4, 1, "/kubelet")], path), Some(4));
        // The topmost one has to be removed first.
        assert_eq!(
            cover_of(&[root, kubelet, volume, (4, 2, "/kubelet"), (5, 4, "/kubelet")], path),
            Some(5)
        );
        // A mount on the volume's own path is unmounted with it.
        assert_eq!(cover_of(&[root, kubelet, volume, (4, 3, path)], path), None);
        assert_eq!(cover_of(&[root, kubelet, (4, 2, "/kubelet"), (5, 4, path)], path), None);
        assert_eq!(cover_of(&[root, kubelet], path), None);
    }

    #[test]
    fn second_mount_of_the_same_directory_is_named_with_its_command_and_another_disk_with_a_warning() {
        let named = |cover: &str, more: &str| {
            let lines = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:2 / /kubelet rw - ext4 /dev/sdb rw\n3 2 8:3 / /kubelet/v rw - \
                         ext4 /dev/sdc rw\n";
            let table = MountTable::parse(format!("{lines}{cover}{more}").as_bytes(), Path::new("/")).unwrap();
            Cover::new(table.cover_of(Path::new("/kubelet/v")).unwrap(), &table).to_string()
        };
        let same = "4 2 8:2 / /kubelet rw - ext4 /dev/sdb rw\n";
        assert_eq!(
            named(same, ""),
            "ext4 of /dev/sdb is mounted over it at \"/kubelet\", so that no path leads to it: remove that mount with umount -l \
             /kubelet"
        );
        let on_it = "5 4 8:5 / /kubelet/w rw - ext4 /dev/sde rw\n";
        assert!(named(same, on_it).ends_with("remove that mount, and first the 1 mount on it, with umount"));
        for more in ["", on_it] {
            let other = named("4 2 8:4 / /kubelet rw - ext4 /dev/sdd rw\n", more);
            assert!(
                other.contains("Delete those pods first, and then remove that mount with umount -l"),
                "{other}"
            );
        }
    }
}
