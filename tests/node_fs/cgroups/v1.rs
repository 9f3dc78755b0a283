//! What only a machine with version 1 beside the unified hierarchy can show.

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

use super::{Bomb, Pod, bomb::LIFE, hide, nap, only};
use crate::space::{block_on, in_own_namespace};

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
fn a_process_that_forks_does_not_escape_where_there_is_no_unified_hierarchy() {
    for bomb in [Bomb::Fills, Bomb::Flees] {
        let mut pod = Pod::new();
        pod.bomb("container", bomb);
        let destroyed = block_on(only("cgroup").destroy(&pod.name, &Effects::ungated()));
        assert_eq!(destroyed, Ok(Outcome::Done), "{bomb:?}");
        assert_eq!(pod.processes(), Vec::<i32>::new());
        assert_eq!(pod.destroy(), Ok(Outcome::Done), "the unified directory was left");
        pod.assert_gone();
    }
}

/// Effects of which so many are allowed.
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
    Effects::new(false, Arc::new(gate))
}

/// Without freezing some are always left, which have forked while the others were killed.
#[test]
fn whoever_is_killed_without_the_file_for_it_is_frozen_first_so_that_one_time_is_enough() {
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
            // One attempt to remove it from each, which is in vain, and one to kill in the first.
            let effects = at_most(cgroups.hierarchies().len() + 1);
            let held = block_on(cgroups.destroy(&pod.name, &effects)).unwrap_err();
            assert!(held.iter().any(Fault::is_blocked), "{held:?}");
            assert!(
                is_emptied(&pod),
                "{file_system} {bomb:?}: {} are left",
                pod.processes().len()
            );
            // Nobody could have thawed it later.
            let read = |kind, file| fs::read_to_string(pod.of_kind(kind, file)).unwrap();
            assert_eq!(read(HierarchyKind::Freezer, "freezer.state"), "THAWED\n");
            assert_eq!(read(HierarchyKind::V2, "cgroup.freeze"), "0\n");
        }
    });
}

/// Whoever was killed needs a moment, and three hundred who die at the same time share the processors. Whoever was not would
/// end by himself later.
fn is_emptied(pod: &Pod) -> bool {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(LIFE / 3) {
        nap();
        if pod.processes().is_empty() {
            return true;
        }
    }
    false
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
fn frozen_processes_are_killed_and_thawed() {
    for without in [false, true] {
        let pod = frozen();
        if without {
            let destroyed = block_on(only("cgroup").destroy(&pod.name, &Effects::ungated()));
            assert_eq!((destroyed, pod.processes()), (Ok(Outcome::Done), vec![]));
        }
        assert_eq!(pod.destroy(), Ok(Outcome::Done));
        pod.assert_gone();
    }
}
