use std::{
    os::unix::fs::symlink,
    process::{Child, Command},
    sync::Arc,
};

use super::*;
use crate::model::blocked::Blocked;

const LATER: Duration = Duration::from_secs(1_000_000_000);
const UID: &str = "5f0d7f0e-1b1c-4f7e-8d2b-6a9c1c7e0a01";

/// A procfs in a directory.
struct Proc(tempfile::TempDir);

impl Proc {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn add(&self, pid: i32, stat: &str, cgroup: &str, command_line: &str) {
        let dir = self.path().join(pid.to_string());
        fs::create_dir_all(dir.join("task")).unwrap();
        fs::write(dir.join("stat"), stat).unwrap();
        fs::write(dir.join("cgroup"), cgroup).unwrap();
        fs::write(dir.join("cmdline"), command_line.replace(' ', "\0")).unwrap();
    }

    /// A child of this test under its PID, as a child of the pod's shim.
    fn link(&self, process: &Child) -> i32 {
        let own = i32::try_from(std::process::id()).unwrap();
        let line = format!("shim -id {}", id());
        self.add(own, &stat("containerd-shim", 'S', 1, 100), "0::/", &line);
        let pid = i32::try_from(process.id()).unwrap();
        symlink(
            Path::new("/proc").join(pid.to_string()),
            self.path().join(pid.to_string()),
        )
        .unwrap();
        pid
    }
}

fn stat(name: &str, state: char, parent: i32, start: u32) -> String {
    format!("7 ({name}) {state} {parent} 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 {start} 0 0\n")
}

fn id() -> String {
    "0123456789abcdef".repeat(4)
}

fn owner() -> Owner {
    Owner {
        uid: UID.to_owned(),
        ids: vec![id()],
    }
}

fn sleep() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

#[test]
fn process_runs_until_it_exits_and_a_zombie_does_not() {
    let proc = Path::new("/proc");
    let mut sleeps = sleep();
    let pid = i32::try_from(sleeps.id()).unwrap();
    let runs = |started_by| Process::find(proc, pid, started_by).unwrap().is_some();
    assert!(runs(LATER));
    assert!(!runs(Duration::ZERO), "it started after boot");
    sleeps.kill().unwrap();
    while runs(LATER) {}
    assert!(proc.join(pid.to_string()).exists(), "it is a zombie");
    sleeps.wait().unwrap();
    assert!(!runs(LATER));
}

#[test]
fn process_with_one_running_thread_runs() {
    let proc = Proc::new();
    proc.add(7, &stat("a) Z (b)", 'Z', 1, 500), "0::/\n", "");
    let find = |started_by| Process::find(proc.path(), 7, started_by);
    let thread = |thread: &str, state| {
        let dir = proc.path().join("7/task").join(thread);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("stat"), stat("b", state, 1, 500)).unwrap();
    };
    thread("7", 'Z');
    assert_eq!(find(LATER).unwrap(), None);
    thread("9", 'D');
    assert_eq!(find(LATER).unwrap().unwrap().command, "a) Z (b)");
    assert_eq!(find(Duration::from_secs(4)).unwrap(), None, "another one has its id");
    fs::write(proc.path().join("7/stat"), "nonsense").unwrap();
    assert!(find(LATER).is_err());
}

#[test]
fn only_a_process_with_proof_is_of_the_pod() {
    let (id, other) = (id(), "f".repeat(64));
    let shim = format!("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id {id} -address /run/c.sock");
    let slice = UID.replace('-', "_");
    let check = |case: &str, cgroup: &str, (parent, line): (&str, &str), expected: bool| {
        let proc = Proc::new();
        proc.add(5, &stat(parent, 'S', 1, 100), "0::/", line);
        proc.add(7, &stat("app", 'S', 5, 500), cgroup, "app");
        let process = Process::find(proc.path(), 7, LATER).unwrap().unwrap();
        assert_eq!(process.is_of(proc.path(), &owner()), expected, "{case}");
    };
    let shell = ("sh", "sh");
    check(
        "in the pod's cgroup",
        &format!("0::/kubepods/burstable/pod{UID}"),
        shell,
        true,
    );
    let in_slice = format!("0::/kubepods.slice/kubepods-pod{slice}.slice/x.scope");
    check("in its slice", &in_slice, shell, true);
    let in_container = format!("9:pids:/system.slice/crio-{id}.scope/container\n0::/");
    check("in its container's cgroup", &in_container, shell, true);
    check(
        "of another pod",
        &format!("0::/kubepods/pod00000000-1b1c/{other}"),
        shell,
        false,
    );
    check(
        "UID only as a part of a name",
        &format!("0::/x-pod{UID}-y"),
        shell,
        false,
    );
    let monitor = format!("/usr/bin/conmon -b /b -c {id} -s");
    let (exec, elsewhere) = (format!("crictl exec -id {id} sh"), format!("shim -x {id} -id {other}"));
    for (case, parent, expected) in [
        ("child of its shim", ("containerd-shim", &*shim), true),
        ("child of its monitor", ("conmon", &*monitor), true),
        ("of no pod", ("systemd", "/sbin/init"), false),
        (
            "child of another shim",
            ("containerd-shim", &*shim.replace(&id, &other)),
            false,
        ),
        ("child of a program with its ID", ("crictl", &*exec), false),
        (
            "child of a shim with its ID elsewhere",
            ("containerd-shim", &*elsewhere),
            false,
        ),
        ("kernel thread", ("kthreadd", ""), false),
    ] {
        check(case, "0::/", parent, expected);
    }
}

#[test]
fn agent_and_first_process_are_never_of_a_pod() {
    let own = i32::try_from(std::process::id()).unwrap();
    for pid in [0, 1, own] {
        let proc = Proc::new();
        proc.add(pid, &stat("app", 'S', 5, 500), &format!("0::/kubepods/pod{UID}"), "app");
        let process = Process::find(proc.path(), pid, LATER).unwrap().unwrap();
        assert!(!process.is_of(proc.path(), &owner()), "{pid}");
    }
}

#[test]
fn process_that_was_named_is_killed_unless_the_gate_is_shut() {
    let proc = Proc::new();
    let mut sleeps = sleep();
    let pid = proc.link(&sleeps);
    let process = Process::find(proc.path(), pid, LATER).unwrap().unwrap();
    let blocked = || Blocked::Other("a kubelet is here".to_owned());
    let shut = Effects::new(Arc::new(move || Err(blocked())));
    let kill = |effects: &Effects| process.kill(proc.path(), Some(&owner()), effects);
    assert!(kill(&shut).unwrap_err().is_blocked());
    let other = Owner {
        ids: vec!["f".repeat(64)],
        ..owner()
    };
    let unproven = process.kill(proc.path(), Some(&other), &Effects::ungated());
    assert_eq!((unproven, sleeps.try_wait().unwrap()), (Ok(Outcome::Nothing), None));
    assert_eq!(kill(&Effects::ungated()), Ok(Outcome::Done));
    assert!(!sleeps.wait().unwrap().success());
    assert_eq!(kill(&Effects::ungated()), Ok(Outcome::Nothing));
}

#[test]
fn later_process_with_the_same_pid_is_not_killed() {
    let proc = Proc::new();
    let mut sleeps = sleep();
    let pid = proc.link(&sleeps);
    let real = Process::find(proc.path(), pid, LATER).unwrap().unwrap();
    let earlier = Process {
        start: real.start - TICK,
        ..real.clone()
    };
    let killed = earlier.kill(proc.path(), Some(&owner()), &Effects::ungated());
    assert_eq!((killed, sleeps.try_wait().unwrap()), (Ok(Outcome::Nothing), None));
    // A procfs that is not the kernel's leads to no process at all.
    let copied = Proc::new();
    copied.link(&sleeps);
    fs::remove_file(copied.path().join(pid.to_string())).unwrap();
    let read = |name: &str| fs::read_to_string(proc.path().join(pid.to_string()).join(name)).unwrap();
    copied.add(pid, &read("stat"), &read("cgroup"), "sleep");
    let failed = real.kill(copied.path(), Some(&owner()), &Effects::ungated());
    assert!(failed.is_err(), "{failed:?}");
    assert_eq!(sleeps.try_wait().unwrap(), None);
    sleeps.kill().unwrap();
    sleeps.wait().unwrap();
}

#[test]
fn shim_is_found_with_its_running_children() {
    let proc = Proc::new();
    let line = format!(
        "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id {} -address /run/c.sock",
        id()
    );
    proc.add(
        5,
        &stat("containerd-shim", 'T', 1, 100),
        "0::/system.slice/containerd.service",
        &line,
    );
    proc.add(
        6,
        &stat("containerd-shim", 'S', 1, 100),
        "0::/",
        &line.replace(&id(), "other"),
    );
    proc.add(7, &stat("pause", 'S', 5, 200), "0::/kubepods", "/pause");
    proc.add(8, &stat("app", 'Z', 5, 200), "0::/", "");
    proc.add(9, &stat("app", 'S', 6, 200), "0::/", "");
    let found = shims(proc.path(), &[id()]).unwrap();
    let [shim] = &found[..] else { panic!("{found:?}") };
    assert_eq!((shim.pid, shim.is_of_processes(), &shim.id), (5, true, &id()));
    assert_eq!(
        shim.to_string(),
        "shim 5 (containerd-shim-runc-v2), which is stopped (state T)"
    );
    let [child] = &shim.children[..] else {
        panic!("{shim:?}")
    };
    assert_eq!(child.to_string(), "process 7 \"pause\" in cgroup /kubepods");
    for (program, is_of_processes) in [("/bin/containerd-shim", true), ("/bin/containerd-shim-kata-v2", false)] {
        let line = format!("{program} -id {}", id());
        proc.add(5, &stat("containerd-shim", 'S', 1, 100), "0::/", &line);
        assert_eq!(
            shims(proc.path(), &[id()]).unwrap()[0].is_of_processes(),
            is_of_processes,
            "{program}"
        );
    }
}
