//! The phase from the containers, and what overrules it.

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::fixture::*;
use crate::{
    model::termination::Eviction,
    node::cri::types::{Container, ContainerState as RuntimeState},
    teardown::status::StatusStage,
};

/// Phase, reason and message.
fn verdict(status: &PodStatus) -> [Option<&str>; 3] {
    [
        status.phase.as_deref(),
        status.reason.as_deref(),
        status.message.as_deref(),
    ]
}

#[test]
fn containers_decide_the_phase_after_their_stop_and_the_api_before() {
    let created = |name: &str| mk_instance(name, RuntimeState::Created);
    let cases = [
        ("both run", vec![running("a"), running("b")], "Running"),
        ("one runs", vec![running("a"), exited("b", 1)], "Running"),
        ("one was never started", vec![exited("a", 0), created("b")], "Pending"),
        ("all succeeded", vec![exited("a", 0), exited("b", 0)], "Succeeded"),
        ("one failed", vec![exited("a", 0), exited("b", 3)], "Failed"),
    ];
    for (claim, instances, stopped) in cases {
        for policy in ["Never", "Always", "OnFailure"] {
            let pod = mk_pod([mk_container("a"), mk_container("b")]);
            let pod = with_spec(pod, |spec| spec.restart_policy = Some(policy.into()));
            let case = Case::new(pod, instances.clone());
            assert_eq!(case.phase(StatusStage::Terminating), "Running", "{claim} {policy}");
            assert_eq!(case.phase(StatusStage::Stopped), stopped, "{claim} {policy}");
        }
    }
}

#[test]
fn running_container_shows_that_the_pod_is_not_stopped() {
    let pod = mk_pod([mk_container("a"), mk_container("b")]);
    let mut case = Case::new(pod, [running("a"), exited("b", 1)]);
    case.eviction = Some(evicted());
    for stage in STAGES {
        assert_eq!(
            case.generate(stage),
            case.generate(StatusStage::Terminating),
            "{stage:?}"
        );
        assert_eq!(case.phase(stage), "Running", "{stage:?}");
    }
}

#[test]
fn init_containers_decide_before_regular_ones_and_exited_sidecars_never() {
    let cases = [
        ("failed", mk_container("init"), vec![exited("init", 2)], "Failed"),
        ("none in the runtime", mk_container("init"), vec![], "Pending"),
        (
            "all succeeded",
            mk_container("init"),
            vec![exited("a", 0), exited("init", 0)],
            "Succeeded",
        ),
        (
            "a sidecar was killed",
            mk_sidecar("init"),
            vec![exited("a", 0), exited("init", 137)],
            "Succeeded",
        ),
    ];
    for (claim, init, instances, expected) in cases {
        let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
            spec.init_containers = Some(vec![init]);
        });
        assert_eq!(
            Case::new(pod, instances).phase(StatusStage::Stopped),
            expected,
            "{claim}"
        );
    }
}

#[test]
fn evicted_pod_stays_failed_regardless_of_exit_codes() {
    let bare = Eviction {
        reason: String::new(),
        message: String::new(),
        disruption: None,
    };
    let words = ["Failed", "Evicted", "The node was low on memory"].map(Some);
    for (eviction, expected) in [(evicted(), words), (bare, [Some("Failed"), None, None])] {
        for exit_code in [0, 1] {
            let mut case = Case::new(mk_pod([mk_container("a")]), [exited("a", exit_code)]);
            case.eviction = Some(eviction.clone());
            for stage in [StatusStage::Stopped, StatusStage::Terminated] {
                assert_eq!(verdict(&case.generate(stage)), expected);
            }
        }
    }
}

#[test]
fn a_terminal_phase_in_the_api_always_wins() {
    for phase in ["Succeeded", "Failed"] {
        let pod = with_status(mk_pod([mk_container("a"), mk_container("b")]), |status| {
            status.phase = Some(phase.into());
            status.reason = Some("Kept".into());
            status.message = Some("as it was".into());
        });
        let mut case = Case::new(pod, [exited("a", 0), exited("b", 1)]);
        for eviction in [None, Some(evicted())] {
            case.eviction = eviction;
            for stage in STAGES {
                assert_eq!(verdict(&case.generate(stage)), [phase, "Kept", "as it was"].map(Some));
            }
        }
    }
}

#[test]
fn reason_and_message_change_only_with_the_phase() {
    let pod = with_status(mk_pod([mk_container("a")]), |status| {
        status.reason = Some("NodeLost".into());
        status.message = Some("the node did not answer".into());
    });
    let case = Case::new(pod, [exited("a", 0)]);
    let kept = ["Running", "NodeLost", "the node did not answer"].map(Some);
    assert_eq!(verdict(&case.generate(StatusStage::Terminating)), kept);
    let status = case.generate(StatusStage::Stopped);
    assert_eq!(verdict(&status), [Some("Succeeded"), None, None]);
    assert_eq!(
        verdict(send(&case.pod, &status).status.as_ref().unwrap()),
        verdict(&status)
    );
}

#[test]
fn pod_that_exceeded_its_deadline_has_failed() {
    let exited_at = |seconds| Container {
        finished_at: Some(at(seconds)),
        ..exited("a", 0)
    };
    for (claim, seconds, instance, expected) in [
        ("deadline not reached", 1001, exited_at(999), "Succeeded"),
        ("exited before the deadline", 500, exited_at(499), "Succeeded"),
        ("exited at the deadline", 500, exited_at(500), "Failed"),
        ("a negative deadline has passed", -5, exited_at(499), "Failed"),
        ("beyond all time", i64::MAX, exited_at(499), "Succeeded"),
    ] {
        let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
            spec.active_deadline_seconds = Some(seconds);
        });
        let status = Case::new(pod, [instance]).generate(StatusStage::Stopped);
        assert_eq!(status.phase.as_deref(), Some(expected), "{claim}");
        let is_exceeded = status.reason.as_deref() == Some("DeadlineExceeded");
        assert_eq!(is_exceeded, expected == "Failed", "{claim}");
    }
}

#[test]
fn pod_without_containers_is_pending_until_it_fails() {
    let pod = with_status(mk_pod([]), |status| status.phase = Some("Pending".into()));
    let case = Case::new(pod, []);
    assert_eq!(STAGES.map(|stage| case.phase(stage)), ["Pending", "Pending", "Failed"]);
}

#[test]
fn start_time_is_kept_or_begins_now_in_whole_seconds() {
    let mut case = Case::new(mk_pod([mk_container("a")]), []);
    assert_eq!(case.generate(StatusStage::Stopped).start_time, Some(Time(at(0))));
    case.pod.status.as_mut().unwrap().start_time = Some(Time(at(0) + jiff::SignedDuration::from_millis(999)));
    assert_eq!(case.generate(StatusStage::Stopped).start_time, Some(Time(at(0))));
    case.pod.status = None;
    assert_eq!(case.generate(StatusStage::Stopped).start_time, Some(Time(now())));
}

#[test]
fn observed_generation_never_falls() {
    for (generation, shown, expected) in [
        (Some(2), Some(1), Some(2)),
        (Some(2), Some(3), Some(3)),
        (None, Some(3), Some(3)),
        (Some(-1), None, None),
    ] {
        let mut pod = with_status(mk_pod([]), |status| status.observed_generation = shown);
        pod.metadata.generation = generation;
        let status = Case::new(pod, []).generate(StatusStage::Stopped);
        assert_eq!(status.observed_generation, expected);
    }
}
