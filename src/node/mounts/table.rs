//! The mount table: the mounts in a scope, with indexes.

use std::{
    ffi::OsStr,
    iter,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    mount::{BadLine, Mount, MountedOn, path_of},
    path_order::{is_within, key, order, plain},
    strays::Strays,
};

#[cfg(test)]
mod tests;

/// The mounts in a scope, in the kernel's order.
///
/// Indexed, so that a query for one pod does not read the mounts of thousands of others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    scope: PathBuf,
    mounts: Vec<Arc<Mount>>,
    /// Indexes in `mounts`, ordered by path: mounts at or below a path are adjacent.
    by_path: Vec<usize>,
    /// Indexes in `mounts`, ordered by ID.
    by_id: Vec<usize>,
    /// Mounts of pods outside of their directories.
    strays: Arc<Strays>,
}

/// A mount with a place in a table.
#[derive(Debug, Clone)]
pub(super) enum PlacedMount {
    /// In the scope of the table.
    InScope(Arc<Mount>),
    /// Outside of it, but a pod may have it.
    Outside(PathBuf),
}

// === impl PlacedMount ===

impl PlacedMount {
    /// The place of a mount in the table of this scope, if it has one.
    pub fn of(mount: Mount, scope: &Path) -> Option<Self> {
        if is_within(key(&mount.path), key(scope)) {
            Some(Self::InScope(Arc::new(mount)))
        } else {
            Self::outside(&mount.path)
        }
    }

    /// The mount, if it is in the scope.
    pub fn in_scope(&self) -> Option<&Arc<Mount>> {
        match self {
            Self::InScope(mount) => Some(mount),
            Self::Outside(_) => None,
        }
    }

    fn outside(path: &Path) -> Option<Self> {
        Strays::may_be_of_a_pod(path).then(|| Self::Outside(path.to_owned()))
    }
}

// === impl MountTable ===

impl MountTable {
    /// Parses mountinfo, and keeps mounts at or below `scope`.
    ///
    /// A line that cannot be parsed is an error: a missed mount would count as unmounted.
    pub fn parse(text: &[u8], scope: &Path) -> Result<Self, BadLine> {
        let scope = plain(scope);
        let found = |line| {
            // Most lines of a busy node belong to containers and are skipped here.
            let path = path_of(line)?;
            if is_within(key(&path), key(&scope)) {
                Mount::parse(line, path.into_owned()).map(|mount| Some(PlacedMount::InScope(Arc::new(mount))))
            } else {
                Ok(PlacedMount::outside(&path))
            }
        };
        let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let found: Result<Vec<_>, _> = lines.map(found).collect();
        Ok(Self::new(&scope, found?.into_iter().flatten()))
    }

    /// The table of these mounts, which are in the kernel's order.
    pub(super) fn new(scope: &Path, found: impl IntoIterator<Item = PlacedMount>) -> Self {
        let mut table = Self {
            scope: plain(scope),
            ..Self::default()
        };
        let mut strays = Strays::default();
        for found in found {
            match found {
                PlacedMount::Outside(path) => strays.note_outside(&path),
                PlacedMount::InScope(mount) => {
                    if let Some(relative) = table.relative(&mount) {
                        strays.note_inside(&mount.path, relative);
                    }
                    table.mounts.push(mount);
                }
            }
        }
        table.strays = Arc::new(strays);
        table.by_id = (0..table.mounts.len()).collect();
        table.by_id.sort_by_key(|&at| table.mounts[at].id);
        table.by_path = (0..table.mounts.len()).collect();
        let key = |at: usize| key(&table.mounts[at].path);
        table.by_path.sort_by(|&one, &other| order(key(one), key(other)));
        table
    }

    /// The table without the `removed` mounts, and with `new` ones at its end. `None` if others change than mounts in pods'
    /// directories.
    ///
    /// Sorts nothing: a node has thousands of mounts, and a pod's teardown changes a few.
    pub(super) fn with_changes(&self, removed: &[PlacedMount], new: &[PlacedMount]) -> Option<Self> {
        let mut is_removed = vec![false; self.mounts.len()];
        for found in removed {
            let mount = self.mount_in_pod_dir(found)?;
            let at = self
                .at_id(mount.id)
                .filter(|&at| Arc::ptr_eq(&self.mounts[at], mount))?;
            is_removed[at] = true;
        }
        let mut table = Self {
            scope: self.scope.clone(),
            strays: Arc::clone(&self.strays),
            ..Self::default()
        };
        let mut new_index = Vec::with_capacity(self.mounts.len());
        for (mount, is_removed) in self.mounts.iter().zip(&is_removed) {
            new_index.push(table.mounts.len());
            if !is_removed {
                table.mounts.push(Arc::clone(mount));
            }
        }
        let kept = |index: &[usize]| {
            let kept = index.iter().filter(|&&at| !is_removed[at]);
            kept.map(|&at| new_index[at]).collect()
        };
        table.by_path = kept(&self.by_path);
        table.by_id = kept(&self.by_id);
        for found in new {
            let mount = self.mount_in_pod_dir(found)?;
            let is_before = |&at: &usize| order(key(&table.mounts[at].path), key(&mount.path)).is_le();
            let by_path = table.by_path.partition_point(is_before);
            let by_id = table.by_id.partition_point(|&at| table.mounts[at].id <= mount.id);
            table.by_path.insert(by_path, table.mounts.len());
            table.by_id.insert(by_id, table.mounts.len());
            table.mounts.push(Arc::clone(mount));
        }
        Some(table)
    }

    /// The mount, if it is in the directory of a pod.
    fn mount_in_pod_dir<'a>(&self, found: &'a PlacedMount) -> Option<&'a Arc<Mount>> {
        let is_stray = |mount: &&Arc<Mount>| self.relative(mount).is_some_and(|it| !Strays::is_of_a_pod(it));
        found.in_scope().filter(|mount| !is_stray(mount))
    }

    /// Its path below the directory of pods.
    fn relative<'a>(&self, mount: &'a Mount) -> Option<&'a Path> {
        // `/` is no pods directory.
        self.scope.file_name()?;
        mount.path.strip_prefix(&self.scope).ok()
    }

    /// Index in `mounts`.
    fn at_id(&self, id: u64) -> Option<usize> {
        let found = self.by_id.binary_search_by_key(&id, |&at| self.mounts[at].id);
        found.ok().map(|at| self.by_id[at])
    }

    /// Mounts of this pod outside of its directory: it was renamed, or the kubelet has another root directory.
    pub fn stray_mounts(&self, uid: &str) -> impl Iterator<Item = &Path> {
        self.strays.of_pod(uid)
    }

    /// Paths at which raw block devices are mapped for this pod.
    pub fn mapped_devices(&self, uid: &str) -> &[PathBuf] {
        self.strays.devices_of(uid)
    }

    /// Pod volumes in paths without a UID.
    pub fn volumes_without_uid(&self) -> &[PathBuf] {
        self.strays.volumes_without_uid()
    }

    /// Names of pod directories with mounts or mapped devices.
    pub fn pods(&self) -> impl Iterator<Item = &OsStr> {
        let mounts = self.mounts.iter();
        let below = mounts.filter_map(|mount| mount.path.strip_prefix(&self.scope).ok()?.iter().next());
        below.chain(self.strays.with_devices())
    }

    /// All mounts in scope, in the kernel's order.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = &Mount> {
        self.mounts.iter().map(|mount| &**mount)
    }

    /// The mounts below `dir`, in unmount order.
    pub fn mounts_below(&self, dir: &Path) -> Vec<Mount> {
        let within = self.range_within(dir).iter().copied();
        self.unmount_order(within.filter(|&at| self.mounts[at].path != dir).collect())
    }

    /// The mounts on `path` itself, topmost first.
    pub fn mounts_on(&self, path: &Path) -> Vec<Mount> {
        let within = self.range_within(path).iter().copied();
        self.unmount_order(within.take_while(|&at| self.mounts[at].path == path).collect())
    }

    /// The mounts at or below `paths`, in unmount order.
    pub fn mounts_at_or_below<P: AsRef<Path>>(&self, paths: &[P]) -> Vec<Mount> {
        let within = paths.iter().flat_map(|path| self.range_within(path.as_ref())).copied();
        self.unmount_order(within.collect())
    }

    /// The directory or file that it is mounted on. `None` if the mount below it is not in the table.
    pub fn mounted_on(&self, mount: &Mount) -> Option<MountedOn> {
        mount.mounted_on(&self.mounts[self.at_id(mount.parent)?])
    }

    /// The mount that `path` resolves to: the topmost one at or nearest above it.
    pub fn mount_containing(&self, path: &Path) -> Option<&Mount> {
        let on = |path: &Path| self.mounts_on(path).first().map(|mount| mount.id);
        let id = path.ancestors().find_map(on)?;
        self.at_id(id).map(|at| &*self.mounts[at])
    }

    /// The directory or file on which a mount at `path` is mounted, or would be.
    pub fn place_of(&self, path: &Path) -> Option<MountedOn> {
        let below = self.mount_containing(path.parent()?)?;
        let within = path.strip_prefix(&below.path).ok()?;
        Some((below.device, below.root.join(within)))
    }

    /// The mount that hides the one on `path`: a later mount on a directory above it. The table has to contain both.
    pub fn cover_of(&self, path: &Path) -> Option<&Mount> {
        let hidden = self.mounts_on(path).into_iter().next()?;
        let visible_from: Vec<u64> = self.ancestors(&hidden).map(|mount| mount.id).collect();
        let mut above: Vec<&Path> = path.ancestors().skip(1).collect();
        above.reverse();
        let topmost = |dir: &Path| self.mounts_on(dir).first().map(|mount| mount.id);
        let cover = above
            .into_iter()
            .filter_map(topmost)
            .find(|id| !visible_from.contains(id))?;
        self.at_id(cover).map(|at| &*self.mounts[at])
    }

    /// Number of mounts on this one, and on those.
    pub fn count_mounts_on(&self, mount: &Mount) -> usize {
        let is_above = |it: &&Mount| self.ancestors(it).any(|above| above.id == mount.id);
        self.all().filter(is_above).count()
    }

    /// Whether all known mounts above it are in memory, so that a path lookup contacts no server.
    pub(super) fn is_all_in_memory(&self, mount: &Mount) -> bool {
        self.ancestors(mount).all(Mount::is_in_memory)
    }

    /// Indexes of the mounts at or below `path`.
    fn range_within(&self, path: &Path) -> &[usize] {
        let path = plain(path);
        let key_at = |at: usize| key(&self.mounts[at].path);
        let first = self
            .by_path
            .partition_point(|&at| order(key_at(at), key(&path)).is_lt());
        let from = &self.by_path[first..];
        &from[..from.partition_point(|&at| is_within(key_at(at), key(&path)))]
    }

    /// Sorts mounts deepest first. On one path, the topmost comes first: it has the others as ancestors.
    fn unmount_order(&self, mut chosen: Vec<usize>) -> Vec<Mount> {
        chosen.sort_unstable();
        // The paths may contain each other.
        chosen.dedup();
        chosen.sort_by_cached_key(|&at| {
            let mount = &self.mounts[at];
            std::cmp::Reverse((mount.path.components().count(), self.ancestors(mount).count(), at))
        });
        chosen.into_iter().map(|at| Mount::clone(&self.mounts[at])).collect()
    }

    /// The known mounts above it, nearest first.
    fn ancestors<'a>(&'a self, mount: &'a Mount) -> impl Iterator<Item = &'a Mount> {
        let above = |mount: &&Mount| {
            let parent = &*self.mounts[self.at_id(mount.parent)?];
            (parent.id != mount.id).then_some(parent)
        };
        // Bounded by the size of the table: a table read in two parts may contain a cycle.
        iter::successors(Some(mount), above).skip(1).take(self.mounts.len())
    }
}
