//! After clean-up: nothing stays undecided.

use k8s_openapi::api::core::v1::{ContainerStatus, EphemeralContainer, Pod};

use super::fixture::*;
use crate::report::status::Stage;

/// Exit code of each entry, `None` where it has not ended.
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
    let status = Case::new(pod, []).generate(Stage::Terminated);
    assert_eq!(
        (status.phase.as_deref(), status.reason.as_deref()),
        (Some("Failed"), None)
    );
    assert_eq!(ends(status.container_statuses), [Some(137)]);
}

#[test]
fn regular_containers_end_only_if_the_pod_was_initialized() {
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
        let status = Case::new(pod, []).generate(Stage::Terminated);
        assert_eq!(ends(status.container_statuses), [expected], "{claim}");
        assert_eq!(status.phase.as_deref(), Some("Failed"), "{claim}");
    }
}

#[test]
fn init_containers_end_up_to_the_last_that_shows_a_start_and_at_least_the_first() {
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
            ends(case.generate(Stage::Terminated).init_container_statuses),
            expected,
            "{claim}"
        );
    }
}

#[test]
fn ephemeral_containers_stay_as_they_are() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.ephemeral_containers = Some(vec![EphemeralContainer {
            name: "debug".into(),
            ..Default::default()
        }]);
    });
    assert_eq!(
        ends(
            Case::new(pod, [])
                .generate(Stage::Terminated)
                .ephemeral_container_statuses
        ),
        [None]
    );
}

#[test]
fn a_success_that_is_known_stays_one() {
    let case = Case::new(mk_pod([mk_container("a")]), [exited("a", 0)]);
    assert_eq!(case.generate(Stage::Terminated), case.generate(Stage::Stopped));
    assert_eq!(case.phase(Stage::Terminated), "Succeeded");
}

#[test]
fn a_static_looking_annotation_does_not_keep_an_api_pod_from_its_end() {
    let mut pod = mk_pod([mk_container("a")]);
    pod.metadata.annotations = Some([("kubernetes.io/config.source".to_owned(), "file".to_owned())].into());
    assert_eq!(Case::new(pod, [exited("a", 0)]).phase(Stage::Stopped), "Succeeded");
}
