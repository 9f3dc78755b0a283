//! Mounts of a volume outside of its own paths.

use std::path::{Path, PathBuf};

use super::{identity::is_of, publication::TARGET, staged::GLOBAL};
use crate::node::{
    csi_files::STAGING,
    mounts::{Mount, MountTable},
    pod_dir::names,
};

/// A mount of the file system at or below `staged` outside of the volume's own `paths`, which include `staged`. Volumes of one
/// server may share a file system without a device: then paths and users distinguish them.
pub fn mounted_elsewhere(table: &MountTable, root: &Path, staged: &Path, paths: &[PathBuf]) -> Option<PathBuf> {
    let here = table.mounts_at_or_below(&[staged]);
    let is_another_volumes = |other: &Mount| {
        let shared = other.device.0 == 0 && !other.source.as_encoded_bytes().starts_with(b"/dev/");
        shared && (is_staged(root, &other.path) || is_published(root, &other.path))
    };
    let is_own = |other: &Mount| paths.iter().any(|path| other.path.starts_with(path));
    let others = table.all().filter(|other| !is_own(other));
    let mut others = others.filter(|other| !is_another_volumes(other));
    let other = others.find(|other| here.iter().any(|mount| is_of(other, mount)))?;
    Some(other.path.clone())
}

/// `plugins/kubernetes.io/csi/DRIVER/DIGEST/globalmount`.
fn is_staged(root: &Path, path: &Path) -> bool {
    let below = path.strip_prefix(root.join(STAGING));
    below.is_ok_and(|below| below.components().count() == 3 && below.ends_with(GLOBAL))
}

/// `pods/UID/volumes/kubernetes.io~csi/VOLUME/mount`, or a part of it. It is of another volume: no pod uses this one.
fn is_published(root: &Path, path: &Path) -> bool {
    let Ok(below) = path.strip_prefix(root.join("pods")) else {
        return false;
    };
    let mut below = below.iter().skip(1);
    match below.next() {
        Some(dir) if dir == names::VOLUMES => below.next().is_some_and(|it| it == names::CSI) && path.ends_with(TARGET),
        Some(dir) => dir == names::SUBPATHS,
        None => false,
    }
}
