//! Mounts whose server is dead or never answers.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::mpsc,
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    libc::SYS_statfs,
    sys::{stat::Mode, statfs::statfs},
    unistd::gettid,
};
use pod_teardown::node::{
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
    mounts::unmount,
    unmounts::{ForceUnmount, Unmounting},
};
use tokio::time::Instant;

use crate::{
    fuse::{Daemon, dead_on},
    space::{block_on, in_own_namespace, soon, tear_down_volumes, tmpfs, wait_until},
};

const PATIENCE: Duration = Duration::from_secs(2);

fn effects(force: ForceUnmount) -> Effects {
    Effects::ungated().with_unmounting(Unmounting {
        force,
        call_timeout: PATIENCE,
        ..Unmounting::default()
    })
}

fn forcing(force: ForceUnmount) -> Effects {
    Effects::ungated().with_unmounting(Unmounting {
        force,
        ..Unmounting::default()
    })
}

/// The same effects, and calls in flight, with this many times the patience.
fn patient(effects: &Effects, times: u32) -> Effects {
    effects.clone().with_unmounting(Unmounting {
        call_timeout: times * PATIENCE,
        ..effects.unmounting.clone()
    })
}

/// A thread that sends a request and waits for the answer.
fn waiting_request(path: &Path) -> thread::JoinHandle<Errno> {
    let path = path.to_owned();
    let (tell, tid) = mpsc::channel();
    let waiting_request = thread::spawn(move || {
        tell.send(gettid()).unwrap();
        statfs(&path).unwrap_err()
    });
    // The system call in which it waits: it may also wait for something else before.
    let call = format!("/proc/self/task/{}/syscall", tid.recv().unwrap());
    let is_sent = format!("{SYS_statfs} ");
    wait_until("the request is sent", || {
        fs::read_to_string(&call).unwrap().starts_with(&is_sent)
    });
    waiting_request
}

#[test]
fn mount_with_dead_daemon_is_unmounted_without_force() {
    in_own_namespace(|space| {
        for force in [ForceUnmount::Never, ForceUnmount::DeadServer] {
            let dir = space.volume("nfs", "dead");
            dead_on(&dir);
            assert_eq!(statfs(&dir).unwrap_err(), Errno::ENOTCONN);
            space
                .mounts
                .unmount_all_below(space.pod.path(), &forcing(force))
                .unwrap();
            assert_eq!(space.mounted(), Vec::<PathBuf>::new());
        }
    });
}

#[test]
fn mount_with_unresponsive_daemon_is_unmounted_without_a_request() {
    in_own_namespace(|space| {
        for force in [ForceUnmount::Never, ForceUnmount::DeadServer] {
            let dir = space.volume("nfs", "silent");
            let daemon = Daemon::mounted_on(&dir);
            assert!(statfs(&dir).is_err(), "it answers with an error");
            daemon.stop_answering();
            assert_eq!(unmount(&dir, &forcing(force)), Ok(Outcome::Done));
            assert_eq!(space.mounted(), Vec::<PathBuf>::new());
            while !daemon.is_disconnected() {
                thread::yield_now();
            }
        }
    });
}

#[test]
fn hanging_unmount_is_reported_and_not_repeated_and_others_complete() {
    in_own_namespace(|space| {
        let (hung, free) = (space.volume("nfs", "hung"), space.volume("empty-dir", "free"));
        let daemon = Daemon::mounted_on(&hung);
        // Paths below this mount ask the daemon.
        let inside = hung.join("inside");
        tmpfs(&inside);
        let deeper = hung.join("inside/deeper");
        tmpfs(&deeper);
        tmpfs(&free);
        daemon.stop_answering();
        let effects = effects(ForceUnmount::Never);
        let began = Instant::now();
        let still = space.mounts.unmount_all_below(space.pod.path(), &effects).unwrap_err();
        assert!(began.elapsed() < 20 * PATIENCE, "{:?}", began.elapsed());
        let hangs = still.iter().filter(|fault| matches!(fault.cause, Cause::Hangs(_)));
        let hangs: Vec<&Fault> = hangs.collect();
        let paths: Vec<_> = hangs.iter().map(|fault| &fault.path).collect();
        assert_eq!(paths, [&deeper, &inside], "{still:?}");
        assert_eq!(
            space.mounted().len(),
            3,
            "only what does not depend on the daemon has gone"
        );
        assert!(!space.mounted().contains(&free));

        let in_flight = || effects.unmounting.in_flight.unmounts(|_| true).len();
        let before = in_flight();
        let began = Instant::now();
        let patient = patient(&effects, 20);
        let again = space.mounts.unmount_all_below(space.pod.path(), &patient).unwrap_err();
        assert!(
            hangs.iter().all(|&hang| again.contains(hang)),
            "the same calls are meant: {again:?}"
        );
        assert!(
            began.elapsed() < 20 * PATIENCE,
            "what hangs already is not waited for again"
        );
        assert_eq!(in_flight(), before, "nothing new hangs");

        // Now it is dead instead of silent, so its waiters get an error.
        drop(daemon);
        while !effects.unmounting.in_flight.unmounts(|_| true).is_empty() {
            thread::yield_now();
        }
    });
}

#[test]
fn path_covered_by_an_unresponsive_server_blocks_no_other_unmount() {
    in_own_namespace(|space| {
        let (dir, free) = (space.volume("empty-dir", "v"), space.volume("empty-dir", "w"));
        let inside = dir.join("in");
        tmpfs(&inside);
        tmpfs(&free);
        assert_eq!(space.mounted().len(), 2);
        let daemon = Daemon::mounted_on(&dir);
        daemon.stop_answering();
        let began = Instant::now();
        let effects = effects(ForceUnmount::Never);
        let still = space.mounts.unmount_all_at(&[inside, free], &effects).unwrap_err();
        assert!(began.elapsed() < 40 * PATIENCE, "{:?}", began.elapsed());
        assert_eq!(space.mounted().len(), 2, "the server, and what it covers");
        assert!(matches!(still[0].cause, Cause::Hangs(_)), "{still:?}");
        drop(daemon);
        while !effects.unmounting.in_flight.unmounts(|_| true).is_empty() {
            thread::yield_now();
        }
    });
}

#[test]
fn unresponsive_server_is_disconnected_only_if_configured() {
    in_own_namespace(|space| {
        let dir = space.volume("nfs", "silent");
        let daemon = Daemon::mounted_on(&dir);
        assert!(statfs(&dir).is_err(), "it answers with an error");
        daemon.stop_answering();
        let waiting_request = waiting_request(&dir);
        let still = space
            .mounts
            .unmount_all_at(&[&dir], &effects(ForceUnmount::Never))
            .unwrap_err();
        assert_eq!(still.len(), 1, "who waits for an answer keeps it in use: {still:?}");
        assert!(!waiting_request.is_finished() && !daemon.is_disconnected());

        space
            .mounts
            .unmount_all_at(&[&dir], &effects(ForceUnmount::DeadServer))
            .unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
        let tid = waiting_request.join().unwrap();
        assert!(matches!(tid, Errno::ECONNABORTED | Errno::ENOTCONN), "{tid}");
    });
}

#[test]
fn responsive_server_is_never_disconnected_and_a_busy_mount_never_hidden() {
    in_own_namespace(|space| {
        let dir = space.volume("nfs", "alive");
        let daemon = Daemon::mounted_on(&dir);
        let open = open(&dir, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).unwrap();
        let effects = effects(ForceUnmount::DeadServer);
        // The server answers, however long that takes on a busy machine.
        let patient = patient(&effects, 30);
        space.mounts.unmount_all_at(&[&dir], &patient).unwrap_err();
        assert!(!daemon.is_disconnected() && space.mounted() == [&*dir]);

        daemon.stop_answering();
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
fn retry_of_a_hanging_unmount_starts_no_other_and_removes_nothing() {
    in_own_namespace(|space| {
        let (hung, free) = (space.volume("nfs", "hung"), space.volume("empty-dir", "free"));
        let daemon = Daemon::mounted_on(&hung);
        let inside = hung.join("inside");
        tmpfs(&inside);
        tmpfs(&free);
        daemon.stop_answering();
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

        let in_flight = || effects.unmounting.in_flight.unmounts(|_| true).len();
        let before = in_flight();
        let again = attempt().unwrap_err();
        assert_eq!(of_hung(&again), first, "the same calls are meant: {again:?}");
        assert_eq!(in_flight(), before, "nothing new hangs");
        assert!(space.mounted().contains(&hung) && space.mounted().contains(&inside));

        drop(daemon);
        while in_flight() > 0 {
            thread::yield_now();
        }
        attempt().unwrap();
        assert_eq!(space.mounted(), Vec::<PathBuf>::new());
        assert!(!hung.exists());
    });
}
