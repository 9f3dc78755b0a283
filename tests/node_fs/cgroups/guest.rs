//! Tests that need a guest with systemd: slices of pods as a kubelet creates them, with containers as runc creates them.

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{LazyLock, PoisonError, RwLock, RwLockReadGuard},
};

use pod_teardown::node::{
    cgroups::{Cgroups, PodCgroup, Qos, pod_slice_name},
    effects::{Effects, Outcome},
};

use tokio::runtime::Runtime;

use super::{Destroyed, pause, until_exited};

/// Shared by all tests that use the bus, exclusive for the one that stops it.
static BUS: RwLock<()> = RwLock::new(());

/// A connection to the bus lives as long as the runtime that opened it. As in the agent, there is one.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// A pod's slice below its own root, stopped on drop.
struct Slice {
    cgroups: Cgroups,
    root: &'static str,
    pod: PodCgroup,
    children: RefCell<Vec<Child>>,
}

impl Slice {
    /// Roots and UIDs are unique per test.
    fn new(root: &'static str, qos: Qos) -> Self {
        let cgroups = Cgroups::detect(Path::new("/proc/self/mountinfo"), Path::new("/sys/fs/cgroup")).unwrap();

        let uid = format!("{}-4f7e-8d2b", std::process::id());
        let pod = pod_slice_name(&format!("/{root}"), qos, &uid).unwrap();
        let slice = Self {
            cgroups,
            root,
            pod,
            children: RefCell::default(),
        };
        systemctl(&["start", slice.pod.unit()]);
        assert!(slice.path().is_dir() && slice.is_loaded());
        slice
    }

    fn path(&self) -> PathBuf {
        Path::new("/sys/fs/cgroup").join(self.pod.path())
    }

    fn is_loaded(&self) -> bool {
        !systemctl(&[
            "list-units",
            "--all",
            "--no-legend",
            "--plain",
            &format!("{}*", self.root),
        ])
        .lines()
        .all(|unit| !unit.contains(self.pod.unit()))
    }

    /// A container as runc creates it: a scope in the slice.
    fn run(&self, id: &str, script: &str) -> PathBuf {
        let scope = format!("cri-containerd-{}{id}.scope", self.root);
        let slice = format!("--slice={}", self.pod.unit());
        let mut command = Command::new("systemd-run");
        command.args(["--scope", "--quiet", "--unit", &scope, &slice, "sh", "-c", script]);
        self.children.borrow_mut().push(command.spawn().unwrap());
        let path = self.path().join(&scope);
        while fs::read_to_string(path.join("cgroup.procs"))
            .unwrap_or_default()
            .is_empty()
        {
            pause();
        }
        path
    }

    fn destroy(&self, effects: &Effects) -> Destroyed {
        let is_empty = || self.cgroups.processes(&self.pod).unwrap().is_empty();
        until_exited(|| RUNTIME.block_on(self.cgroups.destroy(&self.pod, effects)), is_empty)
    }

    #[track_caller]
    fn assert_removed(&self) {
        assert!(!self.path().exists());
        assert!(!self.is_loaded(), "{}", systemctl(&["list-units", "--all"]));
        assert!(!self.cgroups.exists(&self.pod));
        assert_eq!(
            self.destroy(&Effects::ungated()),
            Ok(Outcome::Nothing),
            "a second run has nothing to do"
        );
    }
}

impl Drop for Slice {
    fn drop(&mut self) {
        let _ = self.destroy(&Effects::ungated());
        for child in self.children.get_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        systemctl(&["stop", &format!("{}.slice", self.root)]);
    }
}

fn bus() -> RwLockReadGuard<'static, ()> {
    BUS.read().unwrap_or_else(PoisonError::into_inner)
}

fn systemctl(arguments: &[&str]) -> String {
    let output = Command::new("systemctl").args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn empty_slice_is_removed_with_its_unit() {
    let _bus = bus();
    for (root, qos) in [
        ("empty1", Qos::Guaranteed),
        ("empty2", Qos::Burstable),
        ("empty3", Qos::BestEffort),
    ] {
        let slice = Slice::new(root, qos);
        assert_eq!(slice.destroy(&Effects::ungated()), Ok(Outcome::Done));
        slice.assert_removed();
    }
}

/// systemd would wait 90 s for them.
#[test]
fn scopes_with_processes_that_ignore_signals_are_removed_at_once() {
    let _bus = bus();
    let slice = Slice::new("deaf", Qos::Burstable);
    for id in ["a", "b"] {
        slice.run(id, "trap '' TERM HUP; while :; do sleep 1000; done");
    }
    let started = tokio::time::Instant::now();
    assert_eq!(slice.destroy(&Effects::ungated()), Ok(Outcome::Done));
    assert!(started.elapsed() < std::time::Duration::from_secs(60));
    slice.assert_removed();
}

#[test]
fn cgroup_without_a_unit_is_removed() {
    let _bus = bus();
    let slice = Slice::new("unknown", Qos::Burstable);
    systemctl(&["stop", slice.pod.unit()]);
    assert!(!slice.is_loaded());
    fs::create_dir_all(slice.path().join("cri-containerd-gone.scope")).unwrap();
    assert_eq!(slice.destroy(&Effects::ungated()), Ok(Outcome::Done));
    slice.assert_removed();
}

#[test]
fn other_pods_and_qos_slices_are_kept() {
    let _bus = bus();
    let gone = Slice::new("shared", Qos::Burstable);
    let neighbour = pod_slice_name("/shared", Qos::Burstable, "neighbour").unwrap();
    systemctl(&["start", neighbour.unit()]);
    assert_eq!(gone.destroy(&Effects::ungated()), Ok(Outcome::Done));
    gone.assert_removed();
    assert!(gone.cgroups.exists(&neighbour));
}

#[test]
fn slice_is_kept_with_a_remedy_until_the_bus_is_back() {
    let _alone = BUS.write().unwrap_or_else(PoisonError::into_inner);
    let slice = Slice::new("bus", Qos::Burstable);
    let effects = Effects::ungated();
    let destroy = || slice.cgroups.destroy(&slice.pod, &effects);
    // One runtime, and so one connection, for the whole test.
    RUNTIME.block_on(async {
        assert_eq!(destroy().await, Ok(Outcome::Done));
        systemctl(&["start", slice.pod.unit()]);
        systemctl(&["restart", "dbus.service"]);
        assert_eq!(destroy().await, Ok(Outcome::Done), "it reconnects");
        systemctl(&["start", slice.pod.unit()]);
        systemctl(&["stop", "dbus.service", "dbus.socket"]);
        let text = destroy().await.unwrap_err()[0].to_string();
        systemctl(&["start", "dbus.socket"]);
        assert!(
            text.contains("cannot stop slice") && text.contains("systemctl status dbus"),
            "{text}"
        );
        assert!(slice.path().is_dir(), "systemd would keep a unit without a cgroup");
        assert_eq!(destroy().await, Ok(Outcome::Done));
    });
    slice.assert_removed();
}
