//! The mount table: the mounts in a scope, with indexes.

use std::{
    cmp::Ordering,
    ffi::OsStr,
    iter,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    mount::{BadLine, Mount, path_of},
    strays::Strays,
};

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
pub(super) enum Found {
    /// In the scope of the table.
    InScope(Arc<Mount>),
    /// Outside of it, but a pod may have it.
    Outside(PathBuf),
}

// === impl Found ===

impl Found {
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
                Mount::parse(line, path.into_owned()).map(|mount| Some(Found::InScope(Arc::new(mount))))
            } else {
                Ok(Found::outside(&path))
            }
        };
        let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
        let found: Result<Vec<_>, _> = lines.map(found).collect();
        Ok(Self::new(&scope, found?.into_iter().flatten()))
    }

    /// The table of these mounts, which are in the kernel's order.
    pub(super) fn new(scope: &Path, found: impl IntoIterator<Item = Found>) -> Self {
        let mut table = Self {
            scope: plain(scope),
            ..Self::default()
        };
        let mut strays = Strays::default();
        for found in found {
            match found {
                Found::Outside(path) => strays.note_outside(&path),
                Found::InScope(mount) => {
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

    /// The table without the mounts that are `gone`, and with `new` ones at its end. `None` if others change than mounts in pods'
    /// directories.
    ///
    /// Sorts nothing: a node has thousands of mounts, and a pod's teardown changes a few.
    pub(super) fn changed(&self, gone: &[Found], new: &[Found]) -> Option<Self> {
        let mut is_gone = vec![false; self.mounts.len()];
        for found in gone {
            let mount = self.pods_own(found)?;
            let at = self
                .at_id(mount.id)
                .filter(|&at| Arc::ptr_eq(&self.mounts[at], mount))?;
            is_gone[at] = true;
        }
        let mut table = Self {
            scope: self.scope.clone(),
            strays: Arc::clone(&self.strays),
            ..Self::default()
        };
        let mut moved_to = Vec::with_capacity(self.mounts.len());
        for (mount, is_gone) in self.mounts.iter().zip(&is_gone) {
            moved_to.push(table.mounts.len());
            if !is_gone {
                table.mounts.push(Arc::clone(mount));
            }
        }
        let kept = |index: &[usize]| {
            let kept = index.iter().filter(|&&at| !is_gone[at]);
            kept.map(|&at| moved_to[at]).collect()
        };
        table.by_path = kept(&self.by_path);
        table.by_id = kept(&self.by_id);
        for found in new {
            let mount = self.pods_own(found)?;
            let is_before = |&at: &usize| order(key(&table.mounts[at].path), key(&mount.path)).is_le();
            let by_path = table.by_path.partition_point(is_before);
            let by_id = table.by_id.partition_point(|&at| table.mounts[at].id <= mount.id);
            table.by_path.insert(by_path, table.mounts.len());
            table.by_id.insert(by_id, table.mounts.len());
            table.mounts.push(Arc::clone(mount));
        }
        Some(table)
    }

    /// The mount, if it is a pod's at its place.
    fn pods_own<'a>(&self, found: &'a Found) -> Option<&'a Arc<Mount>> {
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

    /// The mount that `path` resolves to: the topmost one at or nearest above it.
    pub fn mount_containing(&self, path: &Path) -> Option<&Mount> {
        let on = |path: &Path| self.mounts_on(path).first().map(|mount| mount.id);
        let id = path.ancestors().find_map(on)?;
        self.at_id(id).map(|at| &*self.mounts[at])
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

/// Without redundant components, as the kernel writes paths.
pub(super) fn plain(path: &Path) -> PathBuf {
    path.components().collect()
}

/// Plain paths are compared as bytes: ten times faster than by component, and a node has thousands.
fn key(path: &Path) -> &[u8] {
    let path = path.as_os_str().as_bytes();
    path.strip_suffix(b"/").unwrap_or(path)
}

/// Orders paths so that those at or below a path are adjacent.
fn order(one: &[u8], other: &[u8]) -> Ordering {
    let rank = |byte: u8| if byte == b'/' { 0 } else { byte };
    match one.iter().zip(other).find(|(one, other)| one != other) {
        Some((&one, &other)) => rank(one).cmp(&rank(other)),
        None => one.len().cmp(&other.len()),
    }
}

fn is_within(path: &[u8], parent: &[u8]) -> bool {
    let rest = path.strip_prefix(parent);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::unescape, *};

    fn table(lines: &[&str]) -> MountTable {
        MountTable::parse(lines.join("\n").as_bytes(), Path::new("/")).unwrap()
    }

    fn ids(mounts: &[Mount]) -> Vec<u64> {
        mounts.iter().map(|mount| mount.id).collect()
    }

    fn escape(path: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        for &byte in path {
            if b" \t\n\\#".contains(&byte) {
                text.extend(format!("\\{byte:03o}").bytes());
            } else {
                text.push(byte);
            }
        }
        text
    }

    #[test]
    fn fields_are_parsed_after_any_number_of_optional_ones() {
        for optional in ["", "shared:7 ", "shared:7 master:2 propagate_from:1 unbindable "] {
            let line =
                format!("36 35 98:1 /a/b /pods/x rw,noatime {optional}- ext4 /dev/my\\040disk rw,errors=continue");
            let expected = Mount {
                id: 36,
                parent: 35,
                device: (98, 1),
                root: "/a/b".into(),
                root_deleted: false,
                path: "/pods/x".into(),
                fs_type: "ext4".into(),
                source: "/dev/my disk".into(),
                super_options: "rw,errors=continue".into(),
            };
            assert_eq!(Vec::from_iter(table(&[&line]).all()), [&expected], "with {optional:?}");
        }
    }

    #[test]
    fn deleted_root_is_distinguished_from_a_name() {
        let table = table(&[
            "1 0 8:1 /v/c//deleted /a rw - ext4 s rw",
            "2 0 8:1 /v/c\\040(deleted) /b rw - ext4 s rw",
            "3 0 8:1 /deleted /c rw - ext4 s rw",
        ]);
        let roots: Vec<_> = table
            .all()
            .map(|m| (m.root.to_str().unwrap(), m.root_deleted))
            .collect();
        assert_eq!(roots, [("/v/c", true), ("/v/c (deleted)", false), ("/deleted", false)]);
    }

    #[test]
    fn invalid_line_is_an_error() {
        for line in [
            "x",
            "1 0 8:1",
            "a 0 8:1 / /p rw - t s o",
            "1 0 8 / /p rw - t s o",
            "1 0 8:1 / /p rw t s o",
        ] {
            assert!(MountTable::parse(line.as_bytes(), Path::new("/")).is_err(), "{line}");
        }
    }

    #[test]
    fn only_mounts_in_scope_are_kept() {
        let text = b"1 0 8:1 / / rw - t s o\n2 1 8:1 / /pods rw - t s o\n3 2 8:1 / /pods/a rw - t s o\n4 1 8:1 / /pods-b rw - t s o\n";
        let table = MountTable::parse(text, Path::new("/pods")).unwrap();
        assert_eq!(table.all().map(|mount| mount.id).collect::<Vec<_>>(), [2, 3]);
    }

    #[test]
    fn stray_mounts_are_found_by_uid() {
        let text = b"1 0 8:1 / /srv/kubelet/pods/u1/volumes/v rw - t s o\n\
                     2 0 8:1 / /data/pods/kubelet/pods/u1/volumes/v rw - t s o\n\
                     3 0 8:1 / /srv/kubelet/pods/u1 rw - t s o\n\
                     4 0 8:1 / /srv/kubelet/pods/u2/volumes/u1 rw - t s o\n\
                     5 0 8:1 / /srv/kubelet/pods rw - t s o\n\
                     6 0 8:1 / /kubelet/pods/u1/volumes/v rw - t s o\n";
        let table = MountTable::parse(text, Path::new("/kubelet/pods")).unwrap();
        let found: Vec<_> = table.stray_mounts("u1").map(|path| path.to_str().unwrap()).collect();
        let expected = [
            "/srv/kubelet/pods/u1/volumes/v",
            "/data/pods/kubelet/pods/u1/volumes/v",
            "/srv/kubelet/pods/u1",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn nested_and_topmost_mounts_come_first() {
        let table = table(&[
            "10 1 0:5 / /p/v rw - tmpfs t rw",
            "13 12 0:8 / /p/v/in rw - tmpfs t rw",
            "11 10 0:6 / /p/v rw - tmpfs t rw",
            "12 11 0:7 / /p/v rw - tmpfs t rw",
            "14 1 0:9 / /p/vx rw - tmpfs t rw",
        ]);
        assert_eq!(ids(&table.mounts_at_or_below(&["/p/v"])), [13, 12, 11, 10]);
        assert_eq!(ids(&table.mounts_on(Path::new("/p/v"))), [12, 11, 10]);
        assert_eq!(ids(&table.mounts_below(Path::new("/p/v"))), [13]);
        assert_eq!(ids(&table.mounts_below(Path::new("/p"))), [13, 12, 11, 14, 10]);
    }

    #[test]
    fn path_is_on_the_topmost_mount_at_or_above_it() {
        let table = table(&[
            "10 1 0:5 / /p/v rw - tmpfs t rw",
            "11 10 0:6 / /p/v rw - tmpfs t rw",
            "12 11 0:7 / /p/v/in rw - tmpfs t rw",
        ]);
        let id = |path| table.mount_containing(Path::new(path)).map(|mount| mount.id);
        assert_eq!(
            [id("/p/v"), id("/p/v/a/b"), id("/p/v/in/a"), id("/p/vx"), id("/")],
            [Some(11), Some(11), Some(12), None, None]
        );
    }

    #[test]
    fn mounts_below_a_server_or_disk_are_not_all_in_memory() {
        let table = table(&[
            "10 1 0:5 / /p/v rw - tmpfs t rw",
            "11 10 0:6 / /p/v/in rw - hugetlbfs t rw",
            "12 11 0:7 / /p/v/in/in rw - fuse.sshfs t rw",
            "13 12 0:8 / /p/v/in/in/in rw - tmpfs t rw",
            "14 13 0:9 / /p/v/in/in/in/in rw - tmpfs t rw",
            "15 1 8:1 / /p/w rw - ext4 t rw",
            "16 15 0:3 / /p/w/in rw - tmpfs t rw",
        ]);
        let all = table.all().filter(|it| table.is_all_in_memory(it));
        let in_memory: Vec<u64> = all.map(|mount| mount.id).collect();
        assert_eq!(in_memory, [10, 11, 12, 15]);
    }

    #[test]
    fn table_with_a_cycle_is_ordered() {
        let table = table(&["1 2 0:5 / /p/a rw - t s o", "2 1 0:5 / /p/b rw - t s o"]);
        assert_eq!(table.mounts_below(Path::new("/p")).len(), 2);
    }

    /// A table with few names, so that nested paths and stacks occur, in any order.
    fn any_table() -> impl Strategy<Value = MountTable> {
        let path = proptest::collection::vec(proptest::sample::select(vec!["a", "a-b", "ab", "b", "pods"]), 0..5);
        proptest::collection::vec((path, 0u64..40), 0..40).prop_map(|mounts| {
            let lines = mounts
                .iter()
                .enumerate()
                .map(|(id, (path, parent))| format!("{id} {parent} 0:{id} / /{} rw - tmpfs t rw\n", path.join("/")));
            MountTable::parse(lines.collect::<String>().as_bytes(), Path::new("/")).unwrap()
        })
    }

    /// The expected unmount order, computed from the whole table.
    fn naive(table: &MountTable, wanted: impl Fn(&Mount) -> bool) -> Vec<u64> {
        let mut chosen: Vec<_> = table.all().enumerate().filter(|(_, it)| wanted(it)).collect();
        chosen.sort_by_key(|(at, it)| (it.path.components().count(), table.ancestors(it).count(), *at));
        chosen.into_iter().rev().map(|(_, it)| it.id).collect()
    }

    proptest! {
        #[test]
        fn index_finds_the_same_as_a_full_search(
            table in any_table(),
            places in proptest::collection::vec("(/a|/a-b|/ab|/b|/pods){0,4}/?|", 0..4),
        ) {
            let at_or_below = |it: &Mount| places.iter().any(|place| it.path.starts_with(place));
            prop_assert_eq!(ids(&table.mounts_at_or_below(&places)), naive(&table, at_or_below));
            for place in places.iter().map(Path::new) {
                prop_assert_eq!(ids(&table.mounts_on(place)), naive(&table, |it| it.path == place));
                let below = naive(&table, |it| it.path != place && it.path.starts_with(place));
                prop_assert_eq!(ids(&table.mounts_below(place)), below);
            }
        }

        #[test]
        fn escaped_paths_are_decoded(name in proptest::collection::vec(1u8..=255, 1..40)) {
            let name: Vec<u8> = name.into_iter().filter(|&byte| byte != b'/').collect();
            let mut path = b"/pods/".to_vec();
            path.extend(&name);
            let mut line = b"5 1 0:3 / ".to_vec();
            line.extend(escape(&path));
            line.extend(b" rw - tmpfs tmpfs rw");
            let table = MountTable::parse(&line, Path::new("/pods")).unwrap();
            prop_assert_eq!(table.all().next().unwrap().path.as_os_str().as_bytes(), &path[..]);
        }

        #[test]
        fn parser_never_panics(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = MountTable::parse(&text, Path::new("/"));
            let _ = unescape(&text);
        }
    }

    fn pods_mount(id: u64, name: u8) -> Found {
        let line = format!("{id} 0 0:5 / /pods/p{name}/volumes/v rw - tmpfs t rw");
        let path = path_of(line.as_bytes()).unwrap().into_owned();
        Found::of(Mount::parse(line.as_bytes(), path).unwrap(), Path::new("/pods")).unwrap()
    }

    proptest! {
        #[test]
        fn changed_table_is_the_table_of_what_is_left(
            names in proptest::collection::vec((0u8..4, any::<bool>()), 0..30),
            new in proptest::collection::vec(0u8..4, 0..5),
        ) {
            // IDs of removed mounts are used again.
            let all: Vec<_> = (0..).zip(&names).map(|(id, (name, _))| pods_mount(id ^ 5, *name)).collect();
            let is_gone = |at: &usize| names[*at].1;
            let (gone, kept): (Vec<_>, Vec<_>) = (0..all.len()).partition(is_gone);
            let pick = |chosen: &[usize]| chosen.iter().map(|&at| all[at].clone()).collect::<Vec<_>>();
            let free = gone.iter().map(|&at| at as u64 ^ 5).chain(100..);
            let new: Vec<_> = free.zip(&new).map(|(id, name)| pods_mount(id, *name)).collect();
            let scope = Path::new("/pods");
            let changed = MountTable::new(scope, all.clone()).changed(&pick(&gone), &new);
            let afresh = MountTable::new(scope, pick(&kept).into_iter().chain(new));
            prop_assert_eq!(changed, Some(afresh));
        }
    }

    #[test]
    fn change_of_a_mount_at_an_unexpected_place_needs_a_new_table() {
        let table = MountTable::new(Path::new("/pods"), [pods_mount(1, 1)]);
        let renamed = Mount {
            path: "/pods/p1.old/volumes/a~b/v".into(),
            ..table.all().next().unwrap().clone()
        };
        for found in [
            Found::InScope(Arc::new(renamed)),
            Found::Outside("/pods-2/volumes/v".into()),
        ] {
            assert_eq!(table.changed(&[], std::slice::from_ref(&found)), None);
            assert_eq!(table.changed(&[found], &[]), None);
        }
    }
}
