//! Pod cgroups in the real hierarchies of this machine, below a root of each test's own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use pod_teardown::node::{
    cgroups::{Breadth, Cgroups, HierarchyKind, PodCgroup, Qos, pod_cgroup_name},
    effects::{Effects, Outcome},
};

use crate::space::{UID, block_on};

/// A pod's cgroup in every hierarchy, removed at the end whatever happens.
struct Pod {
    cgroups: Cgroups,
    root: String,
    name: PodCgroup,
    children: Vec<Child>,
}

impl Pod {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let root = format!(
            "node-fs-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::SeqCst)
        );
        let cgroups = Cgroups::detect(Path::new("/proc/self/mountinfo"), Path::new("/sys/fs/cgroup")).unwrap();
        let name = pod_cgroup_name(&root, Qos::Burstable, UID).unwrap();
        let pod = Self {
            cgroups,
            root,
            name,
            children: Vec::new(),
        };
        for path in pod.paths("") {
            fs::create_dir_all(path).unwrap();
        }
        pod
    }

    fn paths(&self, below: &str) -> Vec<PathBuf> {
        let join = |root: &Path| root.join(self.name.path()).join(below);
        self.cgroups.hierarchies().iter().map(|it| join(&it.path)).collect()
    }

    fn of_kind(&self, kind: HierarchyKind, below: &str) -> PathBuf {
        let found = self.cgroups.hierarchies().iter().find(|it| it.kind == kind);
        found
            .expect("this machine has all kinds")
            .path
            .join(self.name.path())
            .join(below)
    }

    /// Runs a shell whose every process is in the pod's cgroup `below`, in all hierarchies that take it.
    fn run(&mut self, below: &str, script: &str) -> i32 {
        let mut enter = String::new();
        for path in self.paths(below) {
            fs::create_dir_all(&path).unwrap();
            // A cpuset without CPUs takes nobody in.
            if !path.starts_with("/sys/fs/cgroup/cpuset") {
                enter += &format!("echo 0 > {}/cgroup.procs || exit 9; ", path.display());
            }
        }
        let child = Command::new("sh")
            .arg("-c")
            .arg(format!("{enter} {script}"))
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        self.children.push(child);
        for _ in 0..1000 {
            if self.processes().contains(&pid)
                && fs::read_to_string(format!("/proc/{pid}/cgroup"))
                    .unwrap()
                    .contains("0::/node")
            {
                return pid;
            }
            nap();
        }
        panic!("the process did not enter the cgroup");
    }

    fn processes(&self) -> Vec<i32> {
        self.cgroups.processes(&self.name).unwrap()
    }

    fn destroy(&self) -> Result<Outcome, Vec<pod_teardown::node::fault::Fault>> {
        block_on(self.cgroups.destroy(&self.name, &Effects::ungated()))
    }

    #[track_caller]
    fn assert_gone(&self) {
        for path in self.paths("") {
            assert!(!path.exists(), "{path:?}");
        }
        assert!(!self.cgroups.exists(&self.name));
        assert_eq!(self.processes(), Vec::<i32>::new());
        assert_eq!(self.destroy(), Ok(Outcome::Nothing), "a second run has nothing to do");
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.destroy();
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for hierarchy in self.cgroups.hierarchies() {
            for below in ["kubepods/burstable", "kubepods", ""] {
                let _ = fs::remove_dir(hierarchy.path.join(&self.root).join(below));
            }
        }
    }
}

fn nap() {
    block_on(async { tokio::time::sleep(Duration::from_millis(2)).await });
}

#[test]
fn an_empty_cgroup_goes_from_every_hierarchy_also_the_unified_one() {
    let pod = Pod::new();
    assert!(pod.of_kind(HierarchyKind::V2, "").exists() && pod.of_kind(HierarchyKind::Freezer, "").exists());
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_gone();
}

#[test]
fn a_cgroup_that_is_left_in_one_hierarchy_only_is_found_and_removed() {
    let pod = Pod::new();
    for path in pod.paths("") {
        if path != pod.of_kind(HierarchyKind::V2, "") {
            fs::remove_dir(path).unwrap();
        }
    }
    assert!(pod.cgroups.exists(&pod.name));
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_gone();
}

#[test]
fn nested_cgroups_go() {
    let pod = Pod::new();
    for path in pod.paths("container/inner/innermost") {
        fs::create_dir_all(path).unwrap();
    }
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_gone();
}

#[test]
fn processes_at_all_depths_are_killed() {
    let mut pod = Pod::new();
    for below in ["", "a", "a/b", "c"] {
        pod.run(below, "trap '' TERM; while :; do sleep 1000; done");
    }
    assert!(pod.processes().len() >= 4);
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_gone();
}

#[test]
fn a_process_that_forks_all_the_time_does_not_escape() {
    let mut pod = Pod::new();
    pod.run(
        "container",
        "f() { while :; do (sleep 1000 & sleep 0.001) & sleep 0.003; done; }; f",
    );
    while pod.processes().len() < 20 {
        nap();
    }
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_gone();
}

#[test]
fn a_process_that_forks_does_not_escape_where_there_is_no_unified_hierarchy() {
    let mut pod = Pod::new();
    pod.run(
        "container",
        "f() { while :; do (sleep 1000 & sleep 0.001) & sleep 0.003; done; }; f",
    );
    while pod.processes().len() < 20 {
        nap();
    }
    // As on a pure v1 machine: one table without the unified hierarchy.
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let v1: Vec<&str> = mountinfo.lines().filter(|line| !line.contains("cgroup2")).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), v1.join("\n")).unwrap();
    let only_v1 = Cgroups::detect(file.path(), Path::new("/sys/fs/cgroup")).unwrap();
    assert_eq!(
        block_on(only_v1.destroy(&pod.name, &Effects::ungated())),
        Ok(Outcome::Done)
    );
    assert_eq!(pod.processes(), Vec::<i32>::new());
    assert_eq!(pod.destroy(), Ok(Outcome::Done), "the unified directory was left");
    pod.assert_gone();
}

/// A pod with a process that the freezer holds at two levels.
fn frozen() -> Pod {
    let mut pod = Pod::new();
    pod.run("container", "exec sleep 1000");
    for below in ["", "container"] {
        let state = pod.of_kind(HierarchyKind::Freezer, below).join("freezer.state");
        fs::write(&state, "FROZEN").unwrap();
        while fs::read_to_string(&state).unwrap() != "FROZEN\n" {
            nap();
        }
    }
    pod
}

#[test]
fn what_is_frozen_is_thawed_and_goes_on() {
    let pod = frozen();
    let states = || {
        ["", "container"].map(|below| {
            let file = pod.of_kind(HierarchyKind::Freezer, below).join("freezer.state");
            fs::read_to_string(file).unwrap()
        })
    };
    let dry = Effects::new(true, std::sync::Arc::new(|| Ok(())));
    assert_eq!(pod.cgroups.thaw(&pod.name, &dry), Ok(Outcome::Withheld));
    assert_eq!(states(), ["FROZEN\n"; 2]);
    assert_eq!(pod.cgroups.thaw(&pod.name, &Effects::ungated()), Ok(Outcome::Done));
    assert_eq!(
        (states(), pod.processes().len()),
        (["THAWED\n".to_owned(), "THAWED\n".to_owned()], 1)
    );
    assert_eq!(pod.cgroups.thaw(&pod.name, &Effects::ungated()), Ok(Outcome::Nothing));
}

#[test]
fn processes_are_told_apart_by_the_cgroup_below_the_pods_that_they_are_in() {
    let mut pod = Pod::new();
    let [own, known, deeper] = ["", "known", "known/deeper"].map(|below| pod.run(below, "exec sleep 1000"));
    let other = pod.run("other/deeper", "exec sleep 1000");
    let but = |names: &[&str]| {
        let known = |name: &std::ffi::OsStr| names.iter().any(|it| name == *it);
        pod.cgroups.processes_but(&pod.name, Breadth::Every, known).unwrap()
    };
    let sorted = |mut pids: Vec<i32>| {
        pids.sort_unstable();
        pids
    };
    assert_eq!(but(&[]), sorted(vec![own, known, deeper, other]));
    assert_eq!(but(&["known"]), sorted(vec![own, other]));
    assert_eq!(but(&["", "known"]), [other]);
    assert_eq!(but(&["", "known", "other"]), Vec::<i32>::new());
}

#[test]
fn frozen_processes_are_killed_and_thawed() {
    let pod = frozen();
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_gone();
}

#[test]
fn a_dry_run_kills_and_removes_nothing() {
    let mut pod = Pod::new();
    let pid = pod.run("container", "exec sleep 1000");
    let effects = Effects::new(true, std::sync::Arc::new(|| Ok(())));
    assert_eq!(
        block_on(pod.cgroups.destroy(&pod.name, &effects)),
        Ok(Outcome::Withheld)
    );
    assert_eq!(pod.processes(), [pid]);
    assert!(pod.paths("container").iter().all(|path| path.exists()));
}
