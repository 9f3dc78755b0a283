//! The table that is read mount by mount is the table of mountinfo.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use nix::{
    mount::{MsFlags, mount, umount},
    sys::utsname::uname,
};
use pod_teardown::node::mounts::{Mount, MountTable, Mounts};

use crate::space::{Space, bind, in_own_namespace, tmpfs, write};

const OWN: &str = "/proc/thread-self/mountinfo";

/// Whether the kernel has all that is needed.
fn shows_mounts_one_by_one() -> bool {
    let release = uname().unwrap().release().to_str().unwrap().to_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map(|it| it.parse::<u32>().unwrap_or_default());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 15)
}

/// The same table from both, without what only the text has.
#[track_caller]
fn assert_same(mounts: &Mounts, scope: &Path) {
    let table = mounts.read().unwrap();
    let by_text = MountTable::parse(&fs::read(OWN).unwrap(), scope).unwrap();
    let plain = |mount: &Mount| Mount {
        super_options: String::new().into(),
        ..mount.clone()
    };
    let (left, right): (Vec<_>, Vec<_>) = (table.all().map(plain).collect(), by_text.all().map(plain).collect());
    assert_eq!(left, right);
    let is_read_by_id = table.all().all(|mount| mount.super_options.is_empty());
    assert_eq!(
        is_read_by_id,
        shows_mounts_one_by_one(),
        "the claim is about mounts that are read one by one"
    );
}

/// Mounts of every shape that a line of mountinfo can have.
fn odd_mounts(space: &Space) -> Vec<PathBuf> {
    let named = |name: &str| space.volume("empty-dir", name);
    let odd = ["a b", "tab\there", "line\nbreak", "back\\slash", "#hash", "ünïcode"].map(named);
    for path in &odd {
        tmpfs(path);
    }
    let twice = named("twice");
    tmpfs(&twice);
    tmpfs(&twice);
    // A deleted source, a source that is a file, a path through a link, and a source with a space.
    let (source, of_deleted) = (space.outside.join("deleted"), named("of-deleted"));
    fs::create_dir(&source).unwrap();
    bind(&source, &of_deleted);
    fs::remove_dir(&source).unwrap();
    let (file, of_file) = (space.outside.join("file"), named("f").join("file"));
    write(&file, "text");
    write(&of_file, "");
    bind(&file, &of_file);
    let (real, link) = (named("real"), space.outside.join("link"));
    symlink(&real, &link).unwrap();
    tmpfs(&link);
    let spaced = named("spaced");
    mount(
        Some("my disk"),
        &spaced,
        Some("tmpfs"),
        MsFlags::MS_RDONLY,
        Some("size=1m"),
    )
    .unwrap();
    odd.into_iter()
        .chain([twice.clone(), twice, of_deleted, of_file, real, spaced])
        .collect()
}

#[test]
fn table_read_mount_by_mount_is_that_of_mountinfo() {
    in_own_namespace(|space| {
        let scopes = [space.root.join("pods"), PathBuf::from("/"), space.outside.clone()];
        let tables = scopes.each_ref().map(|scope| (Mounts::new(OWN, scope), scope));
        let all_same = || tables.iter().for_each(|(mounts, scope)| assert_same(mounts, scope));
        all_same();
        let odd = odd_mounts(space);
        all_same();
        for path in odd.iter().rev() {
            umount(path).unwrap();
            all_same();
        }
        // Beside so many that one call does not list all.
        for other in 0..4_500 {
            tmpfs(&space.root.join(format!("other/{other}")));
        }
        let late = space.volume("empty-dir", "late");
        tmpfs(&late);
        all_same();
        umount(&late).unwrap();
        all_same();
    });
}

#[test]
fn moved_mount_is_seen_at_its_new_path_after_a_second() {
    in_own_namespace(|space| {
        // Nothing can be moved out of a shared mount.
        let base = space.volume("empty-dir", "base");
        tmpfs(&base);
        mount(None::<&str>, &base, None::<&str>, MsFlags::MS_PRIVATE, None::<&str>).unwrap();
        let (before, after) = (base.join("before"), base.join("after"));
        fs::create_dir(&after).unwrap();
        tmpfs(&before);
        let mounts = Mounts::new(OWN, space.root.join("pods"));
        assert_eq!(mounts.read().unwrap().mounts_on(&before).len(), 1);
        mount(Some(&before), &after, None::<&str>, MsFlags::MS_MOVE, None::<&str>).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1_100));
        let table = mounts.read().unwrap();
        assert_eq!((table.mounts_on(&before).len(), table.mounts_on(&after).len()), (0, 1));
    });
}
