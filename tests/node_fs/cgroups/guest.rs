//! What only the guest can show, a machine with systemd: slices of pods as a kubelet makes them, with containers as runc does.

use std::{
    cell::RefCell,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::{Arc, LazyLock, PoisonError, RwLock, RwLockReadGuard},
};

use pod_teardown::node::{
    cgroups::{Cgroups, PodCgroup, Qos},
    cri::types::CgroupDriver,
    effects::{Effects, EffectsBlocked, Outcome},
};

use tokio::runtime::Runtime;

use super::nap;

/// Held by all who need the bus, and alone by whoever takes it away.
static BUS: RwLock<()> = RwLock::new(());

/// A connection to the bus lives as long as the runtime that it was made on: as in the agent, there is one.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

/// A pod's slice below a root of its own, stopped at the end whatever happens.
struct Slice {
    cgroups: Cgroups,
    root: &'static str,
    pod: PodCgroup,
    children: RefCell<Vec<Child>>,
}

impl Slice {
    /// Roots and UIDs are of each test's own.
    fn new(root: &'static str, qos: Qos) -> Self {
        let cgroups = Cgroups::detect(Path::new("/proc/self/mountinfo"), Path::new("/sys/fs/cgroup")).unwrap();
        let cgroups = cgroups.with_driver(CgroupDriver::Systemd);
        let uid = format!("{}-4f7e-8d2b", std::process::id());
        let pod = cgroups.pod_cgroups(&format!("/{root}"), qos, &uid).unwrap().remove(0);
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

    /// A container as runc makes it: a scope in the slice.
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
            nap();
        }
        path
    }

    fn destroy(&self, effects: &Effects) -> Result<Outcome, Vec<pod_teardown::node::fault::Fault>> {
        RUNTIME.block_on(self.cgroups.destroy(&self.pod, effects))
    }

    #[track_caller]
    fn assert_gone(&self) {
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
fn an_empty_slice_goes_with_its_unit() {
    let _bus = bus();
    for (root, qos) in [
        ("empty1", Qos::Guaranteed),
        ("empty2", Qos::Burstable),
        ("empty3", Qos::BestEffort),
    ] {
        let slice = Slice::new(root, qos);
        assert_eq!(slice.destroy(&Effects::ungated()), Ok(Outcome::Done));
        slice.assert_gone();
    }
}

/// systemd would wait for them for a minute and a half.
#[test]
fn scopes_whose_processes_ignore_what_systemd_sends_go_at_once() {
    let _bus = bus();
    let slice = Slice::new("deaf", Qos::Burstable);
    for id in ["a", "b"] {
        slice.run(id, "trap '' TERM HUP; while :; do sleep 1000; done");
    }
    let started = tokio::time::Instant::now();
    assert_eq!(slice.destroy(&Effects::ungated()), Ok(Outcome::Done));
    assert!(started.elapsed() < std::time::Duration::from_secs(30));
    slice.assert_gone();
}

#[test]
fn a_scope_whose_processes_fork_all_the_time_goes() {
    let _bus = bus();
    let slice = Slice::new("forks", Qos::Burstable);
    let scope = slice.run(
        "a",
        "f() { while :; do (sleep 1000 & sleep 0.001) & sleep 0.003; done; }; f",
    );
    while fs::read_to_string(scope.join("cgroup.procs")).unwrap().lines().count() < 20 {
        nap();
    }
    assert_eq!(slice.destroy(&Effects::ungated()), Ok(Outcome::Done));
    slice.assert_gone();
}

#[test]
fn a_frozen_scope_goes() {
    let _bus = bus();
    let slice = Slice::new("frozen", Qos::Burstable);
    let scope = slice.run("a", "exec sleep 1000");
    fs::write(scope.join("cgroup.freeze"), "1").unwrap();
    assert_eq!(slice.destroy(&Effects::ungated()), Ok(Outcome::Done));
    slice.assert_gone();
}

/// A runtime in a container, say.
#[test]
fn cgroups_that_a_container_made_in_its_scope_go() {
    let _bus = bus();
    let slice = Slice::new("nested", Qos::BestEffort);
    let scope = slice.run("a", "exec sleep 1000");
    fs::create_dir_all(scope.join("inner/innermost")).unwrap();
    fs::create_dir_all(slice.path().join("not-systemds")).unwrap();
    assert_eq!(slice.destroy(&Effects::ungated()), Ok(Outcome::Done));
    slice.assert_gone();
}

#[test]
fn a_directory_of_which_systemd_knows_no_unit_goes() {
    let _bus = bus();
    let slice = Slice::new("unknown", Qos::Burstable);
    systemctl(&["stop", slice.pod.unit()]);
    assert!(!slice.is_loaded());
    fs::create_dir_all(slice.path().join("cri-containerd-gone.scope")).unwrap();
    assert_eq!(slice.destroy(&Effects::ungated()), Ok(Outcome::Done));
    slice.assert_gone();
}

#[test]
fn a_pods_neighbours_and_the_classes_slices_stay() {
    let _bus = bus();
    let gone = Slice::new("shared", Qos::Burstable);
    let neighbour = gone
        .cgroups
        .pod_cgroups("/shared", Qos::Burstable, "neighbour")
        .unwrap()
        .remove(0);
    systemctl(&["start", neighbour.unit()]);
    assert_eq!(gone.destroy(&Effects::ungated()), Ok(Outcome::Done));
    gone.assert_gone();
    assert!(gone.cgroups.exists(&neighbour));
}

#[test]
fn without_a_bus_a_slice_is_kept_with_a_remedy_and_it_goes_once_the_bus_is_back() {
    let _alone = BUS.write().unwrap_or_else(PoisonError::into_inner);
    let slice = Slice::new("bus", Qos::Burstable);
    let effects = Effects::ungated();
    let destroy = || slice.cgroups.destroy(&slice.pod, &effects);
    // One runtime, and so one connection, for all of it.
    RUNTIME.block_on(async {
        assert_eq!(destroy().await, Ok(Outcome::Done));
        systemctl(&["start", slice.pod.unit()]);
        systemctl(&["restart", "dbus.service"]);
        assert_eq!(destroy().await, Ok(Outcome::Done), "it is connected anew");
        systemctl(&["start", slice.pod.unit()]);
        systemctl(&["stop", "dbus.service", "dbus.socket"]);
        let told = destroy().await.unwrap_err()[0].to_string();
        systemctl(&["start", "dbus.socket"]);
        assert!(
            told.contains("cannot stop slice") && told.contains("systemctl status dbus"),
            "{told}"
        );
        assert!(slice.path().is_dir(), "systemd would keep a unit without a cgroup");
        assert_eq!(destroy().await, Ok(Outcome::Done));
    });
    slice.assert_gone();
}

#[test]
fn a_dry_run_and_a_shut_gate_stop_nothing() {
    let _bus = bus();
    let slice = Slice::new("dry", Qos::Burstable);
    let scope = slice.run("a", "exec sleep 1000");
    let dry = Effects::new(true, Arc::new(|| Ok(())));
    assert_eq!(slice.destroy(&dry), Ok(Outcome::Withheld));
    let held = || EffectsBlocked {
        reason: "a kubelet is here".to_owned(),
    };
    let shut = Effects::new(false, Arc::new(move || Err(held())));
    assert!(slice.destroy(&shut).unwrap_err()[0].is_blocked());
    assert!(slice.is_loaded());
    assert!(!fs::read_to_string(scope.join("cgroup.procs")).unwrap().is_empty());
}
