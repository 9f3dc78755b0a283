//! Conditions: order, reasons, times, owners.

use k8s_openapi::api::core::v1::{Pod, PodCondition, PodReadinessGate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::fixture::*;
use crate::{
    node::cri::types::{ContainerState, Sandbox},
    teardown::status::StatusStage,
};

type Words = (&'static str, Option<&'static str>, Option<&'static str>);

fn conditions(case: &Case, stage: StatusStage) -> Vec<PodCondition> {
    case.generate(stage).conditions.unwrap()
}

fn condition(case: &Case, stage: StatusStage, kind: &str) -> PodCondition {
    let mut all = conditions(case, stage).into_iter();
    all.find(|condition| condition.type_ == kind).unwrap()
}

/// Checks status, reason and message.
#[track_caller]
fn assert_words(case: &Case, stage: StatusStage, kind: &str, expected: Words) {
    let it = condition(case, stage, kind);
    let words = (it.status.as_str(), it.reason.as_deref(), it.message.as_deref());
    assert_eq!(words, expected, "{kind} {stage:?}");
}

fn running_pod() -> Pod {
    with_entry(mk_pod([mk_container("a")]), mk_entry("a", running_since(at(10))))
}

#[test]
fn foreign_conditions_come_first_unchanged_and_own_ones_in_the_kubelets_order() {
    let foreign = PodCondition {
        last_probe_time: Some(Time(at(3))),
        ..mk_condition("example.com/lb", "False")
    };
    let pod = with_condition(running_pod(), mk_condition("Ready", "True"));
    let pod = with_condition(pod, foreign.clone());
    let pod = with_condition(pod, mk_condition("PodResizePending", "True"));
    let ours = |kind: &str, since| PodCondition {
        last_transition_time: Some(Time(since)),
        observed_generation: Some(2),
        ..mk_condition(kind, "True")
    };
    let expected = [
        foreign,
        mk_condition("PodResizePending", "True"),
        ours("PodReadyToStartContainers", now()),
        ours("Initialized", now()),
        ours("Ready", at(5)),
        ours("ContainersReady", now()),
        ours("PodScheduled", now()),
    ];
    let case = Case::new(pod, [running("a")]);
    assert_eq!(conditions(&case, StatusStage::Terminating), expected);
}

#[test]
fn termination_alone_neither_makes_a_pod_unready_nor_ready_again() {
    let case = Case::new(running_pod(), [running("a")]);
    assert_words(&case, StatusStage::Terminating, "Ready", ("True", None, None));
    // As a node controller leaves a pod on a node that is not ready: the `ready` fields of its containers are unchanged.
    for kind in ["Ready", "ContainersReady"] {
        let unready = PodCondition {
            reason: Some("NodeNotReady".into()),
            message: Some("of another controller".into()),
            ..mk_condition(kind, "False")
        };
        let mut case = Case::new(with_condition(running_pod(), unready.clone()), [running("a")]);
        assert_eq!(condition(&case, StatusStage::Terminating, kind), unready);
        case.observed.containers = vec![exited("a", 0)];
        assert_words(&case, StatusStage::Stopped, kind, ("False", Some("PodCompleted"), None));
    }
}

#[test]
fn transition_times_move_only_with_the_status() {
    for (before, since) in [("False", at(5)), ("True", now())] {
        let old = PodCondition {
            reason: Some("Old".into()),
            ..mk_condition("Ready", before)
        };
        let case = Case::new(with_condition(running_pod(), old), [exited("a", 0)]);
        let ready = condition(&case, StatusStage::Stopped, "Ready");
        assert_eq!(ready.reason.as_deref(), Some("PodCompleted"));
        assert_eq!(ready.last_transition_time, Some(Time(since)), "{before}");
    }
}

#[test]
fn readiness_names_unready_containers_or_the_terminal_phase() {
    let pod = with_spec(mk_pod([mk_container("b"), mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_sidecar("proxy"), mk_container("init")]);
    });
    let unready = Case::new(pod, [running("b"), mk_instance("a", ContainerState::Created)]);
    let message = Some("containers with unready status: [proxy a]");
    let mut evicted_pod = Case::new(running_pod(), [running("a")]);
    evicted_pod.eviction = Some(evicted());
    let exits = |code| Case::new(running_pod(), [exited("a", code)]);
    let (terminating, stopped) = (StatusStage::Terminating, StatusStage::Stopped);
    let empty = Case::new(mk_pod([]), []);
    for kind in ["Ready", "ContainersReady"] {
        assert_words(
            &unready,
            terminating,
            kind,
            ("False", Some("ContainersNotReady"), message),
        );
        assert_words(
            &empty,
            terminating,
            kind,
            ("False", Some("UnknownContainerStatuses"), None),
        );
        assert_words(&exits(0), stopped, kind, ("False", Some("PodCompleted"), None));
        assert_words(&exits(1), stopped, kind, ("False", Some("PodFailed"), None));
        assert_words(&evicted_pod, terminating, kind, ("False", Some("PodFailed"), None));
    }
    assert_eq!(evicted_pod.phase(terminating), "Running");
    let gate = PodReadinessGate {
        condition_type: "x".into(),
    };
    let pod = with_spec(running_pod(), |spec| spec.readiness_gates = Some(vec![gate]));
    let gated = Case::new(pod, [running("a")]);
    assert_words(
        &gated,
        terminating,
        "Ready",
        ("False", Some("ReadinessGatesNotReady"), None),
    );
}

#[test]
fn initialized_follows_the_init_containers_and_never_goes_back() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_container("i1"), mk_sidecar("i2")]);
    });
    let before = with_condition(pod.clone(), mk_condition("Initialized", "True"));
    let incomplete = Some("containers with incomplete status: [i2]");
    let yes: Words = ("True", None, None);
    for (claim, pod, instances, expected) in [
        (
            "a sidecar has not started",
            pod.clone(),
            vec![exited("i1", 0)],
            ("False", Some("ContainersNotInitialized"), incomplete),
        ),
        ("all are done", pod.clone(), vec![running("i2"), exited("i1", 0)], yes),
        ("it was once", before, vec![], yes),
        ("a regular container started", pod, vec![exited("a", 1)], yes),
    ] {
        let case = Case::new(pod, instances);
        println!("{claim}");
        assert_words(&case, StatusStage::Terminating, "Initialized", expected);
    }
    let case = Case::new(running_pod(), [exited("a", 0)]);
    assert_words(
        &case,
        StatusStage::Stopped,
        "Initialized",
        ("True", Some("PodCompleted"), None),
    );
}

#[test]
fn pod_is_ready_to_start_containers_only_with_one_ready_sandbox_and_an_address() {
    let stopped = || Sandbox {
        is_ready: false,
        ..mk_sandbox()
    };
    let without_address = || Sandbox {
        ips: vec![],
        ..mk_sandbox()
    };
    let many = "multiple pod sandboxes are ready and need to be reconciled";
    let unready = "pod sandbox is not ready";
    for (sandboxes, host_network, message) in [
        (vec![mk_sandbox()], false, None),
        (vec![mk_sandbox(), stopped()], false, None),
        (vec![stopped(), mk_sandbox()], false, Some(unready)),
        (vec![mk_sandbox(), mk_sandbox()], false, Some(many)),
        (vec![stopped()], false, Some(unready)),
        (vec![], false, Some("no pod sandbox exists")),
        (vec![without_address()], false, Some("pod sandbox has no IP address")),
        (vec![without_address()], true, None),
    ] {
        let pod = with_status(running_pod(), |status| {
            (status.pod_ip, status.host_ip) = (None, None);
        });
        let pod = with_spec(pod, |spec| spec.host_network = Some(host_network));
        let mut case = Case::new(pod, [running("a")]);
        case.observed.sandboxes = sandboxes;
        let expected = match message {
            None => ("True", None, None),
            Some(_) => ("False", Some("PodSandboxNotReady"), message),
        };
        assert_words(&case, StatusStage::Terminating, "PodReadyToStartContainers", expected);
    }
}

#[test]
fn disruption_target_comes_with_the_terminal_phase_and_not_before() {
    let by_api = PodCondition {
        reason: Some("EvictionByEvictionAPI".into()),
        ..mk_condition("DisruptionTarget", "True")
    };
    let mut case = Case::new(with_condition(running_pod(), by_api.clone()), [running("a")]);
    case.eviction = Some(evicted());
    assert_eq!(condition(&case, StatusStage::Terminating, "DisruptionTarget"), by_api);
    case.observed.containers = vec![exited("a", 0)];
    let ours = PodCondition {
        reason: Some("TerminationByKubelet".into()),
        message: Some("low on memory".into()),
        observed_generation: Some(2),
        ..by_api.clone()
    };
    assert_eq!(
        conditions(&case, StatusStage::Stopped)[0],
        ours,
        "replaced in its place"
    );
    let mut late = case.clone();
    late.pod = with_status(late.pod, |status| status.phase = Some("Failed".into()));
    assert_eq!(
        conditions(&late, StatusStage::Stopped)[0],
        by_api,
        "it is terminal already"
    );
    case.eviction = None;
    let shown = condition(&case, StatusStage::Stopped, "DisruptionTarget");
    assert_eq!(shown, by_api, "an eviction through the API stays");
}
