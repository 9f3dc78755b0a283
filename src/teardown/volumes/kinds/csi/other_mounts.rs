//! Mounts of a volume outside of its own paths.

use std::path::{Path, PathBuf};

use super::staging::GLOBAL;
use crate::node::{
    csi_files::STAGING,
    kubelet_root::KubeletRoot,
    mounts::{Mount, MountTable},
};

/// Whether one is a mount of the other, or of a part of it: the same file system, and nothing outside of it.
pub fn is_of(mount: &Mount, staged: &Mount) -> bool {
    mount.device == staged.device && mount.root.starts_with(&staged.root)
}

/// A mount of the file system at or below `staged` outside of the volume's own `paths`, which include `staged`. Volumes of one
/// server may share a file system without a device: then paths and users distinguish them. What is mounted in a pod's directory is
/// of another volume: no pod uses this one.
pub fn mounted_elsewhere(table: &MountTable, root: &KubeletRoot, staged: &Path, paths: &[PathBuf]) -> Option<PathBuf> {
    let here = table.mounts_at_or_below(&[staged]);
    let is_another_volumes = |other: &Mount| {
        let shared = other.device.0 == 0 && !other.source.as_encoded_bytes().starts_with(b"/dev/");
        shared && (is_staged(root, &other.path) || other.path.starts_with(root.pods()))
    };
    let is_of_volume = |other: &Mount| here.iter().any(|mount| is_of(other, mount));
    let is_known = |other: &Mount| is_own(paths, other) || is_another_volumes(other);
    let other = others(table, is_of_volume, is_known).next()?;
    Some(other.path.clone())
}

/// The mounts at or below `staged` whose file systems the volume has alone, by the mount table. Others outlive it: another volume
/// or the node uses a part of that disk.
pub fn mounted_alone(table: &MountTable, staged: &Path, paths: &[PathBuf]) -> Vec<Mount> {
    let is_alone = |mount: &Mount| {
        let is_on_device = |other: &Mount| other.device == mount.device;
        let mut others = others(table, is_on_device, |other| is_own(paths, other));
        others.next().is_none()
    };
    let mounts = table.mounts_at_or_below(&[staged]).into_iter();
    mounts.filter(is_alone).collect()
}

/// The mounts `of` something, except the `known` ones. The table shows a mount once for each view of the directory that it is
/// mounted on, such as that in a data disk with the kubelet's root: each view of a known mount is known.
fn others(
    table: &MountTable,
    of: impl Fn(&Mount) -> bool,
    known: impl Fn(&Mount) -> bool,
) -> impl Iterator<Item = &Mount> {
    let all = table.all().filter(move |mount| of(mount));
    let (known, unknown): (Vec<_>, Vec<_>) = all.partition(|mount| known(mount));
    let is_view_of = move |other: &Mount, known: &Mount| {
        let is_same = (other.device, &other.root) == (known.device, &known.root);
        let mounted_on = table.mounted_on(other);
        is_same && mounted_on.is_some() && mounted_on == table.mounted_on(known)
    };
    let others = unknown.into_iter();
    others.filter(move |other| !known.iter().any(|known| is_view_of(other, known)))
}

fn is_own(paths: &[PathBuf], mount: &Mount) -> bool {
    paths.iter().any(|path| mount.path.starts_with(path))
}

/// `plugins/kubernetes.io/csi/DRIVER/DIGEST/globalmount`.
fn is_staged(root: &KubeletRoot, path: &Path) -> bool {
    let below = path.strip_prefix(root.path().join(STAGING));
    below.is_ok_and(|below| below.components().count() == 3 && below.ends_with(GLOBAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGED: &str = "/kubelet/plugins/kubernetes.io/csi/d/1/globalmount";

    fn root() -> KubeletRoot {
        KubeletRoot::at("/kubelet")
    }

    fn table(lines: &[&str]) -> MountTable {
        let node = "1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 8:2 / /data rw - ext4 /dev/sdb rw\n3 1 8:2 /root /kubelet rw - ext4 /dev/sdb rw\n";
        let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
        MountTable::parse(format!("{node}{lines}").as_bytes(), Path::new("/")).unwrap()
    }

    #[test]
    fn view_of_the_staged_mount_through_the_data_disk_is_no_other_mount() {
        let staged = format!("10 3 8:16 / {STAGED} rw - ext4 /dev/sdc rw");
        let below = |root: &str, id: u64, path: &str| format!("11 {id} 8:16 {root} {path} rw - ext4 /dev/sdc rw");
        let view = STAGED.replace("/kubelet", "/data/root");
        for (other, is_other) in [
            (below("/", 2, &view), false),
            (below("/dir", 2, &view), true),
            (below("/", 2, &view.replace("/1/", "/2/")), true),
            // A path of another disk with the same end.
            (below("/", 1, &view.replace("/data", "/mnt")), true),
        ] {
            let table = table(&[&staged, &other]);
            let paths = [PathBuf::from(STAGED)];
            let found = mounted_elsewhere(&table, &root(), &paths[0], &paths);
            assert_eq!(found.is_some(), is_other, "{other}");
            assert_eq!(mounted_alone(&table, &paths[0], &paths).is_empty(), is_other, "{other}");
        }
    }

    #[test]
    fn views_of_other_volumes_on_one_network_file_system_are_no_other_mounts() {
        let at = |id: u64, parent: u64, path: &str| format!("{id} {parent} 0:50 /x {path} rw - nfs server:/x rw");
        let view = |path: &str| path.replace("/kubelet", "/data/root");
        let second = STAGED.replace("/1/", "/2/");
        let (one, other) = (at(10, 3, STAGED), at(12, 3, &second));
        let paths = [PathBuf::from(STAGED)];
        let known = table(&[&one, &at(11, 2, &view(STAGED)), &other, &at(13, 2, &view(&second))]);
        assert_eq!(mounted_elsewhere(&known, &root(), &paths[0], &paths), None);
        // Another pod has the same export in a volume of another kind.
        let in_tree = at(14, 3, "/kubelet/pods/u/volumes/kubernetes.io~nfs/share");
        assert_eq!(
            mounted_elsewhere(&table(&[&one, &in_tree]), &root(), &paths[0], &paths),
            None
        );
        let elsewhere = table(&[&one, &at(13, 2, &view(&second))]);
        assert!(mounted_elsewhere(&elsewhere, &root(), &paths[0], &paths).is_some());
    }

    #[test]
    fn disk_with_directories_of_others_is_not_the_volumes_alone() {
        let paths = [PathBuf::from(STAGED)];
        let staged = format!("10 3 8:2 /root/volumes/1 {STAGED} rw - ext4 /dev/sdb rw");
        assert_eq!(mounted_alone(&table(&[&staged]), &paths[0], &paths), []);
        let own = format!("10 3 8:16 / {STAGED} rw - ext4 /dev/sdc rw");
        assert_eq!(mounted_alone(&table(&[&own]), &paths[0], &paths).len(), 1);
    }
}
