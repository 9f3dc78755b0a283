//! Conditions: order, reasons, times, owners.

use k8s_openapi::api::core::v1::{ContainerRestartRule, PodCondition, PodReadinessGate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::fixture::*;
use super::strategic_merge::apply;
use crate::{
    node::cri::types::{Sandbox, SandboxState},
    teardown::status::StatusStage,
};
fn conditions(case: &Case, stage: StatusStage) -> Vec<PodCondition> {
    case.generate(stage).conditions.unwrap()
}

fn condition(case: &Case, stage: StatusStage, kind: &str) -> PodCondition {
    conditions(case, stage)
        .into_iter()
        .find(|condition| condition.type_ == kind)
        .unwrap()
}

/// Status, reason, message.
fn answer(case: &Case, stage: StatusStage, kind: &str) -> (String, Option<String>, Option<String>) {
    let PodCondition {
        status,
        reason,
        message,
        ..
    } = condition(case, stage, kind);
    (status, reason, message)
}

fn says(status: &str, reason: &str, message: Option<&str>) -> (String, Option<String>, Option<String>) {
    (
        status.into(),
        Some(reason.into()).filter(|reason: &String| !reason.is_empty()),
        message.map(Into::into),
    )
}

/// All conditions in the API after the patch.
fn sent(case: &Case, stage: StatusStage) -> Vec<PodCondition> {
    let body = patch(&case.pod, UID, &case.generate(stage)).unwrap();
    let pod = apply(serde_json::to_value(&case.pod).unwrap(), &body);
    serde_json::from_value(pod["status"]["conditions"].clone()).unwrap()
}

fn running_pod() -> k8s_openapi::api::core::v1::Pod {
    with_entry(mk_pod([mk_container("a")]), mk_entry("a", running_since(at(10))))
}

#[test]
fn foreign_conditions_come_first_unchanged_and_own_ones_in_the_kubelets_order() {
    let foreign = PodCondition {
        last_probe_time: Some(Time(at(3))),
        ..mk_condition("example.com/lb", "False")
    };
    let pod = with_condition(running_pod(), mk_condition("Ready", "True"));
    let pod = with_condition(
        with_condition(pod, foreign.clone()),
        mk_condition("PodResizePending", "True"),
    );
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
    assert_eq!(
        conditions(&Case::new(pod, [running("a")]), StatusStage::Terminating),
        expected
    );
}

#[test]
fn termination_alone_does_not_make_a_pod_unready() {
    let case = Case::new(running_pod(), [running("a")]);
    assert_eq!(answer(&case, StatusStage::Terminating, "Ready"), says("True", "", None));
}

/// As a node controller leaves a pod on a node that is not ready: the `ready` fields of its containers are unchanged.
#[test]
fn termination_does_not_make_a_pod_ready_again() {
    for kind in ["Ready", "ContainersReady"] {
        let unready = PodCondition {
            reason: Some("NodeNotReady".into()),
            message: Some("of another controller".into()),
            ..mk_condition(kind, "False")
        };
        let case = Case::new(with_condition(running_pod(), unready.clone()), [running("a")]);
        let shown = sent(&case, StatusStage::Terminating);
        assert!(shown.contains(&unready), "{shown:?}");
        let over = Case {
            observed: Case::new(case.pod.clone(), [exited("a", 0)]).observed,
            ..case
        };
        assert_eq!(
            answer(&over, StatusStage::Stopped, kind),
            says("False", "PodCompleted", None)
        );
    }
}

#[test]
fn transition_times_move_only_with_the_status() {
    let reasoned = PodCondition {
        reason: Some("Old".into()),
        ..mk_condition("Ready", "False")
    };
    let case = Case::new(with_condition(running_pod(), reasoned), [exited("a", 0)]);
    let ready = condition(&case, StatusStage::Stopped, "Ready");
    assert_eq!(
        (ready.reason.as_deref(), ready.last_transition_time),
        (Some("PodCompleted"), Some(Time(at(5))))
    );
    let case = Case::new(
        with_condition(running_pod(), mk_condition("Ready", "True")),
        [exited("a", 0)],
    );
    assert_eq!(
        condition(&case, StatusStage::Stopped, "Ready").last_transition_time,
        Some(Time(now()))
    );
}

#[test]
fn readiness_names_unready_containers() {
    let pod = with_spec(mk_pod([mk_container("b"), mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_sidecar("proxy"), mk_container("init")]);
    });
    let case = Case::new(
        pod,
        [
            running("b"),
            mk_instance("a", crate::node::cri::types::ContainerState::Created),
        ],
    );
    let message = Some("containers with unready status: [proxy a]");
    for kind in ["Ready", "ContainersReady"] {
        assert_eq!(
            answer(&case, StatusStage::Terminating, kind),
            says("False", "ContainersNotReady", message)
        );
    }
}

#[test]
fn readiness_of_a_pod_without_containers_is_unknown() {
    let case = Case::new(mk_pod([]), []);
    assert_eq!(
        answer(&case, StatusStage::Terminating, "Ready"),
        says("False", "UnknownContainerStatuses", None)
    );
}

#[test]
fn terminal_pod_is_unready_for_that_reason() {
    for (exit_code, reason) in [(0, "PodCompleted"), (1, "PodFailed")] {
        let case = Case::new(running_pod(), [exited("a", exit_code)]);
        for stage in [StatusStage::Stopped, StatusStage::Terminated] {
            for kind in ["Ready", "ContainersReady"] {
                assert_eq!(answer(&case, stage, kind), says("False", reason, None));
            }
        }
    }
}

#[test]
fn empty_message_equals_no_message() {
    let said = |message: Option<&str>| PodCondition {
        reason: Some("UnknownContainerStatuses".into()),
        message: message.map(Into::into),
        ..mk_condition("ContainersReady", "False")
    };
    for message in [None, Some("")] {
        let over = with_status(mk_pod([]), |status| status.phase = Some("Failed".into()));
        let case = Case::new(with_condition(over, said(message)), []);
        assert_eq!(
            answer(&case, StatusStage::Terminated, "ContainersReady"),
            says("False", "UnknownContainerStatuses", None)
        );
    }
}

#[test]
fn evicted_pod_is_unready_before_its_stop() {
    let mut case = Case::new(running_pod(), [running("a")]);
    case.eviction = Some(evicted());
    assert_eq!(
        answer(&case, StatusStage::Terminating, "Ready"),
        says("False", "PodFailed", None)
    );
    assert_eq!(case.phase(StatusStage::Terminating), "Running");
}

#[test]
fn readiness_gates_must_hold_too() {
    let gate = |kind: &str| PodReadinessGate {
        condition_type: kind.into(),
    };
    let pod = with_spec(running_pod(), |spec| {
        spec.readiness_gates = Some(vec![gate("x"), gate("y"), gate("z")]);
    });
    let pod = with_condition(
        with_condition(pod, mk_condition("x", "True")),
        mk_condition("y", "False"),
    );
    let case = Case::new(pod, [running("a")]);
    let message = "the status of pod readiness gate \"y\" is not \"True\", but False, \
                   corresponding condition of pod readiness gate \"z\" does not exist.";
    assert_eq!(
        answer(&case, StatusStage::Terminating, "Ready"),
        says("False", "ReadinessGatesNotReady", Some(message))
    );
    assert_eq!(
        answer(&case, StatusStage::Terminating, "ContainersReady"),
        says("True", "", None)
    );
}

#[test]
fn initialized_follows_the_init_containers_and_never_goes_back() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_container("i1"), mk_sidecar("i2")]);
    });
    let incomplete = Some("containers with incomplete status: [i2]");
    let case = Case::new(pod.clone(), [exited("i1", 0)]);
    assert_eq!(
        answer(&case, StatusStage::Terminating, "Initialized"),
        says("False", "ContainersNotInitialized", incomplete)
    );
    let done = says("True", "", None);
    let case = Case::new(pod.clone(), [running("i2"), exited("i1", 0)]);
    assert_eq!(answer(&case, StatusStage::Terminating, "Initialized"), done);
    let case = Case::new(with_condition(pod.clone(), mk_condition("Initialized", "True")), []);
    assert_eq!(
        answer(&case, StatusStage::Terminating, "Initialized"),
        done,
        "it was once"
    );
    let case = Case::new(pod, [exited("a", 1)]);
    assert_eq!(
        answer(&case, StatusStage::Terminating, "Initialized"),
        done,
        "a regular container started"
    );
    let case = Case::new(running_pod(), [exited("a", 0)]);
    assert_eq!(
        answer(&case, StatusStage::Stopped, "Initialized"),
        says("True", "PodCompleted", None)
    );
}

#[test]
fn pod_is_ready_to_start_containers_only_with_one_ready_sandbox_and_an_address() {
    let stopped = || Sandbox {
        state: SandboxState::NotReady,
        ..mk_sandbox()
    };
    let without_address = || Sandbox {
        ips: vec![],
        ..mk_sandbox()
    };
    let (no, many) = (
        "no pod sandbox exists",
        "multiple pod sandboxes are ready and need to be reconciled",
    );
    let (unready, bare) = ("pod sandbox is not ready", "pod sandbox has no IP address");
    let cases = [
        ("one ready", vec![mk_sandbox()], false, None),
        ("the newest is ready", vec![mk_sandbox(), stopped()], false, None),
        (
            "an older one is ready",
            vec![stopped(), mk_sandbox()],
            false,
            Some(unready),
        ),
        ("two are ready", vec![mk_sandbox(), mk_sandbox()], false, Some(many)),
        ("stopped", vec![stopped()], false, Some(unready)),
        ("none", vec![], false, Some(no)),
        ("without address", vec![without_address()], false, Some(bare)),
        ("on the host's network", vec![without_address()], true, None),
    ];
    for (claim, sandboxes, host_network, unready) in cases {
        let pod = with_status(running_pod(), |status| status.pod_ip = None);
        let mut case = Case::new(
            with_spec(pod, |spec| spec.host_network = Some(host_network)),
            [running("a")],
        );
        case.observed.sandboxes = sandboxes;
        let expected = match unready {
            None => says("True", "", None),
            Some(message) => says("False", "PodSandboxNotReady", Some(message)),
        };
        let shown = || answer(&case, StatusStage::Terminating, "PodReadyToStartContainers");
        assert_eq!(shown(), expected, "{claim}");
        // As kubelets before 1.37.
        let old = with_condition(case.pod.clone(), mk_condition("PodReadyToStartContainers", "False"));
        let case = Case {
            pod: old,
            ..case.clone()
        };
        let expected = if unready.is_some() {
            says("False", "", None)
        } else {
            expected
        };
        assert_eq!(
            answer(&case, StatusStage::Terminating, "PodReadyToStartContainers"),
            expected,
            "{claim}, said before"
        );
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
    let expected = PodCondition {
        reason: Some("TerminationByKubelet".into()),
        message: Some("low on memory".into()),
        observed_generation: Some(2),
        ..by_api.clone()
    };
    assert_eq!(
        conditions(&case, StatusStage::Stopped)[0],
        expected,
        "replaced in its place"
    );
    let over = with_status(case.pod.clone(), |status| status.phase = Some("Failed".into()));
    let late = Case {
        pod: over,
        ..case.clone()
    };
    assert_eq!(conditions(&late, StatusStage::Stopped)[0], by_api, "it is over already");
    case.eviction = None;
    assert_eq!(
        condition(&case, StatusStage::Stopped, "DisruptionTarget"),
        by_api,
        "an API eviction is not ours to rewrite"
    );
}

#[test]
fn all_containers_restarting_exists_only_with_such_a_rule_and_is_never_true() {
    let pod = with_spec(running_pod(), |spec| {
        let rule = ContainerRestartRule {
            action: "RestartAllContainers".into(),
            exit_codes: None,
        };
        spec.containers[0].restart_policy_rules = Some(vec![rule]);
    });
    let case = Case::new(pod, [running("a")]);
    assert_eq!(
        answer(&case, StatusStage::Terminating, "AllContainersRestarting"),
        says("False", "", None)
    );
    let case = Case {
        observed: crate::node::cri::types::RuntimePod {
            containers: vec![exited("a", 1)],
            ..case.observed
        },
        ..case
    };
    let last = conditions(&case, StatusStage::Stopped).pop().unwrap();
    let expected = PodCondition {
        last_transition_time: Some(Time(now())),
        observed_generation: None,
        reason: Some("PodFailed".into()),
        ..mk_condition("AllContainersRestarting", "False")
    };
    assert_eq!(last, expected);
}
