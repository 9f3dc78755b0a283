//! Mounts whose server is gone, or is there and never answers.

use std::{
    fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sys::{stat::Mode, statfs::statfs},
    unistd::gettid,
};
use pod_teardown::{
    node::{
        effects::{Effects, Outcome},
        fault::{Cause, Fault},
        mounts::{UnmountScope, unmount},
        unmounts::ForceUnmount,
    },
    teardown::volumes::tear_down_volumes,
};
use tokio::time::Instant;

use crate::{
    fuse::{Daemon, dead_on},
    space::{block_on, in_own_namespace, soon, tmpfs},
};

const PATIENCE: Duration = Duration::from_secs(2);

fn effects(force: ForceUnmount) -> Effects {
    Effects::ungated().with_patience(PATIENCE).with_force_unmount(force)
}

/// Somebody who asks the server and waits for its answer.
fn asking(path: &Path) -> thread::JoinHandle<Errno> {
    let path = path.to_owned();
    let (tell, told) = mpsc::channel();
    let asking = thread::spawn(move || {
        tell.send(gettid()).unwrap();
        statfs(&path).unwrap_err()
    });
    let stat = format!("/proc/self/task/{}/stat", told.recv().unwrap());
    // `R` for as long as it has not asked.
    while fs::read_to_string(&stat).unwrap().contains(") R ") {
        thread::yield_now();
    }
    asking
}

#[test]
fn a_mount_whose_daemon_is_dead_is_unmounted_plainly() {
    in_own_namespace(|space| {
        for force in [ForceUnmount::Never, ForceUnmount::DeadServer] {
            let dir = space.volume("nfs", "dead");
            dead_on(&dir);
            assert_eq!(statfs(&dir).unwrap_err(), Errno::ENOTCONN);
            space
                .mounts
                .unmount_all_below(space.pod.path(), &effects(force))
                .unwrap();
            assert_eq!(space.mounted(), Vec::<PathBuf>::new());
        }
    });
}

#[test]
fn a_mount_whose_daemon_never_answers_is_unmounted_without_asking_it() {
    in_own_namespace(|space| {
        for force in [ForceUnmount::Never, ForceUnmount::DeadServer] {
            let dir = space.volume("nfs", "silent");
            let daemon = Daemon::mounted_on(&dir);
            assert!(statfs(&dir).is_err(), "it answers with an error");
            daemon.fall_silent();
            assert_eq!(unmount(&dir, &effects(force)), Ok(Outcome::Done));
            assert_eq!(space.mounted(), Vec::<PathBuf>::new());
            while !daemon.is_cut_off() {
                thread::yield_now();
            }
        }
    });
}

#[test]
fn an_unmount_that_hangs_is_told_and_not_tried_twice_and_the_others_go() {
    in_own_namespace(|space| {
        let (hung, free) = (space.volume("nfs", "hung"), space.volume("empty-dir", "free"));
        let daemon = Daemon::mounted_on(&hung);
        // The way to what is mounted in there goes by the daemon.
        let inside = hung.join("inside");
        tmpfs(&inside);
        let deeper = hung.join("inside/deeper");
        tmpfs(&deeper);
        tmpfs(&free);
        daemon.fall_silent();
        let effects = effects(ForceUnmount::Never);
        let began = Instant::now();
        let still = space.mounts.unmount_all_below(space.pod.path(), &effects).unwrap_err();
        assert!(began.elapsed() < 20 * PATIENCE, "{:?}", began.elapsed());
        let hangs = still
            .faults
            .iter()
            .filter(|fault| matches!(fault.cause, Cause::Hangs(_)));
        let hangs: Vec<&Fault> = hangs.collect();
        let paths: Vec<_> = hangs.iter().map(|fault| &fault.path).collect();
        assert_eq!(paths, [&deeper, &inside], "{still:?}");
        assert_eq!(
            space.mounted().len(),
            3,
            "only what does not depend on the daemon has gone"
        );
        assert!(!space.mounted().contains(&free));

        let in_flight = || effects.unmounting().in_flight.unmounts(|_| true).len();
        let before = in_flight();
        let began = Instant::now();
        let again = space.mounts.unmount_all_below(space.pod.path(), &effects).unwrap_err();
        assert!(
            hangs.iter().all(|&hang| again.faults.contains(hang)),
            "the same calls are meant: {again:?}"
        );
        assert!(began.elapsed() < PATIENCE, "what hangs already is not waited for again");
        assert_eq!(in_flight(), before, "nothing new hangs");

        // It is dead instead of silent now: whoever waited for it hears that.
        drop(daemon);
        while !effects.unmounting().in_flight.unmounts(|_| true).is_empty() {
            thread::yield_now();
        }
    });
}

#[test]
fn a_way_that_leads_to_a_silent_server_since_the_table_was_read_holds_up_nobody() {
    in_own_namespace(|space| {
        let (dir, free) = (space.volume("empty-dir", "v"), space.volume("empty-dir", "w"));
        let inside = dir.join("in");
        tmpfs(&inside);
        tmpfs(&free);
        assert_eq!(space.mounted().len(), 2);
        let daemon = Daemon::mounted_on(&dir);
        daemon.fall_silent();
        let began = Instant::now();
        let effects = effects(ForceUnmount::Never);
        let places = UnmountScope::AtOrBelow(vec![inside, free]);
        let mut rounds = space.mounts.start_unmount(places, &effects);
        assert!(began.elapsed() < 20 * PATIENCE, "{:?}", began.elapsed());
        assert_eq!(space.mounted().len(), 2, "the server, and what it covers");
        let still = loop {
            match rounds.run_next(space.mounts.read(), &effects) {
                ControlFlow::Continue(next) => rounds = next,
                ControlFlow::Break(done) => break done.unwrap_err(),
            }
        };
        assert!(matches!(still.faults[0].cause, Cause::Hangs(_)), "{still:?}");
        drop(daemon);
        while !effects.unmounting().in_flight.unmounts(|_| true).is_empty() {
            thread::yield_now();
        }
    });
}

#[test]
fn a_server_that_never_answers_is_cut_off_only_if_the_operator_says_so() {
    in_own_namespace(|space| {
        let dir = space.volume("nfs", "silent");
        let daemon = Daemon::mounted_on(&dir);
        assert!(statfs(&dir).is_err(), "it answers with an error");
        daemon.fall_silent();
        let asking = asking(&dir);
        let still = space
            .mounts
            .unmount_all_at(&[&dir], &effects(ForceUnmount::Never))
            .unwrap_err();
        assert_eq!(
            still.faults.len(),
            1,
            "who waits for an answer keeps it in use: {still:?}"
        );
        assert!(!asking.is_finished() && !daemon.is_cut_off());

        space
            .mounts
            .unmount_all_at(&[&dir], &effects(ForceUnmount::DeadServer))
            .unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
        let told = asking.join().unwrap();
        assert!(matches!(told, Errno::ECONNABORTED | Errno::ENOTCONN), "{told}");
    });
}

#[test]
fn a_server_that_answers_is_never_cut_off_and_a_mount_in_use_is_never_hidden() {
    in_own_namespace(|space| {
        let dir = space.volume("nfs", "alive");
        let daemon = Daemon::mounted_on(&dir);
        let open = open(&dir, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
        let effects = effects(ForceUnmount::DeadServer);
        space.mounts.unmount_all_at(&[&dir], &effects).unwrap_err();
        assert!(!daemon.is_cut_off() && space.mounted() == [&*dir]);

        daemon.fall_silent();
        space.mounts.unmount_all_at(&[&dir], &effects).unwrap_err();
        assert!(
            space.mounted() == [&*dir],
            "cut off, in use, and still there for everybody to see"
        );
        drop(open);
        block_on(soon(async || space.mounts.unmount_all_at(&[&dir], &effects)));
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_second_attempt_on_a_volume_whose_unmount_hangs_starts_no_other_and_removes_nothing_of_it() {
    in_own_namespace(|space| {
        let (hung, free) = (space.volume("nfs", "hung"), space.volume("empty-dir", "free"));
        let daemon = Daemon::mounted_on(&hung);
        let inside = hung.join("inside");
        tmpfs(&inside);
        tmpfs(&free);
        daemon.fall_silent();
        let effects = effects(ForceUnmount::Never);
        let storage = space.storage(&effects);
        let attempt = || block_on(tear_down_volumes(&space.pod, &storage));
        let of_hung = |faults: &[Fault]| {
            let hangs = |fault: &&Fault| matches!(fault.cause, Cause::Hangs(_));
            faults.iter().filter(hangs).cloned().collect::<Vec<_>>()
        };
        let first = of_hung(&attempt().unwrap_err());
        assert!(first.iter().any(|fault| fault.path == inside), "{first:?}");
        assert!(!free.exists(), "the other volume does not wait for it");

        let in_flight = || effects.unmounting().in_flight.unmounts(|_| true).len();
        let before = in_flight();
        let again = attempt().unwrap_err();
        assert_eq!(of_hung(&again), first, "the same calls are meant: {again:?}");
        assert_eq!(in_flight(), before, "nothing new hangs");
        assert!(space.mounted().contains(&hung) && space.mounted().contains(&inside));

        drop(daemon);
        while in_flight() > 0 {
            thread::yield_now();
        }
        assert_eq!(attempt().unwrap().withheld, 0);
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
        assert!(!hung.exists());
    });
}
