//! Pod cgroups in the real hierarchies of this machine, below a root of each test's own.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use pod_teardown::node::{
    cgroups::{Cgroups, HierarchyKind, HierarchySearch, PodCgroup, Qos, pod_cgroup_name},
    effects::{Effects, Outcome},
};
use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};

mod bomb;
mod guest;
mod namespace;
mod v1;

use crate::space::{UID, block_on, in_own_namespace};
use bomb::Bomb;

/// A pod's cgroup in every hierarchy, removed at the end whatever happens.
struct Pod {
    cgroups: Cgroups,
    root: String,
    name: PodCgroup,
    children: Vec<Child>,
    guard: Option<bomb::Guard>,
}

impl Pod {
    fn new() -> Self {
        Self::with_root("")
    }

    /// With this cgroup root, below the test's.
    fn with_root(cgroup_root: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let root = format!(
            "node-fs-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::SeqCst)
        );
        let cgroups = Cgroups::detect(Path::new("/proc/self/mountinfo"), Path::new("/sys/fs/cgroup")).unwrap();
        let name = pod_cgroup_name(&format!("{root}{cgroup_root}"), Qos::Burstable, UID).unwrap();
        let pod = Self {
            cgroups,
            root,
            name,
            children: Vec::new(),
            guard: None,
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
        for entrance in self.entrances(below) {
            enter += &format!("echo 0 > {} || exit 9; ", entrance.display());
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

    /// The cgroup `below`, made in all hierarchies: the files that take a process into it.
    fn entrances(&self, below: &str) -> Vec<PathBuf> {
        let mut entrances = Vec::new();
        for path in self.paths(below) {
            fs::create_dir_all(&path).unwrap();
            // A cpuset without CPUs takes nobody in.
            if !path.starts_with("/sys/fs/cgroup/cpuset") {
                entrances.push(path.join("cgroup.procs"));
            }
        }
        entrances
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
        if let Some(guard) = &mut self.guard {
            guard.kill();
        }
        let _ = self.destroy();
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for hierarchy in self.cgroups.hierarchies() {
            let above = self.name.path().ancestors().skip(1);
            for above in above.take_while(|above| above.parent().is_some()) {
                let _ = fs::remove_dir(hierarchy.path.join(above));
            }
        }
    }
}

fn nap() {
    block_on(async { tokio::time::sleep(Duration::from_millis(2)).await });
}

#[test]
fn an_empty_cgroup_goes() {
    let pod = Pod::new();
    assert!(pod.of_kind(HierarchyKind::V2, "").exists());
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
    for bomb in [Bomb::Fills, Bomb::Flees] {
        let mut pod = Pod::new();
        pod.bomb("container", bomb);
        assert_eq!(pod.destroy(), Ok(Outcome::Done), "{bomb:?}");
        pod.assert_gone();
    }
}

/// The hierarchies of these kinds alone, as if this machine had no others.
fn only(file_system: &str) -> Cgroups {
    let mountinfo = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let is_of_it = |line: &&str| line.contains(&format!(" - {file_system} "));
    let lines: Vec<&str> = mountinfo.lines().filter(is_of_it).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), lines.join("\n")).unwrap();
    Cgroups::detect(file.path(), Path::new("/sys/fs/cgroup")).unwrap()
}

#[test]
fn a_process_that_forks_does_not_escape_where_version_2_has_no_file_to_kill_all_at_once() {
    in_own_namespace(|space| {
        for bomb in [Bomb::Fills, Bomb::Flees] {
            let mut pod = Pod::new();
            pod.bomb("container", bomb);
            hide(&pod.of_kind(HierarchyKind::V2, "cgroup.kill"), &space.outside);
            let destroyed = block_on(only("cgroup2").destroy(&pod.name, &Effects::ungated()));
            assert_eq!(destroyed, Ok(Outcome::Done), "{bomb:?}");
            assert_eq!(pod.processes(), Vec::<i32>::new());
            assert!(!pod.of_kind(HierarchyKind::V2, "").exists());
        }
    });
}

/// Lets nobody in this mount namespace find a file any more: a link to nowhere lies over it.
fn hide(file: &Path, scratch: &Path) {
    let link = scratch.join("nowhere");
    if !link.is_symlink() {
        std::os::unix::fs::symlink("no such file", &link).unwrap();
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    let link = open_tree(CWD, &link, flags).unwrap();
    move_mount(link, "", CWD, file, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).unwrap();
    let found = fs::OpenOptions::new().write(true).open(file);
    assert_eq!(found.unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

/// A pod with a process that version 2 has frozen at two levels.
fn frozen() -> Pod {
    let mut pod = Pod::new();
    pod.run("container", "exec sleep 1000");
    for below in ["container", ""] {
        let cgroup = pod.of_kind(HierarchyKind::V2, below);
        fs::write(cgroup.join("cgroup.freeze"), "1").unwrap();
        while !fs::read_to_string(cgroup.join("cgroup.events"))
            .unwrap()
            .contains("frozen 1")
        {
            nap();
        }
    }
    pod
}

#[test]
fn processes_that_version_2_has_frozen_are_killed() {
    let pod = frozen();
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_gone();
}

#[test]
fn they_are_killed_also_where_it_has_no_file_to_kill_all_at_once() {
    in_own_namespace(|space| {
        let pod = frozen();
        hide(&pod.of_kind(HierarchyKind::V2, "cgroup.kill"), &space.outside);
        let destroyed = block_on(only("cgroup2").destroy(&pod.name, &Effects::ungated()));
        assert_eq!((destroyed, pod.processes()), (Ok(Outcome::Done), vec![]));
    });
}

/// Its processes cannot be read or killed in it, but only in the cgroup above.
#[test]
fn a_threaded_cgroup_goes_with_its_processes() {
    let mut pod = Pod::new();
    let pid = pod.run("container", "exec sleep 1000");
    let threaded = pod.of_kind(HierarchyKind::V2, "container/threaded");
    fs::create_dir(&threaded).unwrap();
    fs::write(threaded.join("cgroup.type"), "threaded").unwrap();
    fs::write(threaded.join("cgroup.threads"), pid.to_string()).unwrap();
    assert!(fs::read_to_string(threaded.join("cgroup.procs")).is_err());
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_gone();
}

/// Writes to a file system that is frozen: whoever does waits and takes no signal.
#[test]
fn a_process_that_takes_no_signal_is_named_with_what_it_waits_in() {
    let temp = tempfile::tempdir().unwrap();
    let (image, mount) = (temp.path().join("image"), temp.path().join("mount"));
    fs::create_dir(&mount).unwrap();
    let frozen = Frozen::new(&image, &mount);
    let mut pod = Pod::new();
    let pid = pod.run("container", &format!("exec touch {}", mount.join("file").display()));
    // For long: while it is read from the disk it waits, too, but not for good.
    let mut seen = 0;
    while seen < 50 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        seen = if stat.contains("(touch) D") { seen + 1 } else { 0 };
        nap();
    }
    let told = pod.destroy().unwrap_err();
    let told: Vec<_> = told.iter().map(ToString::to_string).collect();
    let expected = format!("{pid} (touch, waits in ");
    assert!(
        told.iter()
            .any(|told| told.contains(&expected) && told.contains("takes no signal")),
        "{told:?}"
    );
    drop(frozen);
    assert!(matches!(pod.destroy(), Ok(Outcome::Done)));
    pod.assert_gone();
}

/// A file system in a file, frozen as long as this is there.
struct Frozen<'a> {
    mount: &'a Path,
}

impl<'a> Frozen<'a> {
    fn new(image: &Path, mount: &'a Path) -> Self {
        fs::File::create(image).unwrap().set_len(8 << 20).unwrap();
        command("mkfs.ext4", &["-q", image.to_str().unwrap()]);
        command(
            "mount",
            &["-o", "loop", image.to_str().unwrap(), mount.to_str().unwrap()],
        );
        command("fsfreeze", &["--freeze", mount.to_str().unwrap()]);
        Self { mount }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        command("fsfreeze", &["--unfreeze", self.mount.to_str().unwrap()]);
        // Whoever waited for it has it open for a moment yet.
        for _ in 0..1000 {
            if Command::new("umount").arg(self.mount).status().unwrap().success() {
                return;
            }
            nap();
        }
        panic!("{} stays mounted", self.mount.display());
    }
}

fn command(name: &str, arguments: &[&str]) {
    assert!(
        Command::new(name).args(arguments).status().unwrap().success(),
        "{name} {arguments:?}"
    );
}

#[test]
fn processes_are_told_apart_by_the_cgroup_below_the_pods_that_they_are_in() {
    let mut pod = Pod::new();
    let [own, known, deeper] = ["", "known", "known/deeper"].map(|below| pod.run(below, "exec sleep 1000"));
    let other = pod.run("other/deeper", "exec sleep 1000");
    let but = |names: &[&str]| {
        let known = |name: &std::ffi::OsStr| names.iter().any(|it| name == *it);
        pod.cgroups
            .processes_except(&pod.name, HierarchySearch::All, known)
            .unwrap()
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
