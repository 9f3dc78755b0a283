//! Pod cgroups in the real hierarchies of this machine, below a separate root for each test.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use nix::errno::Errno;
use pod_teardown::node::{
    cgroups::{Cgroups, HierarchyKind, PodCgroup, Qos, pod_cgroup_name},
    effects::{Effects, Outcome},
    fault::{Cause, Fault},
};
use rustix::{
    fs::CWD,
    mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree},
};
use tokio::time::Instant;

mod bomb;
mod guest;
mod v1;

use crate::space::{UID, block_on, in_own_namespace, wait_until};

/// Result of the destruction of a pod's cgroup.
type Destroyed = Result<Outcome, Vec<Fault>>;

/// A pod's cgroup in every hierarchy, removed on drop.
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
        self.cgroups.hierarchies.iter().map(|it| join(&it.path)).collect()
    }

    fn of_kind(&self, kind: HierarchyKind, below: &str) -> PathBuf {
        let found = self.cgroups.hierarchies.iter().find(|it| it.kind == kind);
        found
            .expect("this machine has all kinds")
            .path
            .join(self.name.path())
            .join(below)
    }

    /// Runs a shell whose processes are in the pod's cgroup `below`, in all hierarchies that accept them.
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
        let cgroups = format!("/proc/{pid}/cgroup");
        wait_until("the process has entered the cgroup", || {
            self.processes().contains(&pid) && fs::read_to_string(&cgroups).unwrap().contains("0::/node")
        });
        pid
    }

    /// The cgroup `below`, created in all hierarchies: the files that move a process into it.
    fn entrances(&self, below: &str) -> Vec<PathBuf> {
        let mut entrances = Vec::new();
        for path in self.paths(below) {
            fs::create_dir_all(&path).unwrap();
            // A cpuset without CPUs accepts no process.
            if !path.starts_with("/sys/fs/cgroup/cpuset") {
                entrances.push(path.join("cgroup.procs"));
            }
        }
        entrances
    }

    fn processes(&self) -> Vec<i32> {
        self.cgroups.processes(&self.name).unwrap().into_iter().collect()
    }

    /// One attempt of the agent.
    fn try_destroy(&self) -> Destroyed {
        block_on(self.cgroups.destroy(&self.name, &Effects::ungated()))
    }

    fn destroy(&self) -> Destroyed {
        destroy_in(&self.cgroups, &self.name)
    }

    #[track_caller]
    fn assert_removed(&self) {
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
        let _ = self.try_destroy();
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for hierarchy in &self.cgroups.hierarchies {
            let above = self.name.path().ancestors().skip(1);
            for above in above.take_while(|above| above.parent().is_some()) {
                let _ = fs::remove_dir(hierarchy.path.join(above));
            }
        }
    }
}

/// Makes an attempt again if it failed only because killed processes had not exited: it waits a second for them, and a busy
/// machine may need longer. They exit before the next attempt, so that processes which escape are not killed by it.
fn until_exited(attempt: impl Fn() -> Destroyed, is_empty: impl Fn() -> bool) -> Destroyed {
    let is_exit_awaited = |fault: &Fault| {
        matches!(
            fault.cause,
            Cause::Processes(_) | Cause::Errno(Errno::EBUSY | Errno::ENOTEMPTY)
        )
    };
    let done = attempt();
    let Err(faults) = &done else { return done };
    if !faults.iter().all(is_exit_awaited) {
        return done;
    }
    let late = Instant::now() + Duration::from_secs(bomb::LIFETIME / 3);
    while !is_empty() {
        if Instant::now() > late {
            return done;
        }
        pause();
    }
    attempt()
}

fn pause() {
    block_on(async { tokio::time::sleep(Duration::from_millis(2)).await });
}

#[test]
fn empty_cgroup_is_removed() {
    let pod = Pod::new();
    assert!(pod.of_kind(HierarchyKind::V2, "").exists());
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_removed();
}

#[test]
fn nested_cgroups_are_removed() {
    let pod = Pod::new();
    for path in pod.paths("container/inner/innermost") {
        fs::create_dir_all(path).unwrap();
    }
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_removed();
}

#[test]
fn processes_at_all_depths_are_killed() {
    let mut pod = Pod::new();
    for below in ["", "a", "a/b", "c"] {
        pod.run(below, "trap '' TERM; while :; do sleep 1000; done");
    }
    assert!(pod.processes().len() >= 4);
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_removed();
}

#[test]
fn forking_process_does_not_escape() {
    let mut pod = Pod::new();
    pod.bomb("container");
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_removed();
}

/// Destroys a pod's cgroup in these hierarchies.
fn destroy_in(cgroups: &Cgroups, pod: &PodCgroup) -> Destroyed {
    let is_empty = || cgroups.processes(pod).unwrap().is_empty();
    until_exited(|| block_on(cgroups.destroy(pod, &Effects::ungated())), is_empty)
}

/// Only the hierarchies of this kind, as if this machine had no others.
fn only(file_system: &str) -> Cgroups {
    let mountinfo = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let is_of_it = |line: &&str| line.contains(&format!(" - {file_system} "));
    let lines: Vec<&str> = mountinfo.lines().filter(is_of_it).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), lines.join("\n")).unwrap();
    Cgroups::detect(file.path(), Path::new("/sys/fs/cgroup")).unwrap()
}

/// Hides a file from this mount namespace: a dangling link is mounted over it.
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

/// A pod with a process that is frozen on v2 at two levels.
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
            pause();
        }
    }
    pod
}

#[test]
fn processes_frozen_on_v2_are_killed() {
    let pod = frozen();
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_removed();
}

#[test]
fn processes_frozen_on_v2_are_killed_without_cgroup_kill() {
    in_own_namespace(|space| {
        let pod = frozen();
        hide(&pod.of_kind(HierarchyKind::V2, "cgroup.kill"), &space.outside);
        let destroyed = destroy_in(&only("cgroup2"), &pod.name);
        assert_eq!((destroyed, pod.processes()), (Ok(Outcome::Done), vec![]));
    });
}

/// Its processes can only be read and killed in the parent cgroup.
#[test]
fn threaded_cgroup_is_removed_with_its_processes() {
    let mut pod = Pod::new();
    let pid = pod.run("container", "exec sleep 1000");
    let threaded = pod.of_kind(HierarchyKind::V2, "container/threaded");
    fs::create_dir(&threaded).unwrap();
    fs::write(threaded.join("cgroup.type"), "threaded").unwrap();
    fs::write(threaded.join("cgroup.threads"), pid.to_string()).unwrap();
    assert!(fs::read_to_string(threaded.join("cgroup.procs")).is_err());
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_removed();
}

/// Writes to a frozen file system block uninterruptibly.
#[test]
fn uninterruptible_process_is_named_with_its_kernel_function() {
    let temp = tempfile::tempdir().unwrap();
    let (image, mount) = (temp.path().join("image"), temp.path().join("mount"));
    fs::create_dir(&mount).unwrap();
    let frozen = Frozen::new(&image, &mount);
    let mut pod = Pod::new();
    let pid = pod.run("container", &format!("exec touch {}", mount.join("file").display()));
    // Only a process that stays blocked counts: it also blocks briefly while it is read from disk.
    let mut seen = 0;
    while seen < 50 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        seen = if stat.contains("(touch) D") { seen + 1 } else { 0 };
        pause();
    }
    let text = pod.try_destroy().unwrap_err();
    let text: Vec<_> = text.iter().map(ToString::to_string).collect();
    let expected = format!("{pid} (touch, in uninterruptible sleep in ");
    assert!(text.iter().any(|text| text.contains(&expected)), "{text:?}");
    drop(frozen);
    assert!(matches!(pod.destroy(), Ok(Outcome::Done)));
    pod.assert_removed();
}

/// A file system in a file, frozen until this is dropped.
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
        // A process that waited for it keeps it open for a moment.
        for _ in 0..1000 {
            if Command::new("umount").arg(self.mount).status().unwrap().success() {
                return;
            }
            pause();
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
fn processes_are_distinguished_by_child_cgroup() {
    let mut pod = Pod::new();
    let [own, known, deeper] = ["", "known", "known/deeper"].map(|below| pod.run(below, "exec sleep 1000"));
    let other = pod.run("other/deeper", "exec sleep 1000");
    let populated = pod.cgroups.populated_children(&pod.name).unwrap();
    let expected = [("", vec![own]), ("known", vec![known, deeper]), ("other", vec![other])];
    let expected = expected.map(|(child, pids)| (child.into(), pids.into_iter().collect()));
    assert_eq!(populated, expected.into_iter().collect());
}
