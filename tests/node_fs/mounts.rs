//! Unmounting.

use std::{
    fs,
    io::IoSlice,
    os::{fd::AsRawFd, unix::fs::symlink, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, MsFlags, mount, umount2},
    sys::socket::{ControlMessage, MsgFlags, sendmsg},
};
use pod_teardown::node::{
    effects::{Effects, Outcome},
    fault::Cause,
    mounts::unmount,
};

use crate::{
    crowd::no_forks,
    space::{Space, assert_precious, bind, block_on, in_own_namespace, propagate, tear_down_volumes, tmpfs, write},
};

#[test]
fn mount_that_appears_during_unmounting_is_unmounted_too() {
    in_own_namespace(|space| {
        let (early, late) = (space.volume("empty-dir", "early"), space.volume("empty-dir", "late"));
        tmpfs(&early);
        let (appeared, at) = (AtomicBool::new(false), late.clone());
        let gate = move || {
            if !appeared.swap(true, Ordering::SeqCst) {
                tmpfs(&at);
            }
            Ok(())
        };
        let effects = Effects::new(Arc::new(gate));
        space.mounts.unmount_all_at(&[early, late], &effects).unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    });
}

#[test]
fn stacked_and_nested_mounts_are_unmounted_in_one_call() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        for _ in 0..4 {
            tmpfs(&dir);
        }
        tmpfs(&dir.join("a/b"));
        tmpfs(&dir.join("a/b/c"));
        tmpfs(&dir.join("a/b/c"));
        for _ in 0..2 {
            let below = space.pod.path();
            space.mounts.unmount_all_below(below, &Effects::ungated()).unwrap();
            assert_eq!(space.mounted(), Vec::<PathBuf>::new());
        }
    });
}

#[test]
fn covered_mount_is_unmounted_once_uncovered() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir.join("deep/er"));
        tmpfs(&dir);
        assert!(!dir.join("deep").exists(), "it is covered");
        space.mounts.unmount_all_at(&[&dir], &Effects::ungated()).unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    });
}

#[test]
fn strange_names_of_mount_points_are_found_and_unmounted() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        for name in [
            "a b",
            "line\nbreak",
            "tab\there",
            "back\\slash",
            "\\040",
            "#hash",
            "ünï",
            "//deleted",
            "x (deleted)",
        ] {
            tmpfs(&dir.join(name.trim_start_matches('/')));
        }
        assert_eq!(space.mounted().len(), 9);
        space.mounts.unmount_all_below(&dir, &Effects::ungated()).unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    });
}

#[test]
fn mount_on_the_directory_is_kept_if_only_mounts_below_are_unmounted() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir);
        tmpfs(&dir.join("in"));
        space.mounts.unmount_all_below(&dir, &Effects::ungated()).unwrap();
        assert_eq!(space.mounted(), [dir]);
    });
}

#[test]
fn busy_mount_without_holder_is_retried_once() {
    let _crowd = no_forks();
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir);
        // A file in transit between processes is open in none.
        let (one, other) = UnixStream::pair().unwrap();
        send(&one, &fs::File::create(dir.join("file")).unwrap());
        let on_its_way = Mutex::new(Some((one, other)));
        let tries = Arc::new(AtomicU32::new(0));
        let gate = {
            let (tries, dir) = (Arc::clone(&tries), dir);
            Arc::new(move || {
                // One try with the recent table, one with the current table, and another one after the search of all
                // processes.
                if tries.fetch_add(1, Ordering::SeqCst) == 2 {
                    on_its_way.lock().unwrap().take();
                    // A process that another test starts has the sockets for a moment, too.
                    while umount2(&dir, MntFlags::MNT_EXPIRE) == Err(Errno::EBUSY) {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                Ok(())
            })
        };
        space
            .mounts
            .unmount_all_below(space.pod.path(), &Effects::new(gate))
            .unwrap();
        assert_eq!(tries.load(Ordering::SeqCst), 3);
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    });
}

fn send(to: &UnixStream, file: &fs::File) {
    let files = [file.as_raw_fd()];
    let with = [ControlMessage::ScmRights(&files)];
    sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(b"f")], &with, MsgFlags::empty(), None).unwrap();
}

#[test]
fn mount_behind_a_link_is_not_unmounted() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&space.outside.join("sub/mounted"));
        write(&space.outside.join("sub/mounted/data"), "precious");
        symlink(space.outside.join("sub"), dir.join("sub")).unwrap();
        symlink(space.outside.join("sub/mounted"), dir.join("mounted")).unwrap();
        let fault = unmount(&dir.join("sub/mounted"), &Effects::ungated()).unwrap_err();
        assert_eq!(fault.cause, Cause::Errno(Errno::ELOOP));
        assert_eq!(unmount(&dir.join("mounted"), &Effects::ungated()), Ok(Outcome::Nothing));
        assert_precious(space.outside.join("sub/mounted/data"));
    });
}

#[test]
fn bind_mount_of_a_file_is_unmounted_and_the_file_kept() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        write(&space.outside.join("file"), "precious");
        write(&dir.join("target"), "");
        bind(&space.outside.join("file"), &dir.join("target"));
        assert_eq!(unmount(&dir.join("target"), &Effects::ungated()), Ok(Outcome::Done));
        assert_eq!(unmount(&dir.join("target"), &Effects::ungated()), Ok(Outcome::Nothing));
        assert_precious(space.outside.join("file"));
    });
}

#[test]
fn mount_with_deleted_root_is_recognized_and_unmounted() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        fs::create_dir(space.outside.join("gone")).unwrap();
        bind(&space.outside.join("gone"), &dir);
        fs::remove_dir(space.outside.join("gone")).unwrap();
        let table = space.mounts.read().unwrap();
        assert!(table.mounts_on(&dir)[0].root_deleted);
        space.mounts.unmount_all_at(&[&dir], &Effects::ungated()).unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
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
fn mount_moved_into_a_pod_is_unmounted_and_keeps_its_data() {
    in_own_namespace(|space| {
        let (before, copy) = movable(space);
        let after = space.volume("empty-dir", "v").join("in");
        space.mounts.read().unwrap();
        move_mount(&before, &after);
        let storage = space.storage(&Effects::ungated());
        block_on(tear_down_volumes(&space.pod, &storage)).unwrap();
        assert!(!after.exists());
        assert_precious(copy.join("data"));
    });
}
