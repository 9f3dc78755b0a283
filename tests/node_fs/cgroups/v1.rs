//! Tests that need a machine with v1 beside the unified hierarchy.

use std::fs;

use pod_teardown::node::{
    cgroups::HierarchyKind,
    effects::{Effects, Outcome},
};

use super::{Pod, destroy_in, only, pause};

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
