//! The phase from the containers, and what overrules it.

use k8s_openapi::api::core::v1::{ContainerRestartRule, ContainerRestartRuleOnExitCodes, PodStatus};
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

fn two(first: Container, second: Container) -> Vec<Container> {
    vec![first, second]
}

#[test]
fn containers_decide_the_phase() {
    let created = |name: &str| mk_instance(name, RuntimeState::Created);
    // claim, restart policy, instances of a and b, phase while terminating, phase when stopped
    let cases = [
        (
            "both run",
            "Never",
            two(running("a"), running("b")),
            "Running",
            "Running",
        ),
        (
            "one runs, one ended",
            "Never",
            two(running("a"), exited("b", 1)),
            "Running",
            "Running",
        ),
        (
            "one was never started",
            "Never",
            two(exited("a", 0), created("b")),
            "Pending",
            "Pending",
        ),
        (
            "all ended well",
            "Never",
            two(exited("a", 0), exited("b", 0)),
            "Running",
            "Succeeded",
        ),
        (
            "one failed",
            "Never",
            two(exited("a", 0), exited("b", 3)),
            "Running",
            "Failed",
        ),
        (
            "restart policy Always hides no success",
            "Always",
            two(exited("a", 0), exited("b", 0)),
            "Running",
            "Succeeded",
        ),
        (
            "restart policy Always hides no failure",
            "Always",
            two(exited("a", 0), exited("b", 3)),
            "Running",
            "Failed",
        ),
        (
            "restart policy OnFailure",
            "OnFailure",
            two(exited("a", 0), exited("b", 3)),
            "Running",
            "Failed",
        ),
        (
            "an absurd policy counts as Always",
            "Perhaps",
            two(exited("a", 0), exited("b", 0)),
            "Running",
            "Succeeded",
        ),
    ];
    for (claim, policy, instances, terminating, stopped) in cases {
        let pod = mk_pod([mk_container("a"), mk_container("b")]);
        let case = Case::new(
            with_spec(pod, |spec| spec.restart_policy = Some(policy.into())),
            instances,
        );
        assert_eq!(
            case.phase(StatusStage::Terminating),
            terminating,
            "{claim}: terminating"
        );
        assert_eq!(case.phase(StatusStage::Stopped), stopped, "{claim}: stopped");
    }
}

#[test]
fn a_terminal_phase_waits_until_nothing_can_run() {
    let case = Case::new(mk_pod([mk_container("a")]), [exited("a", 0)]);
    assert_eq!(case.phase(StatusStage::Terminating), "Running");
    assert_eq!(case.phase(StatusStage::Stopped), "Succeeded");
}

#[test]
fn running_container_shows_that_the_pod_is_not_stopped() {
    let mut case = Case::new(
        mk_pod([mk_container("a"), mk_container("b")]),
        [running("a"), exited("b", 1)],
    );
    case.eviction = Some(evicted());
    for stage in STAGES {
        assert_eq!(case.phase(stage), "Running", "{stage:?}");
        assert_eq!(
            case.generate(stage).container_statuses,
            case.generate(StatusStage::Terminating).container_statuses
        );
    }
}

#[test]
fn init_containers_decide_before_regular_ones() {
    let pod = |policy: &str| {
        with_spec(mk_pod([mk_container("a")]), |spec| {
            spec.init_containers = Some(vec![mk_container("init")]);
            spec.restart_policy = Some(policy.into());
        })
    };
    let cases = [
        ("a failed one fails the pod", "Never", vec![exited("init", 2)], "Failed"),
        (
            "a failed one that may run again does not",
            "Always",
            vec![exited("init", 2)],
            "Pending",
        ),
        (
            "one that was cut short leaves the pod pending",
            "Always",
            vec![exited("init", 143)],
            "Pending",
        ),
        ("none in the runtime", "Never", vec![], "Pending"),
        (
            "done, the regular one ended well",
            "Never",
            two(exited("a", 0), exited("init", 0)),
            "Succeeded",
        ),
    ];
    for (claim, policy, instances, expected) in cases {
        assert_eq!(
            Case::new(pod(policy), instances).phase(StatusStage::Stopped),
            expected,
            "{claim}"
        );
    }
}

#[test]
fn exited_sidecars_do_not_affect_success() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_sidecar("proxy")]);
    });
    let case = Case::new(pod, [exited("a", 0), exited("proxy", 137)]);
    assert_eq!(case.phase(StatusStage::Stopped), "Succeeded");
}

#[test]
fn a_sidecar_that_is_not_started_holds_the_pod_pending_only_before_regular_ones_exist() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        let probe = Some(k8s_openapi::api::core::v1::Probe::default());
        let proxy = k8s_openapi::api::core::v1::Container {
            startup_probe: probe,
            ..mk_sidecar("proxy")
        };
        spec.init_containers = Some(vec![proxy]);
    });
    let crash_looping = with_entry(pod.clone(), {
        let mut entry = mk_entry("a", waiting(Some("CrashLoopBackOff")));
        entry.last_state = Some(terminated(end_of("a", 1)));
        entry
    });
    assert_eq!(
        Case::new(crash_looping, [running("proxy")]).phase(StatusStage::Terminating),
        "Pending"
    );
    assert_eq!(
        Case::new(pod, [exited("a", 1), running("proxy")]).phase(StatusStage::Terminating),
        "Running"
    );
}

#[test]
fn a_restart_rule_overrules_both_policies() {
    let rule = |operator: &str| ContainerRestartRule {
        action: "Restart".into(),
        exit_codes: Some(ContainerRestartRuleOnExitCodes {
            operator: operator.into(),
            values: Some(vec![42]),
        }),
    };
    // operator, exit code of the init container: whether its failure terminates the pod
    for (operator, exit_code, expected) in [
        ("In", 42, "Pending"),
        ("In", 1, "Failed"),
        ("NotIn", 42, "Failed"),
        ("NotIn", 1, "Pending"),
        ("?", 42, "Failed"),
    ] {
        let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
            let mut init = mk_container("init");
            init.restart_policy = Some("Never".into());
            init.restart_policy_rules = Some(vec![rule(operator)]);
            spec.init_containers = Some(vec![init]);
        });
        assert_eq!(
            Case::new(pod, [exited("init", exit_code)]).phase(StatusStage::Stopped),
            expected,
            "{operator} {exit_code}"
        );
    }
}

#[test]
fn evicted_pod_stays_failed_regardless_of_exit_codes() {
    for exit_code in [0, 1] {
        let mut case = Case::new(mk_pod([mk_container("a")]), [exited("a", exit_code)]);
        case.eviction = Some(evicted());
        for stage in [StatusStage::Stopped, StatusStage::Terminated] {
            let status = case.generate(stage);
            assert_eq!(
                verdict(&status),
                [Some("Failed"), Some("Evicted"), Some("The node was low on memory")]
            );
        }
    }
}

#[test]
fn eviction_without_a_message_has_none() {
    let mut case = Case::new(mk_pod([mk_container("a")]), [exited("a", 0)]);
    case.eviction = Some(Eviction {
        reason: String::new(),
        message: String::new(),
        disruption: None,
    });
    assert_eq!(
        verdict(&case.generate(StatusStage::Stopped)),
        [Some("Failed"), None, None]
    );
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
                assert_eq!(
                    verdict(&case.generate(stage)),
                    [Some(phase), Some("Kept"), Some("as it was")]
                );
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
    let kept = [Some("Running"), Some("NodeLost"), Some("the node did not answer")];
    assert_eq!(verdict(&case.generate(StatusStage::Terminating)), kept);
    assert_eq!(
        verdict(&case.generate(StatusStage::Stopped)),
        [Some("Succeeded"), None, None]
    );
}

#[test]
fn pod_that_exceeded_its_deadline_has_failed() {
    let pod = |seconds| {
        with_spec(mk_pod([mk_container("a")]), |spec| {
            spec.active_deadline_seconds = Some(seconds);
        })
    };
    let ended_at = |seconds| Container {
        finished_at: Some(at(seconds)),
        ..exited("a", 0)
    };
    let cases = [
        ("deadline not reached", pod(1001), ended_at(999), "Succeeded"),
        ("ended before the deadline", pod(500), ended_at(499), "Succeeded"),
        ("ended at the deadline", pod(500), ended_at(500), "Failed"),
        ("a negative deadline is over at once", pod(-5), ended_at(499), "Failed"),
        (
            "a deadline beyond all time never comes",
            pod(i64::MAX),
            ended_at(499),
            "Succeeded",
        ),
    ];
    for (claim, pod, instance, expected) in cases {
        let status = Case::new(pod, [instance]).generate(StatusStage::Stopped);
        assert_eq!(status.phase.as_deref(), Some(expected), "{claim}");
        assert_eq!(
            status.reason.as_deref() == Some("DeadlineExceeded"),
            expected == "Failed",
            "{claim}"
        );
    }
}

#[test]
fn pod_without_containers_is_pending_until_it_fails() {
    let case = Case::new(mk_pod([]), []);
    assert_eq!(STAGES.map(|stage| case.phase(stage)), ["Pending", "Pending", "Failed"]);
}

#[test]
fn start_time_is_kept_or_begins_now() {
    let mut case = Case::new(mk_pod([mk_container("a")]), []);
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
        (Some(2), None, Some(2)),
    ] {
        let mut pod = with_status(mk_pod([]), |status| status.observed_generation = shown);
        pod.metadata.generation = generation;
        assert_eq!(
            Case::new(pod, []).generate(StatusStage::Stopped).observed_generation,
            expected
        );
    }
}

#[test]
fn exit_in_a_restart_of_all_containers_is_not_final() {
    let restarting = Container {
        reason: "RestartingAllContainers".into(),
        ..exited("init", 137)
    };
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.init_containers = Some(vec![mk_container("init")]);
    });
    assert_eq!(
        Case::new(pod.clone(), [restarting]).phase(StatusStage::Stopped),
        "Pending"
    );
    assert_eq!(
        Case::new(pod, [exited("init", 137)]).phase(StatusStage::Stopped),
        "Failed"
    );
}
