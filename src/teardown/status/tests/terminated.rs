//! After the cleanup: all containers are terminated.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStatus, EphemeralContainer, Pod, PodCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::fixture::*;
use crate::teardown::status::StatusStage;

/// Exit code of each entry; `None` if it is not terminated.
fn ends(entries: Option<Vec<ContainerStatus>>) -> Vec<Option<i32>> {
    let end = |entry: &ContainerStatus| entry.state.as_ref()?.terminated.as_ref().map(|end| end.exit_code);
    entries.unwrap_or_default().iter().map(end).collect()
}

fn with_two_inits() -> Pod {
    with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_container("i1"), mk_container("i2"), mk_container("i3")]);
    })
}

#[test]
fn a_pod_that_never_started_fails_with_137() {
    let pod = with_status(mk_pod([mk_container("a")]), |status| {
        status.phase = Some("Pending".into());
    });
    let status = Case::new(pod, []).generate(StatusStage::Terminated);
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), None)
    );
    assert_eq!(ends(status.container_statuses), [Some(137)]);
}

#[test]
fn regular_containers_terminate_only_if_the_pod_was_initialized() {
    let proxy = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_sidecar("proxy")]);
    });
    let started = mk_entry("proxy", running_since(at(10)));
    let not_started = ContainerStatus {
        started: Some(false),
        ..started.clone()
    };
    let done = |code| mk_entry("i3", terminated(end_of("i3", code)));
    let again = ContainerStatus {
        last_state: Some(terminated(end_of("i3", 0))),
        ..mk_entry("i3", waiting(None))
    };
    let came_round = ContainerStatus {
        last_state: Some(terminated(end_of("a", 1))),
        ..mk_entry("a", waiting(None))
    };
    let cases = [
        ("no init status at all", with_two_inits(), None),
        (
            "the last init container failed",
            with_init_entry(with_two_inits(), done(1)),
            None,
        ),
        (
            "the last init container is done",
            with_init_entry(with_two_inits(), done(0)),
            Some(137),
        ),
        (
            "the last init container was done before",
            with_init_entry(with_two_inits(), again),
            Some(137),
        ),
        (
            "another init container is done",
            with_init_entry(with_two_inits(), mk_entry("i1", terminated(end_of("i1", 0)))),
            None,
        ),
        (
            "the sidecar started",
            with_init_entry(proxy.clone(), started),
            Some(137),
        ),
        (
            "the sidecar was not started yet",
            with_init_entry(proxy, not_started),
            None,
        ),
        (
            "a regular one ran before",
            with_entry(with_two_inits(), came_round),
            Some(137),
        ),
        (
            "a regular one waits",
            with_entry(with_two_inits(), mk_entry("a", waiting(None))),
            None,
        ),
    ];
    for (claim, pod, expected) in cases {
        let status = Case::new(pod, []).generate(StatusStage::Terminated);
        assert_eq!(ends(status.container_statuses), [expected], "{claim}");
        assert_eq!(status.phase.as_deref(), Some("Failed"), "{claim}");
    }
}

#[test]
fn an_init_container_that_succeeded_at_its_signal_has_not_initialized_the_pod() {
    // The delete request was 30 s before its deadline.
    let ended_at = |seconds| {
        let mut pod = with_two_inits();
        pod.metadata.deletion_grace_period_seconds = Some(30);
        let end = ContainerStateTerminated {
            finished_at: Some(Time(at(seconds))),
            ..end_of("i3", 0)
        };
        with_init_entry(pod, mk_entry("i3", terminated(end)))
    };
    for (seconds, expected) in [(869, Some(137)), (870, None), (871, None)] {
        let status = Case::new(ended_at(seconds), []).generate(StatusStage::Terminated);
        assert_eq!(ends(status.container_statuses), [expected], "ended at {seconds}");
    }
}

#[test]
fn exited_sidecar_keeps_the_pod_initialized() {
    let proxy = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_sidecar("proxy")]);
    });
    let proxy = with_init_entry(proxy, mk_entry("proxy", terminated(end_of("proxy", 0))));
    let initialized = |status, seconds| PodCondition {
        last_transition_time: Some(Time(at(seconds))),
        ..mk_condition("Initialized", status)
    };
    let cases = [
        (proxy.clone(), None),
        (with_condition(proxy.clone(), initialized("True", 899)), Some(137)),
        (with_condition(proxy.clone(), initialized("True", 901)), None),
        (with_condition(proxy, initialized("False", 5)), None),
    ];
    for (pod, expected) in cases {
        let status = Case::new(pod, []).generate(StatusStage::Terminated);
        assert_eq!(ends(status.container_statuses), [expected]);
    }
}

#[test]
fn pod_that_fails_as_unknown_keeps_its_unready_containers() {
    let pod = with_status(mk_pod([mk_container("a")]), |status| {
        status.phase = Some("Pending".into());
    });
    let status = Case::new(pod, []).generate(StatusStage::Terminated);
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    for kind in ["Ready", "ContainersReady"] {
        let conditions = status.conditions.as_deref().unwrap_or_default();
        let condition = conditions.iter().find(|condition| condition.type_ == kind).unwrap();
        assert_eq!(condition.status, "False");
        assert_eq!(condition.reason.as_deref(), Some("ContainersNotReady"));
        assert_eq!(
            condition.message.as_deref(),
            Some("containers with unready status: [a]")
        );
    }
}

#[test]
fn container_with_several_states_is_terminated_and_its_pod_unready() {
    let state = ContainerState {
        running: running_since(at(10)).running,
        waiting: waiting(None).waiting,
        terminated: Some(end_of("a", 0)),
    };
    let entry = ContainerStatus {
        ready: true,
        ..mk_entry("a", state)
    };
    let pod = with_entry(mk_pod([mk_container("a")]), entry);
    for stage in STAGES {
        let status = Case::new(pod.clone(), []).generate(stage);
        let entry = &status.container_statuses.as_ref().unwrap()[0];
        assert_eq!(entry.state, Some(terminated(end_of("a", 0))), "{stage:?}");
        assert!(!entry.ready, "{stage:?}");
        if stage != StatusStage::Terminating {
            assert_eq!(status.phase.as_deref(), Some("Succeeded"), "{stage:?}");
        }
        for kind in ["Ready", "ContainersReady"] {
            let conditions = status.conditions.as_deref().unwrap_or_default();
            let condition = conditions.iter().find(|condition| condition.type_ == kind).unwrap();
            assert_eq!(condition.status, "False", "{stage:?} {kind}");
        }
    }
}

#[test]
fn init_containers_terminate_up_to_the_last_started_and_at_least_the_first() {
    let cases = [
        ("none started", Case::new(with_two_inits(), []), [Some(137), None, None]),
        (
            "the second failed",
            Case::new(with_two_inits(), [exited("i2", 3)]),
            [Some(137), Some(3), None],
        ),
        (
            "the first succeeded",
            Case::new(with_two_inits(), [exited("i1", 0)]),
            [Some(0), None, None],
        ),
    ];
    for (claim, case, expected) in cases {
        assert_eq!(
            ends(case.generate(StatusStage::Terminated).init_container_statuses),
            expected,
            "{claim}"
        );
    }
}

#[test]
fn ephemeral_containers_are_unchanged() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.ephemeral_containers = Some(vec![EphemeralContainer {
            name: "debug".into(),
            ..Default::default()
        }]);
    });
    assert_eq!(
        ends(
            Case::new(pod, [])
                .generate(StatusStage::Terminated)
                .ephemeral_container_statuses
        ),
        [None]
    );
}

#[test]
fn known_success_is_kept() {
    let case = Case::new(mk_pod([mk_container("a")]), [exited("a", 0)]);
    assert_eq!(
        case.generate(StatusStage::Terminated),
        case.generate(StatusStage::Stopped)
    );
    assert_eq!(case.phase(StatusStage::Terminated), "Succeeded");
}

#[test]
fn config_source_annotation_of_an_api_pod_changes_nothing() {
    let mut pod = mk_pod([mk_container("a")]);
    pod.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    assert_eq!(
        Case::new(pod, [exited("a", 0)]).phase(StatusStage::Stopped),
        "Succeeded"
    );
}
