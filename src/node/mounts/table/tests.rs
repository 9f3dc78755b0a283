use std::os::unix::ffi::OsStrExt as _;

use proptest::prelude::*;

use super::{super::mount::unescape, *};

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
    for (optional, shared, master) in [
        ("", None, None),
        ("shared:7 ", Some(7), None),
        ("shared:7 master:2 propagate_from:1 unbindable ", Some(7), Some(2)),
    ] {
        let line = format!("36 35 98:1 /a/b /pods/x rw,noatime {optional}- ext4 /dev/my\\040disk rw,errors=continue");
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
            shared,
            master,
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
    let found: Vec<_> = table.strays.of_pod("u1").map(|path| path.to_str().unwrap()).collect();
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
fn table_with_a_cycle_is_ordered() {
    let table = table(&["1 2 0:5 / /p/a rw - t s o", "2 1 0:5 / /p/b rw - t s o"]);
    assert_eq!(table.mounts_below(Path::new("/p")).len(), 2);
}

proptest! {
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
