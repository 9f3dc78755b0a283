//! The mount table, read from the text of mountinfo.
//!
//! Own parser: the kernel writes paths as bytes that need not be UTF-8, and escapes some of them; the `procfs` crate
//! reads lines as UTF-8 and undoes no escape.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// What every kubelet calls the directory of its pods.
const PODS: &str = "pods";

/// One mount of this mount namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's id; may be used again after an unmount.
    pub id: u64,
    /// Id of the mount that this one is mounted on.
    pub parent: u64,
    /// Major and minor number of the file system: what tells two superblocks apart.
    pub device: (u32, u32),
    /// The directory or file of that file system that is mounted.
    pub root: PathBuf,
    /// That directory or file has been removed meanwhile.
    pub root_deleted: bool,
    /// Where it is mounted.
    pub path: PathBuf,
    /// Type of file system, such as `tmpfs`.
    pub fs_type: OsString,
    /// What was mounted, such as a device.
    pub source: OsString,
    /// Options of the file system, separated by commas.
    pub super_options: OsString,
}

/// The mounts at or below one place, in the kernel's order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable {
    mounts: Vec<Mount>,
    /// What is mounted below directories called `pods` in other places.
    other_pods: Vec<PathBuf>,
}

/// What a line of mountinfo must have and this one has not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mountinfo line without {missing}: {line:?}")]
pub struct BadLine {
    missing: &'static str,
    line: OsString,
}

// === impl MountTable ===

impl MountTable {
    /// Parses mountinfo, keeping only what is mounted on `scope` or below it.
    ///
    /// A line that cannot be read is an error: a mount that is overlooked would be a lie.
    pub fn parse(text: &[u8], scope: &Path) -> Result<Self, BadLine> {
        let (mut mounts, mut other_pods) = (Vec::new(), Vec::new());
        for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
            // The path is the fifth field; most lines of a busy node are containers' and end here.
            let Some(field) = line.split(|&byte| byte == b' ').nth(4) else {
                return Err(BadLine {
                    missing: "a path",
                    line: OsString::from_vec(line.to_vec()),
                });
            };
            let path = PathBuf::from(unescape(field));
            if path.starts_with(scope) {
                mounts.push(Mount::parse(line, path)?);
            } else if path.iter().any(|part| part == PODS) {
                other_pods.push(path);
            }
        }
        Ok(Self { mounts, other_pods })
    }

    /// What is mounted for the pod with this UID by a kubelet that has another root directory than we know.
    pub fn elsewhere(&self, uid: &str) -> impl Iterator<Item = &Path> {
        // Directories above the kubelet's may be called so, too.
        let of_it = move |path: &&Path| {
            let below = path.iter().skip(1);
            path.iter().zip(below).any(|(above, part)| above == PODS && part == uid)
        };
        self.other_pods.iter().map(PathBuf::as_path).filter(of_it)
    }

    /// All mounts, in the kernel's order.
    pub fn all(&self) -> &[Mount] {
        &self.mounts
    }

    /// What is mounted below `dir`, in the order in which it has to be unmounted.
    pub fn below(&self, dir: &Path) -> Vec<Mount> {
        self.in_order(|mount| mount.path != dir && mount.path.starts_with(dir))
    }

    /// What is mounted on `path` itself, topmost first.
    pub fn on(&self, path: &Path) -> Vec<Mount> {
        self.in_order(|mount| mount.path == path)
    }

    /// What is mounted on one of `places` or below it, in the order in which it has to be unmounted.
    pub fn at_or_below<P: AsRef<Path>>(&self, places: &[P]) -> Vec<Mount> {
        self.in_order(|mount| places.iter().any(|place| mount.path.starts_with(place)))
    }

    /// Deepest first: by path, then within a stack on one path the topmost, which has the others as ancestors.
    fn in_order(&self, wanted: impl Fn(&Mount) -> bool) -> Vec<Mount> {
        let mut chosen: Vec<(usize, &Mount)> = self.mounts.iter().enumerate().filter(|(_, m)| wanted(m)).collect();
        if chosen.len() > 1 {
            let parents: HashMap<u64, u64> = self.mounts.iter().map(|mount| (mount.id, mount.parent)).collect();
            chosen.sort_by_cached_key(|(line, mount)| {
                let key = (mount.path.components().count(), ancestors(&parents, mount.id), *line);
                std::cmp::Reverse(key)
            });
        }
        chosen.into_iter().map(|(_, mount)| mount.clone()).collect()
    }
}

/// How many of the known mounts lie between this one and the root.
fn ancestors(parents: &HashMap<u64, u64>, mut id: u64) -> usize {
    // Bounded by the size of the table, since a table read in two parts may hold a loop.
    for depth in 0..=parents.len() {
        match parents.get(&id) {
            Some(&parent) if parent != id => id = parent,
            _ => return depth,
        }
    }
    parents.len()
}

// === impl Mount ===

impl Mount {
    fn parse(line: &[u8], path: PathBuf) -> Result<Self, BadLine> {
        let bad = |missing| BadLine {
            missing,
            line: OsString::from_vec(line.to_vec()),
        };
        let mut fields = line.split(|&byte| byte == b' ');
        let id = number(fields.next()).ok_or_else(|| bad("an id"))?;
        let parent = number(fields.next()).ok_or_else(|| bad("a parent"))?;
        let device = fields.next().and_then(device).ok_or_else(|| bad("a device"))?;
        let mut root = unescape(fields.next().ok_or_else(|| bad("a root"))?);
        // No path within a file system holds two slashes, so this suffix is the kernel's.
        let root_deleted = root.as_bytes().ends_with(b"//deleted");
        if root_deleted {
            let length = root.len() - b"//deleted".len();
            root = OsString::from_vec(root.into_vec()[..length].to_vec());
        }
        // Path and options of the mount, then any number of optional fields up to a lone dash.
        fields
            .by_ref()
            .skip(2)
            .find(|field| *field == b"-")
            .ok_or_else(|| bad("a separator"))?;
        let fs_type = unescape(fields.next().ok_or_else(|| bad("a type"))?);
        let source = unescape(fields.next().ok_or_else(|| bad("a source"))?);
        let super_options = unescape(fields.next().unwrap_or_default());
        Ok(Self {
            id,
            parent,
            device,
            root: root.into(),
            root_deleted,
            path,
            fs_type,
            source,
            super_options,
        })
    }
}

fn number<T: std::str::FromStr>(field: Option<&[u8]>) -> Option<T> {
    std::str::from_utf8(field?).ok()?.parse().ok()
}

fn device(field: &[u8]) -> Option<(u32, u32)> {
    let mut parts = field.splitn(2, |&byte| byte == b':');
    Some((number(parts.next())?, number(parts.next())?))
}

/// Undoes the kernel's octal escapes: a backslash and three octal digits, one byte.
pub fn unescape(field: &[u8]) -> OsString {
    if !field.contains(&b'\\') {
        return OsStr::from_bytes(field).to_owned();
    }
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                bytes.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
    fn every_field_is_read_past_any_number_of_optional_ones() {
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
            assert_eq!(table(&[&line]).all(), [expected], "with {optional:?}");
        }
    }

    #[test]
    fn a_removed_root_is_told_from_a_name() {
        let table = table(&[
            "1 0 8:1 /v/c//deleted /a rw - ext4 s rw",
            "2 0 8:1 /v/c\\040(deleted) /b rw - ext4 s rw",
            "3 0 8:1 /deleted /c rw - ext4 s rw",
        ]);
        let roots: Vec<_> = table
            .all()
            .iter()
            .map(|m| (m.root.to_str().unwrap(), m.root_deleted))
            .collect();
        assert_eq!(roots, [("/v/c", true), ("/v/c (deleted)", false), ("/deleted", false)]);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_an_error_and_not_a_missing_mount() {
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
    fn only_the_scope_is_kept_and_siblings_with_a_longer_name_are_not_in_it() {
        let text = b"1 0 8:1 / / rw - t s o\n2 1 8:1 / /pods rw - t s o\n3 2 8:1 / /pods/a rw - t s o\n4 1 8:1 / /pods-b rw - t s o\n";
        let table = MountTable::parse(text, Path::new("/pods")).unwrap();
        assert_eq!(ids(table.all()), [2, 3]);
    }

    #[test]
    fn mounts_of_a_pod_below_other_directories_are_known_by_pods_and_its_uid() {
        let text = b"1 0 8:1 / /srv/kubelet/pods/u1/volumes/v rw - t s o\n\
                     2 0 8:1 / /data/pods/kubelet/pods/u1/volumes/v rw - t s o\n\
                     3 0 8:1 / /srv/kubelet/pods/u1 rw - t s o\n\
                     4 0 8:1 / /srv/kubelet/pods/u2/volumes/u1 rw - t s o\n\
                     5 0 8:1 / /srv/kubelet/pods rw - t s o\n\
                     6 0 8:1 / /kubelet/pods/u1/volumes/v rw - t s o\n";
        let table = MountTable::parse(text, Path::new("/kubelet/pods")).unwrap();
        let found: Vec<_> = table.elsewhere("u1").map(|path| path.to_str().unwrap()).collect();
        let expected = [
            "/srv/kubelet/pods/u1/volumes/v",
            "/data/pods/kubelet/pods/u1/volumes/v",
            "/srv/kubelet/pods/u1",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn nested_mounts_come_before_what_they_lie_in_and_stacks_from_the_top() {
        let table = table(&[
            "10 1 0:5 / /p/v rw - tmpfs t rw",
            "13 12 0:8 / /p/v/in rw - tmpfs t rw",
            "11 10 0:6 / /p/v rw - tmpfs t rw",
            "12 11 0:7 / /p/v rw - tmpfs t rw",
            "14 1 0:9 / /p/vx rw - tmpfs t rw",
        ]);
        assert_eq!(ids(&table.at_or_below(&["/p/v"])), [13, 12, 11, 10]);
        assert_eq!(ids(&table.on(Path::new("/p/v"))), [12, 11, 10]);
        assert_eq!(ids(&table.below(Path::new("/p/v"))), [13]);
        assert_eq!(ids(&table.below(Path::new("/p"))), [13, 12, 11, 14, 10]);
    }

    #[test]
    fn a_table_with_a_loop_is_still_ordered() {
        let table = table(&["1 2 0:5 / /p/a rw - t s o", "2 1 0:5 / /p/b rw - t s o"]);
        assert_eq!(table.below(Path::new("/p")).len(), 2);
    }

    proptest! {
        #[test]
        fn whatever_the_kernel_escapes_is_read_as_it_was(name in proptest::collection::vec(1u8..=255, 1..40)) {
            let name: Vec<u8> = name.into_iter().filter(|&byte| byte != b'/').collect();
            let mut path = b"/pods/".to_vec();
            path.extend(&name);
            let mut line = b"5 1 0:3 / ".to_vec();
            line.extend(escape(&path));
            line.extend(b" rw - tmpfs tmpfs rw");
            let table = MountTable::parse(&line, Path::new("/pods")).unwrap();
            prop_assert_eq!(table.all()[0].path.as_os_str().as_bytes(), &path[..]);
        }

        #[test]
        fn no_text_makes_the_parser_panic(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = MountTable::parse(&text, Path::new("/"));
            let _ = unescape(&text);
        }
    }
}
