//! The mount table: the mounts in a scope, with indexes.

use std::{
    cmp::Reverse,
    collections::HashMap,
    ffi::OsStr,
    iter,
    path::{Path, PathBuf},
};

use super::{
    mount::{BadLine, Mount, MountedOn, path_of},
    strays::Strays,
};

#[cfg(test)]
mod tests;

/// The mounts in a scope, in the kernel's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    scope: PathBuf,
    mounts: Vec<Mount>,
    /// Indexes in `mounts`, by ID.
    by_id: HashMap<u64, usize>,
    /// Mounts of pods outside of their directories.
    pub strays: Strays,
}

// === impl MountTable ===

impl MountTable {
    /// Parses mountinfo, and keeps mounts at or below `scope`.
    ///
    /// A line that cannot be parsed is an error: a missed mount would count as unmounted.
    pub fn parse(text: &[u8], scope: &Path) -> Result<Self, BadLine> {
        let mut table = Self {
            scope: scope.components().collect(),
            ..Self::default()
        };
        for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            let path = path_of(line)?;
            // Most lines of a busy node belong to containers and are skipped here.
            if !path.starts_with(&table.scope) {
                table.strays.note_outside(&path);
                continue;
            }
            if let Some(relative) = table.relative(&path) {
                table.strays.note_inside(&path, relative);
            }
            let mount = Mount::parse(line, path.into_owned())?;
            table.by_id.insert(mount.id, table.mounts.len());
            table.mounts.push(mount);
        }
        Ok(table)
    }

    /// Its path below the directory of pods.
    fn relative<'a>(&self, path: &'a Path) -> Option<&'a Path> {
        // `/` is no pods directory.
        self.scope.file_name()?;
        path.strip_prefix(&self.scope).ok()
    }

    fn with_id(&self, id: u64) -> Option<&Mount> {
        self.by_id.get(&id).map(|&at| &self.mounts[at])
    }

    /// Names of pod directories with mounts or mapped devices.
    pub fn pods(&self) -> impl Iterator<Item = &OsStr> {
        let mounts = self.mounts.iter();
        let below = mounts.filter_map(|mount| mount.path.strip_prefix(&self.scope).ok()?.iter().next());
        below.chain(self.strays.with_devices())
    }

    /// All mounts in scope, in the kernel's order.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// The mounts below `dir`, in unmount order.
    pub fn mounts_below(&self, dir: &Path) -> Vec<Mount> {
        self.unmount_order(|mount| mount.path != dir && mount.path.starts_with(dir))
    }

    /// The mounts on `path` itself, topmost first.
    pub fn mounts_on(&self, path: &Path) -> Vec<Mount> {
        self.unmount_order(|mount| mount.path == path)
    }

    /// The mounts at or below `paths`, in unmount order.
    pub fn mounts_at_or_below<P: AsRef<Path>>(&self, paths: &[P]) -> Vec<Mount> {
        self.unmount_order(|mount| paths.iter().any(|path| mount.path.starts_with(path)))
    }

    /// The directory or file that it is mounted on. `None` if the mount below it is not in the table.
    pub fn mounted_on(&self, mount: &Mount) -> Option<MountedOn> {
        mount.mounted_on(self.parent_of(mount)?)
    }

    /// The mount that `path` resolves to: the topmost one at or nearest above it.
    pub fn mount_containing(&self, path: &Path) -> Option<&Mount> {
        let on = |path: &Path| self.mounts_on(path).first().map(|mount| mount.id);
        self.with_id(path.ancestors().find_map(on)?)
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
        let topmost = |dir: &Path| self.mounts_on(dir).first().map(|mount| mount.id);
        let above = path.ancestors().skip(1).filter_map(topmost);
        let covers = above.filter(|id| !visible_from.contains(id));
        // That on the outermost directory.
        self.with_id(covers.last()?)
    }

    /// Number of mounts on this one, and on those.
    pub fn count_mounts_on(&self, mount: &Mount) -> usize {
        let is_above = |it: &&Mount| self.ancestors(it).any(|above| above.id == mount.id);
        self.all().filter(is_above).count()
    }

    /// The chosen mounts, deepest first. On one path, the topmost comes first: it has the others as ancestors.
    pub(super) fn unmount_order(&self, is_chosen: impl Fn(&Mount) -> bool) -> Vec<Mount> {
        let mut chosen: Vec<_> = self.mounts.iter().enumerate().filter(|(_, it)| is_chosen(it)).collect();
        chosen.sort_by_cached_key(|(at, mount)| {
            let depth = mount.path.components().count();
            Reverse((depth, self.ancestors(mount).count(), *at))
        });
        chosen.into_iter().map(|(_, mount)| mount.clone()).collect()
    }

    /// The mount that it is mounted on, if that is in the table.
    pub fn parent_of(&self, mount: &Mount) -> Option<&Mount> {
        self.with_id(mount.parent)
    }

    /// The known mounts above it, nearest first.
    fn ancestors<'a>(&'a self, mount: &'a Mount) -> impl Iterator<Item = &'a Mount> {
        let above = |mount: &&'a Mount| self.parent_of(mount).filter(|parent| parent.id != mount.id);
        // Bounded by the size of the table: a table read in two parts may contain a cycle.
        iter::successors(Some(mount), above).skip(1).take(self.mounts.len())
    }
}
