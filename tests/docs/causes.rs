//! The table of all causes that `why` names, each with the test that shows its text and remedy.

use std::{
    fs,
    path::{Path, PathBuf},
};

use syn::Item;

use crate::pages::root;

/// What a test of a cause has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parts {
    /// Real mounts, processes and cgroups, a real runtime or kubelet.
    Real,
    /// A scripted runtime and the API server in memory.
    Scripted,
    /// Facts alone.
    Facts,
}

use Parts::{Facts, Real, Scripted};

const BESIDE_KUBELET: &str = "why_and_plan_beside_a_living_kubelet_name_what_holds_each_pod_and_touch_nothing";
const FACTS: &str = "causes_follow_from_facts";
const CLUSTER: &str = "causes_follow_from_the_pod_its_node_and_its_events";
const NO_REPORT: &str = "node_is_unreachable_if_its_kubelet_does_not_report_and_no_agent_is_active";
const PAUSED: &str = "why_names_what_is_left_of_a_pod_beside_a_paused_agent";
const WAITS: &str = "why_names_what_a_termination_waits_for";
const NETWORK: &str = "sandbox_is_retried_until_its_network_configuration_is_back";

/// By variant of `CauseKind`, in its order.
const CAUSES: [(&str, Parts, &str); 39] = [
    (
        "StepFailed",
        Real,
        "why_names_the_busy_mount_and_the_container_that_holds_it",
    ),
    ("NotDeleted", Real, BESIDE_KUBELET),
    ("EndedNotDeleted", Real, PAUSED),
    ("MirrorPod", Facts, FACTS),
    (
        "KubeletTerminates",
        Real,
        "running_kubelet_blocks_all_effects_until_it_exits",
    ),
    ("AgentBlocked", Facts, FACTS),
    ("AgentPaused", Real, PAUSED),
    (
        "ApiServerUnreachable",
        Real,
        "deletion_during_an_api_outage_is_found_after_it",
    ),
    ("NodeUnreachable", Facts, NO_REPORT),
    ("NodeMissing", Facts, NO_REPORT),
    ("NodeNotReady", Facts, CLUSTER),
    (
        "Reported",
        Scripted,
        "plugin_shows_nodes_and_why_a_pod_is_blocked_and_writes_nothing",
    ),
    ("GracePeriod", Real, WAITS),
    ("PreStopHook", Real, WAITS),
    ("SidecarWaits", Real, WAITS),
    ("SigtermNotHandled", Real, BESIDE_KUBELET),
    ("Frozen", Real, BESIDE_KUBELET),
    (
        "FileSystemFrozen",
        Real,
        "frozen_file_system_is_found_and_the_named_command_ends_the_wait",
    ),
    (
        "CgroupCovered",
        Real,
        "mount_of_another_cgroup_is_named_and_no_process_in_it_is_killed",
    ),
    ("Uninterruptible", Real, "why_names_a_process_that_waits_in_the_kernel"),
    (
        "StillRuns",
        Real,
        "container_is_killed_when_the_program_of_the_runtime_is_missing",
    ),
    (
        "ShimStopped",
        Real,
        "container_below_a_stopped_shim_is_killed_and_its_pod_goes",
    ),
    ("ContainerUnknown", Facts, FACTS),
    ("ProcessesLeft", Real, PAUSED),
    ("RuntimeNotReady", Real, NETWORK),
    ("RuntimeUnreachable", Real, PAUSED),
    (
        "SandboxNotStopped",
        Real,
        "process_of_a_sandbox_outside_of_its_cgroup_is_killed",
    ),
    ("MountBusy", Real, BESIDE_KUBELET),
    ("MountLeft", Real, PAUSED),
    (
        "MountHidden",
        Real,
        "second_mount_of_the_kubelets_directory_is_removed_by_the_named_command_beside_the_agent",
    ),
    ("ServerMount", Facts, FACTS),
    ("DriverMissing", Real, BESIDE_KUBELET),
    ("VolumeDirectoriesLeft", Real, PAUSED),
    ("CgroupsLeft", Real, PAUSED),
    ("PhaseNotTerminal", Real, PAUSED),
    ("FinalDeletePending", Real, PAUSED),
    ("Finalizer", Real, BESIDE_KUBELET),
    (
        "Unknown",
        Scripted,
        "silent_runtime_and_api_server_leave_an_answer_with_what_is_unknown",
    ),
    ("NothingFound", Facts, FACTS),
];

#[test]
fn each_cause_of_why_has_a_test_of_its_text_and_remedy() {
    let file = syn::parse_file(&read(&root().join("src/explanation/cause/kind.rs"))).unwrap();
    let causes = file.items.into_iter().find_map(|item| match item {
        Item::Enum(item) if item.ident == "CauseKind" => Some(item.variants),
        _ => None,
    });
    let causes: Vec<_> = causes
        .unwrap()
        .iter()
        .map(|variant| variant.ident.to_string())
        .collect();
    assert_eq!(
        CAUSES.map(|(cause, ..)| cause.to_owned()).to_vec(),
        causes,
        "the table has each cause"
    );

    let mut sources = Vec::new();
    for dir in ["src", "tests"] {
        add_sources(&root().join(dir), &mut sources);
    }
    let texts: Vec<_> = sources.iter().map(|path| (path, read(path))).collect();
    let is_real = |path: &Path| {
        let below = path.strip_prefix(root().join("tests")).unwrap_or(Path::new(""));
        let first = below.iter().next().unwrap_or_default().to_string_lossy();
        first.starts_with("node_") || first.starts_with("cluster_") || first == "teardown"
    };
    for (cause, parts, test) in CAUSES {
        let found = texts.iter().find(|(_, text)| text.contains(&format!("fn {test}(")));
        let (path, _) = found.unwrap_or_else(|| panic!("{cause}: there is no test {test}"));
        assert_eq!(parts == Real, is_real(path), "{cause}: {}", path.display());
        assert_eq!(
            parts == Facts,
            path.starts_with(root().join("src")),
            "{cause}: {}",
            path.display()
        );
    }
}

fn add_sources(dir: &Path, to: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            add_sources(&path, to);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            to.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}
