//! Tests that need a machine with v1 beside the unified hierarchy.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use pod_teardown::node::{
    cgroups::HierarchyKind,
    effects::{Effects, EffectsBlocked, Outcome},
    fault::Fault,
};

use tokio::time::Instant;

use super::{Bomb, Pod, bomb::LIFETIME, destroy_in, hide, only, pause};
use crate::space::{block_on, in_own_namespace};

#[test]
fn empty_cgroup_is_removed_from_every_hierarchy() {
    let pod = Pod::new();
    assert!(pod.of_kind(HierarchyKind::V2, "").exists() && pod.of_kind(HierarchyKind::Freezer, "").exists());
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_removed();
}

#[test]
fn cgroup_in_a_single_hierarchy_is_found_and_removed() {
    let pod = Pod::new();
    for path in pod.paths("") {
        if path != pod.of_kind(HierarchyKind::V2, "") {
            fs::remove_dir(path).unwrap();
        }
    }
    assert!(pod.cgroups.exists(&pod.name));
    assert_eq!(pod.destroy(), Ok(Outcome::Done));
    pod.assert_removed();
}

#[test]
fn forking_process_does_not_escape_without_unified_hierarchy() {
    for bomb in [Bomb::Fills, Bomb::Flees] {
        let mut pod = Pod::new();
        pod.bomb("container", bomb);
        let destroyed = destroy_in(&only("cgroup"), &pod.name);
        assert_eq!(destroyed, Ok(Outcome::Done), "{bomb:?}");
        assert_eq!(pod.processes(), Vec::<i32>::new());
        assert_eq!(pod.destroy(), Ok(Outcome::Done), "the unified directory was left");
        pod.assert_removed();
    }
}

/// Allows this many effects.
fn at_most(allowed: usize) -> Effects {
    let asked = AtomicUsize::new(0);
    let gate = move || {
        if asked.fetch_add(1, Ordering::SeqCst) < allowed {
            return Ok(());
        }
        Err(EffectsBlocked {
            reason: "enough".to_owned(),
        })
    };
    Effects::new(Arc::new(gate))
}

/// Without freezing, some processes are always left: they forked while the others were killed.
#[test]
fn processes_are_frozen_before_they_are_killed_one_by_one() {
    in_own_namespace(|space| {
        for (file_system, bomb) in [
            ("cgroup", Bomb::Fills),
            ("cgroup", Bomb::Flees),
            ("cgroup2", Bomb::Fills),
            ("cgroup2", Bomb::Flees),
        ] {
            let mut pod = Pod::new();
            pod.bomb("container", bomb);
            hide(&pod.of_kind(HierarchyKind::V2, "cgroup.kill"), &space.outside);
            let cgroups = only(file_system);
            // One failing attempt to remove it from each hierarchy, and one kill in the first: before and after the freeze.
            let effects = at_most(cgroups.hierarchies().len() + 2);
            let held = block_on(cgroups.destroy(&pod.name, &effects)).unwrap_err();
            assert!(held.iter().any(Fault::is_blocked), "{held:?}");
            assert!(
                is_emptied(&pod),
                "{file_system} {bomb:?}: {} are left",
                pod.processes().len()
            );
            // No other process could have thawed it later.
            let read = |kind, file| fs::read_to_string(pod.of_kind(kind, file)).unwrap();
            assert_eq!(read(HierarchyKind::Freezer, "freezer.state"), "THAWED\n");
            assert_eq!(read(HierarchyKind::V2, "cgroup.freeze"), "0\n");
        }
    });
}

/// Killed processes need a moment to exit, and three hundred of them share the CPUs. Other processes would exit later by
/// themselves.
fn is_emptied(pod: &Pod) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(LIFETIME / 3) {
        pause();
        if pod.processes().is_empty() {
            return true;
        }
    }
    false
}

/// A pod with a process that the freezer has frozen at two levels.
fn frozen() -> Pod {
    let mut pod = Pod::new();
    pod.run("container", "exec sleep 1000");
    for below in ["", "container"] {
        let state = pod.of_kind(HierarchyKind::Freezer, below).join("freezer.state");
        fs::write(&state, "FROZEN").unwrap();
        while fs::read_to_string(&state).unwrap() != "FROZEN\n" {
            pause();
        }
    }
    pod
}

#[test]
fn frozen_processes_are_thawed() {
    let pod = frozen();
    let states = || {
        ["", "container"].map(|below| {
            let file = pod.of_kind(HierarchyKind::Freezer, below).join("freezer.state");
            fs::read_to_string(file).unwrap()
        })
    };
    assert_eq!(states(), ["FROZEN\n"; 2]);
    assert_eq!(
        pod.cgroups.thaw(&pod.name, &Effects::ungated()),
        (Outcome::Done, vec![])
    );
    assert_eq!(
        (states(), pod.processes().len()),
        (["THAWED\n".to_owned(), "THAWED\n".to_owned()], 1)
    );
    assert_eq!(
        pod.cgroups.thaw(&pod.name, &Effects::ungated()),
        (Outcome::Nothing, vec![])
    );
}

#[test]
fn frozen_processes_are_killed_and_thawed() {
    for without in [false, true] {
        let pod = frozen();
        if without {
            let destroyed = destroy_in(&only("cgroup"), &pod.name);
            assert_eq!((destroyed, pod.processes()), (Ok(Outcome::Done), vec![]));
        }
        assert_eq!(pod.destroy(), Ok(Outcome::Done));
        pod.assert_removed();
    }
}
