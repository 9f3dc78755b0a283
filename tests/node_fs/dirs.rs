//! Removal of directories with hostile content and concurrent changes.

use std::{
    ffi::OsStr,
    fs,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt as _, fs::symlink},
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, RenameFlags, openat, renameat2},
    mount::{MsFlags, mount},
    sys::stat::{Mode, mkdirat},
};
use pod_teardown::node::{
    dirs::Dir,
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
};
use rustix::fs::{IFlags, ioctl_setflags};

use crate::space::{Space, assert_precious, bind, in_own_namespace, tmpfs, try_bind, write};

const V: &str = "v";

fn base(space: &Space) -> Dir {
    Dir::open(space.pod.path()).unwrap().unwrap()
}

fn remove(space: &Space, effects: &Effects) -> Result<Outcome, Vec<Fault>> {
    base(space).remove_tree(OsStr::new(V), effects)
}

/// Effects that call back before every part of a removal, for changes at the worst moment.
fn meanwhile(act: impl Fn(usize) + Send + Sync + 'static) -> Effects {
    let calls = AtomicUsize::new(0);
    Effects::new(Arc::new(move || {
        act(calls.fetch_add(1, Ordering::SeqCst));
        Ok(())
    }))
}

/// A chain of directories that is longer than any path.
fn chain(at: &Path, levels: usize) {
    fs::create_dir_all(at).unwrap();
    let mut fd: OwnedFd = fs::File::open(at).unwrap().into();
    for _ in 0..levels {
        mkdirat(&fd, "d", Mode::S_IRWXU).unwrap();
        fd = openat(
            &fd,
            "d",
            OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )
        .unwrap();
    }
    openat(
        &fd,
        "file",
        OFlag::O_CREAT | OFlag::O_WRONLY | OFlag::O_CLOEXEC,
        Mode::S_IRUSR,
    )
    .unwrap();
}

#[test]
fn five_thousand_levels_are_removed_with_few_descriptors() {
    in_own_namespace(|space| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES).unwrap();
        chain(&space.pod.path().join(V), 5000);
        let most = Arc::new(AtomicUsize::new(0));
        let seen = most.clone();
        let effects = meanwhile(move |_| {
            seen.fetch_max(fs::read_dir("/proc/thread-self/fd").unwrap().count(), Ordering::SeqCst);
        });
        let before = fs::read_dir("/proc/thread-self/fd").unwrap().count();
        assert_eq!(remove(space, &effects), Ok(Outcome::Done));
        assert!(most.load(Ordering::SeqCst) <= before + 40, "{before} {most:?}");
        assert_eq!(remove(space, &effects), Ok(Outcome::Nothing));
    });
}

/// As with project quotas. On an overlay, the kernel renames no directory of the lower layer.
#[test]
fn deep_tree_that_no_rename_can_leave_is_removed() {
    in_own_namespace(|space| {
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| space.outside.join(name));
        write(&lower.join(V).join("d/".repeat(300)).join("file"), "");
        write(&lower.join(V).join("d/d/e/".repeat(40)).join("file"), "");
        for dir in [&upper, &work] {
            fs::create_dir(dir).unwrap();
        }
        let layers = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=off",
            lower.display(),
            upper.display(),
            work.display()
        );
        let pod = space.pod.path();
        mount(None::<&str>, pod, Some("overlay"), MsFlags::empty(), Some(&*layers)).unwrap();
        let v = pod.join(V);
        let moved = fs::rename(v.join("d/d"), v.join("moved")).unwrap_err();
        assert_eq!(moved.raw_os_error(), Some(Errno::EXDEV as i32));
        assert_eq!(remove(space, &Effects::ungated()), Ok(Outcome::Done));
        assert!(!v.exists());
    });
}

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Effects that record the peak of this thread's descriptors and of this process's memory.
fn measured() -> (Effects, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (descriptors, memory) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (open, held) = (descriptors.clone(), memory.clone());
    let effects = meanwhile(move |call| {
        if call % 500 == 0 {
            open.fetch_max(fs::read_dir("/proc/thread-self/fd").unwrap().count(), Ordering::SeqCst);
            held.fetch_max(resident(), Ordering::SeqCst);
        }
    });
    (effects, descriptors, memory)
}

/// Other tests use memory, too. With one fault for each path of such depth it was more than a gigabyte.
const MEMORY_LIMIT: usize = 48 << 20;

#[test]
fn many_deep_directories_are_removed_and_mounts_among_them_reported() {
    in_own_namespace(|space| {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_FILES).unwrap();
        let deep = space.pod.path().join(V).join("d/".repeat(20));
        for i in 0..2000 {
            write(&deep.join(format!("{i}/a/file")), "");
        }
        write(&deep.join(format!("7/{}file", "e/".repeat(40))), "");
        write(&space.outside.join("data"), "precious");
        let mounted = deep.join("8/a/b");
        fs::create_dir(&mounted).unwrap();
        bind(&space.outside, &mounted);
        let (effects, descriptors, _) = measured();
        let before = fs::read_dir("/proc/thread-self/fd").unwrap().count();
        let faults = remove(space, &effects).unwrap_err();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert_eq!(faults[0].cause, Cause::Errno(Errno::EBUSY));
        assert!(faults[0].path.ends_with("a/b"), "{faults:?}");
        assert!(
            descriptors.load(Ordering::SeqCst) <= before + 40,
            "{before} {descriptors:?}"
        );
        assert_precious(space.outside.join("data"));
        // The fault has its current path.
        nix::mount::umount(&faults[0].path).unwrap();
        assert_eq!(remove(space, &Effects::ungated()), Ok(Outcome::Done));
    });
}

#[test]
fn directory_with_many_subdirectories_is_removed_in_bounded_memory() {
    in_own_namespace(|space| {
        let v = space.pod.path().join(V);
        // Half of the maximum name length, so that 30,000 remembered names would be noticed.
        let name = "x".repeat(200);
        for i in 0..30_000 {
            fs::create_dir_all(v.join(format!("{name}{i}/a"))).unwrap();
        }
        let (effects, _, memory) = measured();
        let before = resident();
        assert_eq!(remove(space, &effects), Ok(Outcome::Done));
        assert!(
            memory.load(Ordering::SeqCst) <= before + MEMORY_LIMIT,
            "{memory:?} {before:?}"
        );
    });
}

#[test]
fn tree_that_is_moved_during_the_removal_is_removed() {
    in_own_namespace(|space| {
        let v = space.pod.path().join(V);
        chain(&v, 60);
        let (from, to) = (v.join("d/d/d/d"), v.join("moved"));
        let effects = meanwhile(move |call| {
            if call == 40 {
                fs::rename(&from, &to).unwrap();
            }
        });
        assert_eq!(remove(space, &effects), Ok(Outcome::Done));
        assert!(!v.exists());
    });
}

#[test]
fn directory_replaced_by_a_link_just_before_the_descent_is_not_followed() {
    in_own_namespace(|space| {
        write(&space.outside.join("data"), "precious");
        let v = space.pod.path().join(V);
        write(&v.join("d/file"), "");
        let (at, outside) = (v.clone(), space.outside.clone());
        let effects = meanwhile(move |call| {
            // It has been listed as a directory, and not entered yet.
            if call == 3 {
                fs::rename(at.join("d"), at.join("e")).unwrap();
                symlink(&outside, at.join("d")).unwrap();
            }
        });
        assert_eq!(remove(space, &effects), Ok(Outcome::Done));
        assert!(!v.exists());
        assert_precious(space.outside.join("data"));
    });
}

#[test]
fn nested_mounts_are_never_entered() {
    in_own_namespace(|space| {
        let v = space.pod.path().join(V);
        write(&space.outside.join("data"), "precious");
        fs::create_dir_all(v.join("a/same-fs")).unwrap();
        write(&v.join("a/file"), "");
        bind(&space.outside, &v.join("a/same-fs"));
        bind(&space.outside.join("data"), &v.join("a/file"));
        tmpfs(&v.join("b/other-fs"));
        write(&v.join("b/other-fs/data"), "precious");
        let faults = remove(space, &Effects::ungated()).unwrap_err();
        let mut busy: Vec<_> = faults.iter().map(|fault| fault.path.clone()).collect();
        busy.sort();
        assert_eq!(
            busy,
            [v.join("a/file"), v.join("a/same-fs"), v.join("b/other-fs")],
            "{faults:?}"
        );
        assert!(
            faults.iter().all(|fault| fault.cause == Cause::Errno(Errno::EBUSY)),
            "{faults:?}"
        );
        for data in [
            space.outside.join("data"),
            v.join("b/other-fs/data"),
            v.join("a/same-fs/data"),
        ] {
            assert_precious(data);
        }
    });
}

#[test]
fn path_to_a_directory_does_not_cross_a_mount() {
    in_own_namespace(|space| {
        tmpfs(&space.pod.path().join("volumes"));
        fs::create_dir(space.pod.path().join("volumes/p")).unwrap();
        assert_eq!(
            base(space).open_below("volumes/p").unwrap_err().cause,
            Cause::OtherFileSystem
        );
        let same = space.pod.path().join("plugins");
        fs::create_dir(&same).unwrap();
        bind(&space.outside, &same);
        assert_eq!(
            base(space).open_below("plugins").unwrap_err().cause,
            Cause::OtherFileSystem,
            "same device, other mount"
        );
    });
}

#[test]
fn directory_that_keeps_filling_fails_after_some_tries() {
    in_own_namespace(|space| {
        let v = space.pod.path().join(V);
        write(&v.join("file"), "");
        let at = v.clone();
        let faults = remove(
            space,
            &meanwhile(move |call| drop(fs::write(at.join(call.to_string()), ""))),
        )
        .unwrap_err();
        assert_eq!(faults, [Fault::new("remove", &v, Cause::KeepsFilling)]);
        assert_eq!(remove(space, &Effects::ungated()), Ok(Outcome::Done));
    });
}

#[test]
fn directories_constantly_replaced_by_links_never_lead_outside() {
    in_own_namespace(|space| {
        for name in ["a/b/c/data", "b/c/data", "c/data", "data"] {
            write(&space.outside.join(name), "precious");
        }
        let v = space.pod.path().join(V);
        for round in 0..50 {
            let levels = [v.clone(), v.join("a"), v.join("a/b")];
            write(&v.join("a/b/c/data"), "cheap");
            for (level, name) in levels.iter().zip(["a", "b", "c"]) {
                symlink(space.outside.join(name), level.join("link")).unwrap();
            }
            let stop = AtomicBool::new(false);
            let removed = std::thread::scope(|scope| {
                for (level, name) in levels.iter().zip(["a", "b", "c"]) {
                    let level: OwnedFd = fs::File::open(level).unwrap().into();
                    let stop = &stop;
                    scope.spawn(move || {
                        while !stop.load(Ordering::Relaxed) {
                            let _ = renameat2(&level, name, &level, "link", RenameFlags::RENAME_EXCHANGE);
                        }
                    });
                }
                let removed = remove(space, &Effects::ungated());
                stop.store(true, Ordering::Relaxed);
                removed
            });
            if removed.is_err() {
                assert_eq!(remove(space, &Effects::ungated()), Ok(Outcome::Done), "round {round}");
            }
            assert!(!v.exists());
            for name in ["a/b/c/data", "b/c/data", "c/data", "data"] {
                assert_precious(space.outside.join(name));
            }
        }
    });
}

#[test]
fn bind_mount_that_appears_during_the_removal_is_never_entered() {
    in_own_namespace(|space| {
        write(&space.outside.join("data"), "precious");
        write(&space.outside.join("d/data"), "precious");
        // The mount appears once before each step of the removal, until it comes too late.
        let mut moment = 0;
        loop {
            let v = space.pod.path().join(V);
            write(&v.join("a/d/file"), "");
            write(&v.join("b/file"), "");
            let (at, outside) = (v.join("a"), space.outside.clone());
            let appeared = Arc::new(AtomicBool::new(false));
            let seen = appeared.clone();
            let effects = meanwhile(move |call| {
                if call == moment && try_bind(&outside, &at).is_ok() {
                    seen.store(true, Ordering::SeqCst);
                }
            });
            let removed = remove(space, &effects);
            assert_precious(space.outside.join("data"));
            assert_precious(space.outside.join("d/data"));
            if !appeared.load(Ordering::SeqCst) {
                assert_eq!(removed, Ok(Outcome::Done));
                break;
            }
            let mounted = nix::mount::umount(&v.join("a")).is_ok();
            assert_eq!(
                removed.is_err(),
                mounted,
                "moment {moment}: remaining mounts are reported: {removed:?}"
            );
            let _ = remove(space, &Effects::ungated()).unwrap();
            moment += 1;
        }
        assert!(moment > 3, "it appeared at {moment} moments");
    });
}

#[test]
fn immutable_or_append_only_directory_is_tried_and_reported_once() {
    in_own_namespace(|space| {
        let v = space.pod.path().join(V);
        for (name, flags) in [("stone", IFlags::IMMUTABLE), ("log", IFlags::APPEND)] {
            write(&v.join(name).join("in/file"), "");
            write(&v.join(name).join("file"), "");
            let held = fs::File::open(v.join(name)).unwrap();
            ioctl_setflags(&held, flags).unwrap();
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = calls.clone();
            let faults = remove(space, &meanwhile(move |call| counted.store(call, Ordering::SeqCst))).unwrap_err();
            assert_eq!(faults, [Fault::new("remove", v.join(name), Errno::EPERM)]);
            assert!(calls.load(Ordering::SeqCst) < 40, "{calls:?}");
            ioctl_setflags(&held, IFlags::empty()).unwrap();
            assert_eq!(remove(space, &Effects::ungated()), Ok(Outcome::Done));
        }
    });
}

#[test]
fn unusual_names_are_removed_like_any_other() {
    in_own_namespace(|space| {
        let v = space.pod.path().join(V);
        let long = "x".repeat(255);
        let names: [&[u8]; 9] = [
            b"-rf",
            b"*",
            b"a\nb",
            b"...",
            b" ",
            b"\xff\xfe",
            b"a\\040b",
            b"$(reboot)",
            long.as_bytes(),
        ];
        for name in names {
            let name = OsStr::from_bytes(name);
            write(&v.join(name).join(name), "");
            fs::create_dir(v.join(name).join("..d")).unwrap();
        }
        assert_eq!(fs::read_dir(&v).unwrap().count(), names.len());
        assert_eq!(remove(space, &Effects::ungated()), Ok(Outcome::Done));
        assert!(!v.exists());
    });
}
