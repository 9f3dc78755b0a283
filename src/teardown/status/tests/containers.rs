//! Container statuses, from the newest instances and the API.

use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ContainerStatus, EphemeralContainer, Probe, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::fixture::*;
use crate::{
    node::cri::types::{Container, ContainerState as RuntimeState},
    teardown::status::StatusStage,
};
const STOPPED: [StatusStage; 2] = [StatusStage::Stopped, StatusStage::Terminated];

fn names(entries: &[ContainerStatus]) -> Vec<&str> {
    entries.iter().map(|entry| entry.name.as_str()).collect()
}

fn unknown_end(entry: &ContainerStatus) -> Option<(i32, Option<&str>, Option<&Time>)> {
    let end = entry.state.as_ref()?.terminated.as_ref()?;
    Some((
        end.exit_code,
        end.reason.as_deref(),
        end.started_at.as_ref().or(end.finished_at.as_ref()),
    ))
}

#[test]
fn running_container_shows_its_start_and_keeps_its_readiness() {
    let previous = mk_entry("a", running_since(at(10)));
    let pod = with_entry(mk_pod([mk_container("a")]), previous.clone());
    assert_eq!(Case::new(pod, [running("a")]).entry(StatusStage::Terminating), previous);
}

#[test]
fn unready_container_stays_unready() {
    let previous = ContainerStatus {
        ready: false,
        ..mk_entry("a", running_since(at(10)))
    };
    let pod = with_entry(mk_pod([mk_container("a")]), previous.clone());
    assert_eq!(Case::new(pod, [running("a")]).entry(StatusStage::Terminating), previous);
}

#[test]
fn unreported_run_is_started_and_ready_unless_it_has_a_probe() {
    let probe = Some(Probe::default());
    let cases = [
        ("no probes", mk_container("a"), Some(true), true),
        (
            "readiness probe",
            Spec {
                readiness_probe: probe.clone(),
                ..mk_container("a")
            },
            Some(true),
            false,
        ),
        (
            "startup probe",
            Spec {
                startup_probe: probe,
                ..mk_container("a")
            },
            Some(false),
            false,
        ),
    ];
    for (claim, spec, started, ready) in cases {
        let entry = Case::new(mk_pod([spec]), [running("a")]).entry(StatusStage::Terminating);
        assert_eq!((entry.started, entry.ready), (started, ready), "{claim}");
    }
}

#[test]
fn created_container_waits_without_a_reason() {
    let case = Case::new(mk_pod([mk_container("a")]), [mk_instance("a", RuntimeState::Created)]);
    let expected = mk_entry("a", waiting(None));
    for stage in [StatusStage::Terminating, StatusStage::Stopped] {
        assert_eq!(case.entry(stage), expected);
    }
}

#[test]
fn exited_container_shows_its_exit_code_and_times() {
    let pod = with_entry(mk_pod([mk_container("a")]), mk_entry("a", running_since(at(10))));
    for stage in STAGES {
        let entry = Case::new(pod.clone(), [exited("a", 7)]).entry(stage);
        assert_eq!(entry, mk_entry("a", terminated(end_of("a", 7))));
    }
}

#[test]
fn exit_without_a_start_shows_1970_like_the_kubelet() {
    let never_started = Container {
        started_at: None,
        reason: "StartError".into(),
        ..exited("a", 128)
    };
    let entry = Case::new(mk_pod([mk_container("a")]), [never_started]).entry(StatusStage::Stopped);
    let end = ContainerStateTerminated {
        started_at: Some(Time(jiff::Timestamp::UNIX_EPOCH)),
        reason: Some("StartError".into()),
        ..end_of("a", 128)
    };
    assert_eq!(entry.state, Some(terminated(end)));
}

#[test]
fn exit_in_a_crash_loop_replaces_the_waiting_state() {
    let mut previous = mk_entry("a", waiting(Some("CrashLoopBackOff")));
    previous.last_state = Some(terminated(end_of("a", 1)));
    let pod = not_deleted(with_entry(mk_pod([mk_container("a")]), previous));
    let entry = Case::new(pod.clone(), [exited("a", 1)]).entry(StatusStage::Stopped);
    assert_eq!(entry.state, Some(terminated(end_of("a", 1))));
    let forgotten = Case::new(pod, []);
    assert_eq!(
        forgotten.entry(StatusStage::Terminating).state,
        Some(waiting(Some("CrashLoopBackOff")))
    );
    for stage in STOPPED {
        let entry = forgotten.entry(stage);
        assert_eq!(
            (entry.state, entry.last_state),
            (Some(terminated(end_of("a", 1))), None),
            "{stage:?}"
        );
    }
}

#[test]
fn the_second_newest_instance_is_the_last_state() {
    let newest = Container {
        id: "a-1".into(),
        restart_count: 1,
        ..running("a")
    };
    let case = Case::new(mk_pod([mk_container("a")]), [newest, exited("a", 3), exited("a", 4)]);
    let entry = case.entry(StatusStage::Terminating);
    assert_eq!(
        (entry.last_state, entry.restart_count),
        (Some(terminated(end_of("a", 3))), 1)
    );
}

#[test]
fn without_a_second_instance_the_last_state_comes_from_the_api() {
    let before = terminated(end_of("a", 9));
    let always = |pod| with_spec(pod, |spec| spec.restart_policy = Some("Always".into()));
    let mk = |entry| always(with_entry(mk_pod([mk_container("a")]), entry));
    let same_run = ContainerStatus {
        last_state: Some(before.clone()),
        ..mk_entry("a", running_since(at(10)))
    };
    let other_run = ContainerStatus {
        container_id: Some("containerd://gone".into()),
        ..mk_entry(
            "a",
            terminated(ContainerStateTerminated {
                exit_code: 5,
                ..Default::default()
            }),
        )
    };
    let cases = [
        ("same run", mk(same_run), Some(before)),
        ("another run that ended", mk(other_run.clone()), other_run.state),
        ("nothing known", mk(mk_entry("a", running_since(at(10)))), None),
    ];
    for (claim, pod, expected) in cases {
        assert_eq!(
            Case::new(pod, [running("a")])
                .entry(StatusStage::Terminating)
                .last_state,
            expected,
            "{claim}"
        );
    }
}

#[test]
fn exit_code_of_an_earlier_run_is_not_used_for_a_lost_one() {
    let lost = ContainerStatus {
        container_id: Some("containerd://a-1".into()),
        restart_count: 1,
        ..mk_entry("a", running_since(at(30)))
    };
    let case = Case::new(with_entry(mk_pod([mk_container("a")]), lost), [exited("a", 0)]);
    for stage in STOPPED {
        assert_eq!(
            unknown_end(&case.entry(stage)),
            Some((137, Some("ContainerStatusUnknown"), None)),
            "{stage:?}"
        );
        assert_eq!(case.phase(stage), "Failed");
    }
}

#[test]
fn the_restart_count_never_falls() {
    let previous = ContainerStatus {
        restart_count: 4,
        ..mk_entry("a", running_since(at(10)))
    };
    let pod = with_entry(mk_pod([mk_container("a")]), previous);
    for (instance, expected) in [
        (exited("a", 0), 4),
        (
            Container {
                restart_count: 6,
                ..exited("a", 0)
            },
            6,
        ),
    ] {
        assert_eq!(
            Case::new(pod.clone(), [instance])
                .entry(StatusStage::Stopped)
                .restart_count,
            expected
        );
    }
    assert_eq!(Case::new(pod, []).entry(StatusStage::Stopped).restart_count, 4);
}

#[test]
fn unknown_container_counts_as_running_before_the_stop_and_as_lost_after_it() {
    let previous = ContainerStatus {
        restart_count: 2,
        ..mk_entry("a", running_since(at(10)))
    };
    let pod = with_entry(mk_pod([mk_container("a")]), previous.clone());
    let case = Case::new(pod, [mk_instance("a", RuntimeState::Unknown)]);
    assert_eq!(case.entry(StatusStage::Terminating), previous);
    for stage in STOPPED {
        let entry = case.entry(stage);
        assert_eq!(
            unknown_end(&entry),
            Some((137, Some("ContainerStatusUnknown"), None)),
            "{stage:?}"
        );
        assert_eq!(
            (entry.restart_count, entry.container_id),
            (2, previous.container_id.clone()),
            "{stage:?}"
        );
        assert_eq!(case.phase(stage), "Failed");
    }
}

#[test]
fn exit_in_the_api_survives_a_runtime_that_has_forgotten_it() {
    let previous = mk_entry("a", terminated(end_of("a", 0)));
    let pod = with_entry(mk_pod([mk_container("a")]), previous.clone());
    for instances in [
        vec![],
        vec![mk_instance("a", RuntimeState::Unknown)],
        vec![mk_instance("a", RuntimeState::Created)],
    ] {
        for stage in STAGES {
            assert_eq!(Case::new(pod.clone(), instances.clone()).entry(stage), previous);
        }
        assert_eq!(
            Case::new(pod.clone(), instances).phase(StatusStage::Stopped),
            "Succeeded"
        );
    }
}

#[test]
fn vanished_container_keeps_its_ids_and_becomes_unknown() {
    let previous = mk_entry("a", running_since(at(10)));
    let pod = with_entry(mk_pod([mk_container("a")]), previous.clone());
    for deleted in [true, false] {
        let pod = if deleted { pod.clone() } else { not_deleted(pod.clone()) };
        let case = Case::new(pod, []);
        let terminating = case.entry(StatusStage::Terminating);
        assert_eq!(terminating.state, Some(waiting(Some("ContainerCreating"))));
        let last = terminating
            .last_state
            .and_then(|last| last.terminated)
            .map(|end| end.exit_code);
        assert_eq!((last, terminating.restart_count), (Some(137), 0));
        for stage in STOPPED {
            let entry = case.entry(stage);
            assert_eq!(unknown_end(&entry), Some((137, Some("ContainerStatusUnknown"), None)));
            assert_eq!(
                (entry.container_id, entry.image_id, entry.restart_count),
                (previous.container_id.clone(), previous.image_id.clone(), 0)
            );
        }
        assert_eq!(case.phase(StatusStage::Stopped), "Failed");
    }
}

#[test]
fn container_that_was_never_created_waits_with_the_kubelets_reason() {
    let pod = mk_pod([mk_container("a")]);
    let with_init = with_spec(pod.clone(), |spec| {
        spec.init_containers = Some(vec![mk_container("init")]);
    });
    for (pod, reason) in [(pod, "ContainerCreating"), (with_init, "PodInitializing")] {
        let expected = ContainerStatus {
            name: "a".into(),
            image: "a:1".into(),
            started: Some(false),
            state: Some(waiting(Some(reason))),
            ..Default::default()
        };
        assert_eq!(Case::new(pod, []).entry(StatusStage::Terminating), expected);
    }
}

#[test]
fn a_failed_start_keeps_its_reason_unless_the_pod_is_deleted() {
    let previous = ContainerStatus {
        container_id: None,
        ..mk_entry("a", waiting(Some("ImagePullBackOff")))
    };
    let pod = with_entry(mk_pod([mk_container("a")]), previous);
    for (pod, reason) in [
        (not_deleted(pod.clone()), "ImagePullBackOff"),
        (pod, "ContainerCreating"),
    ] {
        assert_eq!(
            Case::new(pod, []).entry(StatusStage::Stopped).state,
            Some(waiting(Some(reason)))
        );
    }
}

#[test]
fn an_init_container_without_a_trace_succeeded_if_a_regular_one_was_created() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_container("init"), mk_sidecar("proxy")]);
    });
    let state = |case: &Case| -> Vec<Option<i32>> {
        let entries = case.generate(StatusStage::Stopped).init_container_statuses.unwrap();
        entries
            .iter()
            .map(|entry| entry.state.as_ref()?.terminated.as_ref().map(|end| end.exit_code))
            .collect()
    };
    assert_eq!(
        state(&Case::new(pod.clone(), [exited("a", 1)])),
        [Some(0), None],
        "a sidecar does not end by itself"
    );
    assert_eq!(state(&Case::new(pod, [])), [None, None]);
}

#[test]
fn an_init_container_is_ready_once_it_is_done() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_container("init")]);
    });
    for (instance, started, ready) in [
        (running("init"), true, false),
        (exited("init", 0), false, true),
        (exited("init", 1), false, false),
    ] {
        let entry = Case::new(pod.clone(), [instance]).init_entry(StatusStage::Terminating);
        assert_eq!((entry.started, entry.ready), (Some(started), ready));
    }
}

#[test]
fn illegal_transition_keeps_its_entry_and_changes_the_others() {
    let ended = mk_entry("a", terminated(end_of("a", 0)));
    let pod = with_entry(mk_pod([mk_container("a"), mk_container("b")]), ended.clone());
    let revived = Container {
        id: "a-1".into(),
        restart_count: 1,
        ..mk_instance("a", RuntimeState::Created)
    };
    let statuses = |policy: &str| {
        let pod = with_spec(pod.clone(), |spec| spec.restart_policy = Some(policy.into()));
        let case = Case::new(pod, [revived.clone(), exited("b", 1)]);
        case.generate(StatusStage::Stopped).container_statuses.unwrap()
    };
    let b = mk_entry("b", terminated(end_of("b", 1)));
    for policy in ["Never", "OnFailure"] {
        assert_eq!(statuses(policy), [ended.clone(), b.clone()], "{policy}");
    }
    let restarted = statuses("Always");
    assert_eq!((&restarted[0].state, &restarted[1]), (&Some(waiting(None)), &b));
}

#[test]
fn foreign_fields_of_an_entry_are_kept() {
    let previous = ContainerStatus {
        resources: Some(Default::default()),
        allocated_resources: Some([("cpu".to_owned(), Default::default())].into()),
        allocated_resources_status: Some(vec![Default::default()]),
        volume_mounts: Some(vec![VolumeMountStatus {
            name: "data".into(),
            ..Default::default()
        }]),
        user: Some(Default::default()),
        stop_signal: Some("SIGUSR1".into()),
        ..mk_entry("a", running_since(at(10)))
    };
    let pod = with_entry(mk_pod([mk_container("a")]), previous.clone());
    for (instances, state) in [
        (vec![exited("a", 1)], Some(terminated(end_of("a", 1)))),
        (vec![], Case::new(pod.clone(), []).entry(StatusStage::Stopped).state),
    ] {
        let expected = ContainerStatus {
            ready: false,
            started: Some(false),
            state,
            ..previous.clone()
        };
        assert_eq!(Case::new(pod.clone(), instances).entry(StatusStage::Stopped), expected);
    }
}

#[test]
fn entries_are_sorted_by_name_and_init_ones_by_spec() {
    let pod = with_spec(
        mk_pod([mk_container("b"), mk_container("a"), mk_container("b")]),
        |spec| {
            spec.init_containers = Some(vec![mk_container("z"), mk_container("y")]);
            let ephemeral = |name: &str| EphemeralContainer {
                name: name.into(),
                ..Default::default()
            };
            spec.ephemeral_containers = Some(vec![ephemeral("f"), ephemeral("e")]);
        },
    );
    let status = Case::new(with_entry(pod, mk_entry("gone", waiting(None))), []).generate(StatusStage::Stopped);
    assert_eq!(
        names(&status.container_statuses.unwrap()),
        ["a", "b"],
        "twice named is once reported"
    );
    assert_eq!(names(&status.init_container_statuses.unwrap()), ["z", "y"]);
    assert_eq!(names(&status.ephemeral_container_statuses.unwrap()), ["e", "f"]);
}

#[test]
fn ephemeral_container_has_no_probes_and_does_not_affect_the_phase() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.ephemeral_containers = Some(vec![EphemeralContainer {
            name: "debug".into(),
            ..Default::default()
        }]);
    });
    let status = Case::new(pod, [exited("a", 0), exited("debug", 1)]).generate(StatusStage::Stopped);
    let expected = ContainerStatus {
        started: None,
        ..mk_entry("debug", terminated(end_of("debug", 1)))
    };
    assert_eq!(status.ephemeral_container_statuses, Some(vec![expected]));
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
}

#[test]
fn ephemeral_container_never_restarts_and_a_sidecar_always_may() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.restart_policy = Some("Always".into());
        spec.init_containers = Some(vec![mk_sidecar("s")]);
        spec.ephemeral_containers = Some(vec![EphemeralContainer {
            name: "e".into(),
            ..Default::default()
        }]);
    });
    let ended = |name: &str| mk_entry(name, terminated(end_of(name, 0)));
    let pod = with_status(with_init_entry(pod, ended("s")), |status| {
        status.ephemeral_container_statuses = Some(vec![ContainerStatus {
            started: None,
            ..ended("e")
        }]);
    });
    let again = |name: &str| Container {
        id: format!("{name}-1"),
        ..running(name)
    };
    let status = Case::new(pod.clone(), [again("s"), again("e")]).generate(StatusStage::Terminating);
    assert_eq!(
        status.ephemeral_container_statuses,
        pod.status.unwrap().ephemeral_container_statuses
    );
    let sidecar = &status.init_container_statuses.unwrap()[0];
    assert_eq!(sidecar.state, Some(running_since(at(10))));
    assert_eq!(sidecar.last_state, ended("s").state);
}

type Spec = k8s_openapi::api::core::v1::Container;
