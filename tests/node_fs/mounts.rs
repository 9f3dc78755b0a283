//! Unmounting.

use std::{
    fs,
    io::{IoSlice, Write as _},
    ops::ControlFlow,
    os::{fd::AsRawFd, unix::fs::symlink, unix::net::UnixStream},
    path::PathBuf,
    process::{Command, Stdio},
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
use pod_teardown::{
    model::waits_for::WaitsFor,
    node::{
        changes::ChangeWatch,
        effects::{Effects, Outcome},
        fault::Cause,
        mounts::{Mounts, UnmountScope, unmount},
        threads::Threads,
    },
};
use tokio::time::timeout;

use crate::{
    crowd::no_forks,
    space::{MOUNTINFO, bind, block_on, in_own_namespace, tmpfs, write},
};

#[test]
fn table_is_read_again_only_after_a_change() {
    in_own_namespace(|space| {
        let dir = space.volume("empty-dir", "v");
        // Another test that removes its directories may change the table in between.
        let is_same = || Arc::ptr_eq(&space.mounts.read().unwrap(), &space.mounts.read().unwrap());
        assert!((0..20).any(|_| is_same()), "nothing changed");
        for round in 0..50 {
            tmpfs(&dir);
            assert_eq!(space.mounts.read().unwrap().mounts_on(&dir).len(), 1, "round {round}");
            nix::mount::umount(&dir).unwrap();
            assert_eq!(space.mounts.read().unwrap().mounts_on(&dir), [], "round {round}");
        }
    });
}

#[test]
fn mount_propagated_from_another_namespace_is_seen_at_once() {
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
fn table_is_never_older_than_its_request() {
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
fn requests_before_a_read_share_it_but_later_ones_do_not() {
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
fn mount_that_appears_during_unmounting_is_unmounted_too() {
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
fn waiting_worker_notices_mounts_at_its_path_here_and_in_another_namespace_and_no_others() {
    in_own_namespace(|space| {
        let (dir, other) = (space.volume("empty-dir", "v"), space.volume("empty-dir", "w"));
        tmpfs(&dir);
        // It has a copy of the mounts, of which it unmounts one when its input is closed.
        let mut holder = Command::new("unshare");
        holder.args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            "read _; umount \"$0\"; read _",
        ]);
        let mut holder = holder.arg(&dir).stdin(Stdio::piped()).spawn().unwrap();
        let pid = holder.id();
        let copied = format!(" {} ", dir.display());
        let namespace = || fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap();
        while fs::read_link(format!("/proc/{pid}/ns/mnt")).unwrap()
            == fs::read_link("/proc/thread-self/ns/mnt").unwrap()
        {
            thread::sleep(Duration::from_millis(5));
        }
        assert!(namespace().contains(&copied));
        block_on(async {
            let mounts = Arc::new(Mounts::new(MOUNTINFO, "/"));
            let mut watch = ChangeWatch::new(mounts, "/proc".into(), Threads::default());
            let here = [WaitsFor::Mounts(dir.clone())];
            tmpfs(&other);
            let unchanged = timeout(Duration::from_secs(3), watch.wait_for_change(&here));
            assert!(unchanged.await.is_err(), "nothing changed");
            tmpfs(&other.join("a"));
            assert!(
                timeout(Duration::from_secs(3), watch.wait_for_change(&here))
                    .await
                    .is_err()
            );
            // Between two waits.
            nix::mount::umount(&dir).unwrap();
            timeout(Duration::from_secs(60), watch.wait_for_change(&here))
                .await
                .unwrap();

            let there = [WaitsFor::MountsOf(pid.cast_signed())];
            assert!(
                timeout(Duration::from_secs(3), watch.wait_for_change(&there))
                    .await
                    .is_err()
            );
            holder.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
            timeout(Duration::from_secs(60), watch.wait_for_change(&there))
                .await
                .unwrap();
            assert!(!namespace().contains(&copied));
            let exit = [WaitsFor::Exit(pid.cast_signed())];
            assert!(
                timeout(Duration::from_secs(3), watch.wait_for_change(&exit))
                    .await
                    .is_err()
            );
            drop(holder.stdin.take());
            timeout(Duration::from_secs(60), watch.wait_for_change(&exit))
                .await
                .unwrap();
        });
        holder.wait().unwrap();
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
fn busy_mount_is_reported_and_the_others_are_unmounted() {
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
        space.unmount_all();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
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
        assert_eq!(
            fs::read_to_string(space.outside.join("sub/mounted/data")).unwrap(),
            "precious"
        );
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
        assert_eq!(fs::read_to_string(space.outside.join("file")).unwrap(), "precious");
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
