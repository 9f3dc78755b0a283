//! Unmounting.

use std::{
    fs,
    io::IoSlice,
    ops::ControlFlow,
    os::{fd::AsRawFd, unix::fs::symlink, unix::net::UnixStream},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    mount::{MntFlags, umount2},
    sys::socket::{ControlMessage, MsgFlags, sendmsg},
};
use pod_teardown::node::{
    effects::{Effects, Outcome},
    fault::Cause,
    mounts::{UnmountScope, unmount},
};
use tokio::time::timeout;

use crate::{
    crowd::nobody_forks,
    space::{bind, block_on, in_own_namespace, tmpfs, write},
};

#[test]
fn a_table_that_the_kernel_calls_unchanged_is_not_read_again_and_one_that_changed_is() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        let before = space.mounts.read().unwrap();
        assert!(Arc::ptr_eq(&before, &space.mounts.read().unwrap()), "nothing changed");
        for round in 0..50 {
            tmpfs(&dir);
            assert_eq!(space.mounts.read().unwrap().mounts_on(&dir).len(), 1, "round {round}");
            nix::mount::umount(&dir).unwrap();
            assert_eq!(space.mounts.read().unwrap().mounts_on(&dir), [], "round {round}");
        }
    });
}

#[test]
fn a_mount_that_comes_out_of_another_namespace_is_seen_at_once() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        assert_eq!(space.mounts.read().unwrap().mounts_on(&dir), []);
        let at = dir.clone();
        let elsewhere = thread::spawn(move || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS | nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            tmpfs(&at);
        });
        elsewhere.join().unwrap();
        assert_eq!(space.mounts.read().unwrap().mounts_on(&dir).len(), 1);
    });
}

#[test]
fn no_answer_is_older_than_its_question_while_others_mount_and_unmount() {
    in_own_namespace(|space| {
        let (mine, theirs) = (space.volume("empty-dir", "mine"), space.volume("empty-dir", "theirs"));
        let stop = Arc::new(AtomicBool::new(false));
        thread::scope(|scope| {
            let others = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    tmpfs(&theirs);
                    nix::mount::umount(&theirs).unwrap();
                }
            });
            let asking = [1, 2].map(|_| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        space.mounts.read().unwrap();
                    }
                })
            });
            for round in 0..300 {
                tmpfs(&mine);
                assert_eq!(space.mounts.read().unwrap().mounts_on(&mine).len(), 1, "round {round}");
                nix::mount::umount(&mine).unwrap();
                assert_eq!(space.mounts.read().unwrap().mounts_on(&mine), [], "round {round}");
            }
            stop.store(true, Ordering::Relaxed);
            others.join().unwrap();
            for it in asking {
                it.join().unwrap();
            }
        });
    });
}

#[test]
fn all_that_have_asked_before_a_read_share_it_and_who_asks_later_does_not() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        let before = space.mounts.read().unwrap();
        let asked = [(); 3].map(|()| space.mounts.request());
        tmpfs(&dir);
        let answers = asked.map(|request| space.mounts.read_since(request).unwrap());
        assert!(!Arc::ptr_eq(&before, &answers[0]) && answers[0].mounts_on(&dir).len() == 1);
        assert!(answers.iter().all(|answer| Arc::ptr_eq(answer, &answers[0])));
        nix::mount::umount(&dir).unwrap();
        let early = space.mounts.read_since(asked[0]).unwrap();
        assert!(Arc::ptr_eq(&early, &answers[0]), "it was answered truly");
        assert_eq!(space.mounts.read().unwrap().mounts_on(&dir), []);
    });
}

#[test]
fn a_mount_that_appears_while_others_are_unmounted_is_unmounted_too_before_that_is_over() {
    in_own_namespace(|space| {
        let (early, late) = (space.volume("empty-dir", "early"), space.volume("empty-dir", "late"));
        let effects = Effects::ungated();
        tmpfs(&early);
        assert_eq!(space.mounted(), [&*early]);
        let places = UnmountScope::AtOrBelow(vec![early, late.clone()]);
        let rounds = space.mounts.start_unmount(places, &effects);
        tmpfs(&late);
        let request = space.mounts.request();
        let ControlFlow::Continue(rounds) = rounds.run_next(space.mounts.read_since(request), &effects) else {
            panic!("something is mounted")
        };
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
        let ControlFlow::Break(Ok(done)) = rounds.run_next(space.mounts.read(), &effects) else {
            panic!("nothing is mounted")
        };
        assert_eq!(done.unmounted, 2);
    });
}

#[test]
fn whoever_waits_for_a_change_is_woken_by_the_kernel_and_not_before() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir);
        block_on(async {
            let mut watch = space.mounts.watch().unwrap();
            let quiet = timeout(Duration::from_millis(200), watch.changed()).await;
            assert!(quiet.is_err(), "nothing changed");
            for _ in 0..3 {
                let at = dir.clone();
                let soon = tokio::task::spawn_blocking(move || {
                    thread::sleep(Duration::from_millis(50));
                    nix::mount::umount(&at).unwrap();
                });
                timeout(Duration::from_secs(10), watch.changed()).await.unwrap();
                soon.await.unwrap();
                assert_eq!(space.mounts.read().unwrap().mounts_on(&dir), []);
                tmpfs(&dir);
                timeout(Duration::from_secs(10), watch.changed()).await.unwrap();
            }
            let quiet = timeout(Duration::from_millis(200), watch.changed()).await;
            assert!(quiet.is_err(), "each change is told once");
        });
    });
}

#[test]
fn a_change_between_watch_and_wait_is_not_missed() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        block_on(async {
            let mut watch = space.mounts.watch().unwrap();
            tmpfs(&dir);
            timeout(Duration::from_secs(10), watch.changed()).await.unwrap();
        });
    });
}

#[test]
fn stacked_and_nested_mounts_all_go_in_one_call() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        for _ in 0..4 {
            tmpfs(&dir);
        }
        tmpfs(&dir.join("a/b"));
        tmpfs(&dir.join("a/b/c"));
        tmpfs(&dir.join("a/b/c"));
        let report = space
            .mounts
            .unmount_all_below(space.pod.path(), &Effects::ungated())
            .unwrap();
        assert_eq!((report.unmounted, space.mounted()), (7, Vec::<PathBuf>::new()));
        let again = space
            .mounts
            .unmount_all_below(space.pod.path(), &Effects::ungated())
            .unwrap();
        assert_eq!(again.unmounted, 0);
    });
}

#[test]
fn a_mount_that_another_covers_goes_once_it_is_uncovered() {
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
fn the_mount_on_the_directory_itself_stays_when_only_what_is_below_shall_go() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir);
        tmpfs(&dir.join("in"));
        space.mounts.unmount_all_below(&dir, &Effects::ungated()).unwrap();
        assert_eq!(space.mounted(), [dir]);
    });
}

#[test]
fn a_busy_mount_is_reported_with_path_and_cause_and_the_others_go() {
    in_own_namespace(|space| {
        let (busy, free) = (space.volume("empty-dir", "busy"), space.volume("empty-dir", "free"));
        tmpfs(&busy);
        tmpfs(&free);
        let open = fs::File::create(busy.join("file")).unwrap();
        let still = space
            .mounts
            .unmount_all_below(space.pod.path(), &Effects::ungated())
            .unwrap_err();
        assert_eq!(still.faults.len(), 1);
        assert_eq!(still.faults[0].path, busy);
        assert!(matches!(still.faults[0].cause, Cause::Busy(_)), "{still:?}");
        assert_eq!(space.mounted(), [busy]);
        drop(open);
        space.unmount_what_is_let_go();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_mount_that_was_in_use_by_nobody_who_could_be_found_is_tried_once_more_at_once() {
    let _crowd = nobody_forks();
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&dir);
        // On its way from one process to another a file is open in none.
        let (one, other) = UnixStream::pair().unwrap();
        send(&one, &fs::File::create(dir.join("file")).unwrap());
        let on_its_way = Mutex::new(Some((one, other)));
        let tries = Arc::new(AtomicU32::new(0));
        let gate = {
            let (tries, dir) = (Arc::clone(&tries), dir);
            Arc::new(move || {
                // A try by the table of late, one by the table of now, and after the look at all processes another one.
                if tries.fetch_add(1, Ordering::SeqCst) == 2 {
                    on_its_way.lock().unwrap().take();
                    // A process that another test starts has the sockets, too, for a moment.
                    while umount2(&dir, MntFlags::MNT_EXPIRE) == Err(Errno::EBUSY) {
                        thread::sleep(Duration::from_millis(1));
                    }
                }
                Ok(())
            })
        };
        space
            .mounts
            .unmount_all_below(space.pod.path(), &Effects::new(false, gate))
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
fn a_mount_that_is_reached_only_through_a_link_is_not_unmounted() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        tmpfs(&space.outside.join("sub/mounted"));
        write(&space.outside.join("sub/mounted/data"), "precious");
        symlink(space.outside.join("sub"), dir.join("sub")).unwrap();
        symlink(space.outside.join("sub/mounted"), dir.join("mounted")).unwrap();
        let fault = unmount(&dir.join("sub/mounted"), &Effects::ungated()).unwrap_err();
        assert_eq!(fault.cause, Cause::Errno(Errno::ELOOP));
        assert_eq!(unmount(&dir.join("mounted"), &Effects::ungated()), Ok(Outcome::Nothing));
        assert_eq!(
            fs::read_to_string(space.outside.join("sub/mounted/data")).unwrap(),
            "precious"
        );
    });
}

#[test]
fn a_bind_of_a_file_is_unmounted_and_the_file_stays() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        write(&space.outside.join("file"), "precious");
        write(&dir.join("target"), "");
        bind(&space.outside.join("file"), &dir.join("target"));
        assert_eq!(unmount(&dir.join("target"), &Effects::ungated()), Ok(Outcome::Done));
        assert_eq!(unmount(&dir.join("target"), &Effects::ungated()), Ok(Outcome::Nothing));
        assert_eq!(fs::read_to_string(space.outside.join("file")).unwrap(), "precious");
    });
}

#[test]
fn a_root_that_was_removed_under_its_mount_is_told_and_unmounted() {
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
