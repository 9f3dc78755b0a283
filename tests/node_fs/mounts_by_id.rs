//! The table that is read mount by mount is the table of mountinfo.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount, umount2},
    sys::utsname::uname,
};
use pod_teardown::{
    node::{
        effects::Effects,
        mounts::{Mount, MountTable, Mounts},
    },
    teardown::volumes::tear_down_volumes,
};

use testbed::dice::Dice;

use crate::space::{MOUNTINFO, Space, UID, bind, block_on, in_own_namespace, propagate, tmpfs, write};

/// Whether the kernel has all that is needed.
fn shows_mounts_by_id() -> bool {
    let release = uname().unwrap().release().to_str().unwrap().to_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map(|it| it.parse::<u32>().unwrap_or_default());
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 15)
}

/// The same table from both, without what only the text has.
#[track_caller]
fn assert_same(mounts: &Mounts, scope: &Path) {
    let text = || fs::read(MOUNTINFO).unwrap();
    let (mut before, mut table) = (text(), mounts.read().unwrap());
    // Another test that removes its directories unmounts what this namespace has there.
    while before != text() {
        (before, table) = (text(), mounts.read().unwrap());
    }
    let by_text = MountTable::parse(&before, scope).unwrap();
    let plain = |mount: &Mount| Mount {
        super_options: String::new().into(),
        ..mount.clone()
    };
    let (left, right): (Vec<_>, Vec<_>) = (table.all().map(plain).collect(), by_text.all().map(plain).collect());
    assert_eq!(left, right);
    let in_order = |table: &MountTable| table.mounts_below(scope).iter().map(plain).collect::<Vec<_>>();
    assert_eq!(in_order(&table), in_order(&by_text), "in unmount order");
    let strays = |table: &MountTable| {
        let of_pod = table.stray_mounts(UID).map(Path::to_owned).collect::<Vec<_>>();
        (
            of_pod,
            table.mapped_devices(UID).to_vec(),
            table.volumes_without_uid().to_vec(),
        )
    };
    assert_eq!(strays(&table), strays(&by_text));
    let is_read_by_id = |mount: &Mount| mount.super_options.is_empty();
    assert!(
        table.all().all(|mount| is_read_by_id(mount) == shows_mounts_by_id()),
        "the claim is about mounts that are read by ID"
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
        let tables = scopes
            .each_ref()
            .map(|scope| (Mounts::new(MOUNTINFO, scope).read_by_id(), scope));
        let all_same = || tables.iter().for_each(|(mounts, scope)| assert_same(mounts, scope));
        all_same();
        let odd = odd_mounts(space);
        all_same();
        for path in odd.iter().rev() {
            umount(path).unwrap();
            all_same();
        }
        // Beside so many that the first call does not list all.
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
fn mount_that_replaces_another_at_its_path_is_seen() {
    in_own_namespace(|space| {
        let mounts = Mounts::new(MOUNTINFO, space.root.join("pods")).read_by_id();
        let path = space.volume("empty-dir", "v");
        for _ in 0..3 {
            tmpfs(&path);
            assert_same(&mounts, &space.root.join("pods"));
            umount(&path).unwrap();
        }
        assert_same(&mounts, &space.root.join("pods"));
    });
}

#[test]
fn mount_of_a_pod_at_another_place_is_seen_when_it_comes_and_goes() {
    in_own_namespace(|space| {
        let pods = space.root.join("pods");
        let mounts = Mounts::new(MOUNTINFO, &pods).read_by_id();
        let elsewhere = [
            space.outside.join(format!("pods/{UID}/volumes/a~b/v")),
            space.outside.join("volumes/a~b/v"),
            space.outside.join(format!("volumeDevices/a/{UID}")),
            pods.join(format!("{UID}.old/volumes/a~b/v")),
        ];
        assert_same(&mounts, &pods);
        for path in &elsewhere {
            tmpfs(path);
            assert_same(&mounts, &pods);
        }
        for path in &elsewhere {
            umount(path).unwrap();
            assert_same(&mounts, &pods);
        }
    });
}

/// A mount with data that can be moved: nothing can be moved out of a shared mount. Its data is seen at the second path, too.
fn movable(space: &Space) -> (PathBuf, PathBuf) {
    let base = space.outside.join("base");
    tmpfs(&base);
    propagate(&base, MsFlags::MS_PRIVATE);
    let (path, copy) = (base.join("precious"), space.outside.join("copy"));
    tmpfs(&path);
    write(&path.join("data"), "precious");
    fs::create_dir(&copy).unwrap();
    bind(&path, &copy);
    (path, copy)
}

fn move_mount(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    mount(Some(from), to, None::<&str>, MsFlags::MS_MOVE, None::<&str>).unwrap();
}

#[test]
fn moved_mount_is_seen_at_its_new_path_at_once_with_those_below_it() {
    in_own_namespace(|space| {
        let (before, _) = movable(space);
        tmpfs(&before.join("below"));
        let after = space.volume("empty-dir", "v");
        let mounts = Mounts::new(MOUNTINFO, &space.root).read_by_id();
        assert_eq!(mounts.read().unwrap().mounts_below(&after).len(), 0);
        move_mount(&before, &after);
        assert_eq!(mounts.read().unwrap().mounts_below(&after).len(), 1);
        assert_same(&mounts, &space.root);
    });
}

#[test]
fn mount_moved_into_a_pod_is_unmounted_and_keeps_its_data() {
    in_own_namespace(|space| {
        let (before, copy) = movable(space);
        let after = space.volume("empty-dir", "v").join("in");
        space.mounts.read().unwrap();
        move_mount(&before, &after);
        let storage = space.storage(&Effects::ungated());
        assert_eq!(block_on(tear_down_volumes(&space.pod, &storage)).unwrap().unmounted, 1);
        assert!(!after.exists());
        assert_eq!(fs::read_to_string(copy.join("data")).unwrap(), "precious");
    });
}

/// What is mounted at a new path before it is unmounted from the old one is mounted at each moment.
#[test]
fn mount_that_changes_its_path_is_in_every_table() {
    in_own_namespace(|space| {
        let pods = space.root.join("pods");
        // So many that a list and the reads take some time.
        for other in 0..300 {
            tmpfs(&pods.join(format!("other-{other}/volumes/a~b/v")));
        }
        let source = space.outside.join("source");
        tmpfs(&source);
        let mut places = ["volumes/a~b/v", "volumes/a~b/w"].map(|place| pods.join("changes").join(place));
        places.iter().for_each(|place| fs::create_dir_all(place).unwrap());
        let watched = places.clone();
        bind(&source, &places[0]);
        let is_done = Arc::new(AtomicBool::new(false));
        let done = Arc::clone(&is_done);
        let changes = thread::spawn(move || {
            for _ in 0..3_000 {
                bind(&source, &places[1]);
                umount(&places[0]).unwrap();
                places.swap(0, 1);
            }
            done.store(true, Ordering::SeqCst);
        });
        let mounts = Mounts::new(MOUNTINFO, &pods).read_by_id();
        let mut reads = 0;
        while !is_done.load(Ordering::SeqCst) {
            let table = mounts.read().unwrap();
            assert!(!table.mounts_at_or_below(&watched).is_empty(), "after {reads} reads");
            reads += 1;
        }
        changes.join().unwrap();
        println!("{reads} reads");
    });
}

/// A random mount, bind mount, move or unmount of these places. Many are refused.
fn change(places: &[PathBuf], dice: &mut Dice) -> String {
    let [from, to] = [(); 2].map(|()| &places[dice.up_to(places.len())]);
    let on = |from: Option<&Path>, fs_type, flags| mount(from, to, fs_type, flags, None::<&str>);
    let (name, done) = match dice.up_to(8) {
        0 | 1 => ("mount", on(None, Some("tmpfs"), MsFlags::empty())),
        2 => ("bind", on(Some(from), None, MsFlags::MS_BIND | MsFlags::MS_REC)),
        3 | 4 => ("move", on(Some(from), None, MsFlags::MS_MOVE)),
        5 => ("share", on(None, None, MsFlags::MS_SHARED)),
        6 => ("unmount", umount(to)),
        _ => ("unmount lazily", umount2(to, MntFlags::MNT_DETACH)),
    };
    if done.is_ok() && matches!(name, "mount" | "bind" | "move") {
        for child in ["a", "b"] {
            let _exists = fs::create_dir(to.join(child));
        }
    }
    format!("{name} {} {}: {done:?}", from.display(), to.display())
}

#[test]
fn random_mounts_moves_and_unmounts_are_all_seen() {
    for seed in 0..40 {
        in_own_namespace(move |space| {
            let base = space.root.join("pods");
            tmpfs(&base);
            propagate(&base, MsFlags::MS_PRIVATE);
            let of_two = |parent: &PathBuf| ["a", "b"].map(|name| parent.join(name));
            let mut places = of_two(&base).to_vec();
            places.extend(places.clone().iter().flat_map(of_two));
            places.extend(places.clone()[2..].iter().flat_map(of_two));
            places.iter().for_each(|place| fs::create_dir_all(place).unwrap());
            let scopes = [base, places[0].clone(), PathBuf::from("/")];
            let tables = scopes.map(|scope| (Mounts::new(MOUNTINFO, &scope).read_by_id(), scope));
            let mut dice = Dice::new(seed);
            for number in 0..60 {
                let mut done = Vec::new();
                for _ in 0..=dice.up_to(3) {
                    done.push(change(&places, &mut dice));
                }
                println!("seed {seed}, step {number}: {done:?}");
                for (mounts, scope) in &tables {
                    assert_same(mounts, scope);
                }
            }
        });
    }
}
