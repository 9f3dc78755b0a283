//! Detection of kubelets, of runtimes in other namespaces, and of other agents.

use std::{
    fs,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::symlink,
            net::{SocketAddr, UnixDatagram, UnixListener},
        },
    },
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, unshare},
};
use pod_teardown::node::{
    kubelet_process::{KubeletProcess, LocalKubelet, MatchReason, find},
    kubelet_root::KubeletRoot,
    mount_namespace::check,
};
use testbed::command::Killed;
use tokio::time::Instant;

use crate::{
    crowd::search_until,
    fuse::Daemon,
    space::{block_on, in_own_namespace, wait_until, write},
};

/// Waits until a process executes the program named kubelet. Its name appears a moment before its command line.
fn wait_until_executed(pid: i32) {
    let file = |name| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap();
    wait_until("the program runs", || {
        file("comm") == "kubelet\n" && file("cmdline").contains("--root-dir")
    });
}

/// All kubelets that count, by a search in which no walk was late. A late walk counts as unknown, and a later search finishes it.
fn find_without_late_walks(proc: &Path, ours: &LocalKubelet) -> Vec<KubeletProcess> {
    let is_late = |it: &KubeletProcess| it.why == MatchReason::Unreadable(Errno::ETIMEDOUT);
    search_until(|| find(proc, ours).unwrap(), |found| !found.iter().any(is_late))
}

#[test]
fn process_named_kubelet_counts_with_our_directory_and_runtime() {
    let temp = tempfile::tempdir().unwrap();
    for dir in ["ours/pods", "theirs/pods"] {
        fs::create_dir_all(temp.path().join(dir)).unwrap();
    }
    // A process is named after the file that it was started by.
    let program = temp.path().join("kubelet");
    std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
    let start = |dir: &str| {
        let child = Command::new(&program)
            .args(["-c", "read forever", "--v=2", "--root-dir"])
            .arg(temp.path().join(dir))
            .arg(format!(
                "--container-runtime-endpoint=unix://{}/cri.sock",
                temp.path().display()
            ))
            .stdin(Stdio::piped())
            .spawn();
        Killed(child.unwrap())
    };
    let (ours, theirs) = (start("ours"), start("theirs"));
    let root = KubeletRoot::resolve(&temp.path().join("ours")).unwrap();
    let pid = Killed::pid;
    let ours_are = LocalKubelet {
        root,
        runtime: "/run/another.sock".into(),
        healthz: None,
    };
    let found = || find_without_late_walks(Path::new("/proc"), &ours_are);
    for child in [&ours, &theirs] {
        wait_until_executed(pid(child));
    }
    let mine = found().into_iter().find(|it| it.pid == pid(&ours));
    let mine = mine.expect("it works on our directory");
    assert_eq!(mine.why, MatchReason::SameDirectory);
    assert!(mine.command.contains("--root-dir"), "{}", mine.command);
    assert!(found().iter().all(|it| it.pid != pid(&theirs)));

    let ended = pid(&ours);
    let mut zombie = ours;
    zombie.0.kill().unwrap();
    while !fs::read_to_string(format!("/proc/{ended}/stat"))
        .unwrap()
        .contains(") Z ")
    {
        block_on(async { tokio::time::sleep(Duration::from_millis(2)).await });
    }
    assert!(found().iter().all(|it| it.pid != ended), "a zombie does no work");
}

/// This process has no kubelet's name. Any process in this network namespace may bind an address with a newline in it, after which
/// a line of `/proc/net/unix` seems to begin.
#[test]
fn owner_of_a_kubelet_socket_is_found_and_a_forged_line_is_ignored() {
    let temp = tempfile::tempdir().unwrap();
    let root = temp.path().join("o");
    fs::create_dir_all(root.join("pods")).unwrap();
    fs::create_dir_all(root.join("pod-resources")).unwrap();
    let socket = root.join("pod-resources/kubelet.sock");
    let ours = LocalKubelet {
        root: KubeletRoot::resolve(&root).unwrap(),
        runtime: temp.path().join("cri.sock"),
        healthz: None,
    };
    let me = i32::try_from(std::process::id()).unwrap();
    // Only this process: other tests run processes named kubelet.
    let proc = temp.path().join("proc");
    fs::create_dir(&proc).unwrap();
    for name in ["self", &me.to_string()] {
        symlink(Path::new("/proc").join(me.to_string()), proc.join(name)).unwrap();
    }
    let is_seen = || match find_without_late_walks(&proc, &ours).as_slice() {
        [] => false,
        [only] => {
            assert_eq!((only.pid, &only.why), (me, &MatchReason::SameDirectory));
            true
        }
        several => panic!("{several:?}"),
    };
    let forge = |inode: u64, path: &str| {
        let name = format!("x\n0: 2 0 00010000 1 1 {inode} {path}");
        let forger = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let shown = fs::read_to_string("/proc/net/unix").unwrap();
        assert!(shown.contains(&name), "the kernel shows it");
        forger
    };
    assert!(!is_seen());
    let listener = UnixListener::bind(&socket).unwrap();
    assert!(is_seen());
    // A different path for it does not hide it.
    let inode = nix::sys::stat::fstat(&listener).unwrap().st_ino;
    let forged = forge(inode, "/x/pod-resources/kubelet.sock");
    assert!(is_seen());
    drop((listener, forged));
    assert!(!is_seen());
    // A socket of this process that does not listen there.
    let victim = UnixDatagram::unbound().unwrap();
    let inode = nix::sys::stat::fstat(&victim).unwrap().st_ino;
    let forged = forge(inode, socket.to_str().unwrap());
    assert!(!is_seen());
    drop(forged);
}

/// A process called kubelet, in whose root the kubelet's directory is on a server that does not answer.
#[test]
fn hanging_walk_does_not_delay_the_detection_of_another_kubelet() {
    in_own_namespace(|space| {
        let at = |name: &str| space.outside.join(name);
        let process = |pid: &str, root: &Path, arguments: &str| {
            let dir = at("proc").join(pid);
            write(&dir.join("comm"), "kubelet\n");
            write(&dir.join("cmdline"), arguments);
            symlink(root, dir.join("root")).unwrap();
            fs::create_dir_all(dir.join("task").join(pid)).unwrap();
        };
        fs::create_dir_all(at("rootfs/var/lib")).unwrap();
        let server = Daemon::mounted_on(&at("rootfs/var/lib"));
        server.stop_answering();
        process("7", &at("rootfs"), "kubelet\0");
        let ours = LocalKubelet {
            root: KubeletRoot::resolve(&space.root).unwrap(),
            runtime: "/run/cri.sock".into(),
            healthz: None,
        };
        let found = || {
            let begun = Instant::now();
            let found = find_without_late_walks(&at("proc"), &ours);
            (
                found.into_iter().map(|it| (it.pid, it.why)).collect::<Vec<_>>(),
                begun.elapsed(),
            )
        };
        let (seen, took) = found();
        assert_eq!(seen, []);
        // The walk itself would never return.
        assert!(took < Duration::from_secs(20), "{took:?}");
        process(
            "8",
            Path::new("/"),
            &format!("kubelet\0--root-dir={}\0", space.root.display()),
        );
        // The walk of process 7 still hangs and is not repeated. On a slow machine single searches may take a second without it.
        let is_quick = || {
            let (seen, took) = found();
            seen == [(8, MatchReason::SameDirectory)] && took < Duration::from_secs(1)
        };
        assert!((0..20).any(|_| is_quick()), "{:?}", found());
    });
}

#[test]
fn runtime_in_another_mount_namespace_is_detected() {
    let temp = tempfile::tempdir().unwrap();
    let socket = temp.path().join("cri.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    assert_eq!(block_on(check(Path::new("/proc"), &socket)), Ok(()));

    // Of this process only one thread moves away; a procfs of its own shows that thread as "self".
    let moved = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("these tests need root");
        let proc = tempfile::tempdir().unwrap();
        for pid in fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        {
            if pid.bytes().all(|byte| byte.is_ascii_digit()) {
                std::os::unix::fs::symlink(format!("/proc/{pid}"), proc.path().join(pid)).unwrap();
            }
        }
        let thread = fs::canonicalize("/proc/thread-self").unwrap();
        std::os::unix::fs::symlink(thread, proc.path().join("self")).unwrap();
        block_on(check(proc.path(), &socket))
    });
    let pid = i32::try_from(std::process::id()).unwrap();
    let problem = moved.join().unwrap().unwrap_err();
    let expected = format!("not in the mount namespace of the container runtime (pid {pid})");
    assert!(problem.what.contains(&expected), "{problem}");
}
