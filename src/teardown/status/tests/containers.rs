//! Container statuses, from the newest instances and the API.

use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerState, ContainerStateTerminated, ContainerStatus, EphemeralContainer, Pod, Probe,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::fixture::*;
use crate::{
    node::cri::types::{Container, ContainerState as RuntimeState},
    teardown::status::{Messages, StatusStage},
};

const STOPPED: [StatusStage; 2] = [StatusStage::Stopped, StatusStage::Terminated];

/// Exit code of each entry; `None` if it is not terminated.
fn exit_codes(entries: Option<Vec<ContainerStatus>>) -> Vec<Option<i32>> {
    let exit = |entry: &ContainerStatus| entry.state.as_ref()?.terminated.as_ref().map(|it| it.exit_code);
    entries.unwrap_or_default().iter().map(exit).collect()
}

/// A pod with one container, and its entry in the API.
fn shown(entry: ContainerStatus) -> Pod {
    with_entry(mk_pod([mk_container("a")]), entry)
}

fn with_init(containers: impl IntoIterator<Item = Spec>) -> Pod {
    with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.init_containers = Some(containers.into_iter().collect());
    })
}

/// The entry has exited with 137 at an unknown time.
#[track_caller]
fn assert_unknown_exit(case: &Case) {
    for stage in STOPPED {
        let end = case.entry(stage).state.unwrap().terminated.unwrap();
        assert_eq!(
            (end.exit_code, end.reason.as_deref()),
            (137, Some("ContainerStatusUnknown"))
        );
        assert_eq!((end.started_at, end.finished_at), (None, None));
        assert_eq!(case.phase(stage), "Failed");
    }
}

#[test]
fn running_container_shows_its_start_and_keeps_its_readiness() {
    for ready in [true, false] {
        let previous = ContainerStatus {
            ready,
            ..mk_entry("a", running_since(at(10)))
        };
        let case = Case::new(shown(previous.clone()), [running("a")]);
        assert_eq!(case.entry(StatusStage::Terminating), previous);
    }
}

#[test]
fn unreported_run_is_started_and_ready_unless_it_has_a_probe() {
    let with = |startup: bool, readiness: bool| Spec {
        startup_probe: startup.then(Probe::default),
        readiness_probe: readiness.then(Probe::default),
        ..mk_container("a")
    };
    for (spec, started, ready) in [
        (with(false, false), true, true),
        (with(false, true), true, false),
        (with(true, false), false, false),
    ] {
        let entry = Case::new(mk_pod([spec]), [running("a")]).entry(StatusStage::Terminating);
        assert_eq!((entry.started, entry.ready), (Some(started), ready));
    }
    for (instance, started, ready) in [
        (running("init"), true, false),
        (exited("init", 0), false, true),
        (exited("init", 1), false, false),
    ] {
        let status = Case::new(with_init([mk_container("init")]), [instance]).generate(StatusStage::Terminating);
        let entry = &status.init_container_statuses.unwrap()[0];
        assert_eq!((entry.started, entry.ready), (Some(started), ready));
    }
}

#[test]
fn exited_container_shows_its_exit_code_and_times_in_whole_seconds() {
    let part = jiff::SignedDuration::from_millis(999);
    let exit = Container {
        started_at: Some(at(10) + part),
        finished_at: Some(at(20) + part),
        ..exited("a", 7)
    };
    for stage in STAGES {
        let entry = Case::new(shown(mk_entry("a", running_since(at(10)))), [exit.clone()]).entry(stage);
        assert_eq!(entry, mk_entry("a", terminated(end_of("a", 7))));
    }
    let never_started = Container {
        started_at: None,
        ..exited("a", 128)
    };
    let entry = Case::new(mk_pod([mk_container("a")]), [never_started]).entry(StatusStage::Stopped);
    let end = ContainerStateTerminated {
        started_at: Some(Time(jiff::Timestamp::UNIX_EPOCH)),
        ..end_of("a", 128)
    };
    assert_eq!(entry.state, Some(terminated(end)), "1970, like the kubelet");
}

#[test]
fn second_newest_instance_or_the_api_has_the_last_state() {
    let newest = Container {
        id: "a-1".into(),
        restart_count: 1,
        ..running("a")
    };
    let case = Case::new(
        mk_pod([mk_container("a")]),
        [newest.clone(), exited("a", 3), exited("a", 4)],
    );
    let entry = case.entry(StatusStage::Terminating);
    assert_eq!(entry.last_state, Some(terminated(end_of("a", 3))));
    assert_eq!(entry.restart_count, 1);
    let before = Some(terminated(end_of("a", 9)));
    let previous = ContainerStatus {
        last_state: before.clone(),
        ..mk_entry("a", running_since(at(10)))
    };
    let case = Case::new(shown(previous), [running("a")]);
    assert_eq!(case.entry(StatusStage::Terminating).last_state, before);
    let unreported = Case::new(
        shown(mk_entry("a", terminated(end_of("a", 5)))),
        [Container {
            exit_code: 1,
            state: RuntimeState::Exited,
            ..newest
        }],
    );
    assert_eq!(
        unreported.entry(StatusStage::Stopped).last_state,
        Some(terminated(end_of("a", 5)))
    );
}

#[test]
fn container_that_has_run_again_is_shown_as_running_where_its_policy_allows_that() {
    let again = Container {
        id: "a-1".into(),
        restart_count: 1,
        ..mk_instance("a", RuntimeState::Running)
    };
    for (policy, exit_code, runs) in [
        ("Always", 0, true),
        ("OnFailure", 1, true),
        ("OnFailure", 0, false),
        ("Never", 1, false),
    ] {
        let mut end = end_of("a", 0);
        end.exit_code = exit_code;
        let pod = with_spec(shown(mk_entry("a", terminated(end))), |spec| {
            spec.restart_policy = Some(policy.into());
        });
        let entry = Case::new(pod, [again.clone()]).entry(StatusStage::Terminating);
        let state = entry.state.unwrap();
        assert_eq!(state.running.is_some(), runs, "{policy} {exit_code}");
        assert_eq!(state.terminated.is_some(), !runs, "{policy} {exit_code}");
    }
}

#[test]
fn container_that_may_not_run_again_stays_terminated() {
    let previous = mk_entry("a", terminated(end_of("a", 0)));
    let again = |state| Container {
        id: "a-1".into(),
        restart_count: 1,
        ..mk_instance("a", state)
    };
    for instances in [
        vec![],
        vec![mk_instance("a", RuntimeState::Unknown)],
        vec![mk_instance("a", RuntimeState::Created)],
        vec![again(RuntimeState::Created)],
        vec![again(RuntimeState::Running)],
    ] {
        // It exited with 0.
        for policy in ["OnFailure", "Never"] {
            let pod = with_spec(shown(previous.clone()), |spec| {
                spec.restart_policy = Some(policy.into());
            });
            let entry = Case::new(pod, instances.clone()).entry(StatusStage::Terminating);
            assert_eq!(entry, previous, "{policy} {instances:?}");
        }
    }
}

#[test]
fn exit_that_nothing_reports_is_unknown_and_no_success() {
    let previous = ContainerStatus {
        restart_count: 2,
        ..mk_entry("a", running_since(at(10)))
    };
    for instances in [vec![mk_instance("a", RuntimeState::Unknown)], vec![]] {
        let case = Case::new(shown(previous.clone()), instances);
        assert_eq!(case.entry(StatusStage::Terminating), previous);
        assert_unknown_exit(&case);
        let entry = case.entry(StatusStage::Stopped);
        assert_eq!(
            (entry.restart_count, entry.container_id),
            (2, previous.container_id.clone())
        );
        assert_eq!(entry.image_id, previous.image_id);
    }
    // The exit code of an earlier run is not that of the lost one.
    let lost = ContainerStatus {
        container_id: Some("containerd://a-1".into()),
        restart_count: 1,
        ..mk_entry("a", running_since(at(30)))
    };
    assert_unknown_exit(&Case::new(shown(lost), [exited("a", 0)]));
}

#[test]
fn container_that_never_ran_keeps_its_reason_to_wait() {
    let created = Case::new(mk_pod([mk_container("a")]), [mk_instance("a", RuntimeState::Created)]);
    assert_eq!(created.entry(StatusStage::Stopped), mk_entry("a", waiting(None)));
    let pull = ContainerStatus {
        container_id: None,
        ..mk_entry("a", waiting(Some("ImagePullBackOff")))
    };
    for (pod, reason) in [
        (mk_pod([mk_container("a")]), "ContainerCreating"),
        (with_init([mk_container("init")]), "PodInitializing"),
        (shown(pull), "ImagePullBackOff"),
    ] {
        let entry = Case::new(pod, []).entry(StatusStage::Stopped);
        assert_eq!(entry.state, Some(waiting(Some(reason))));
        assert_eq!((entry.ready, entry.started), (false, Some(false)));
    }
}

#[test]
fn crash_loop_terminates_with_its_last_exit() {
    let previous = ContainerStatus {
        last_state: Some(terminated(end_of("a", 1))),
        ..mk_entry("a", waiting(Some("CrashLoopBackOff")))
    };
    let pod = shown(previous);
    let entry = Case::new(pod.clone(), [exited("a", 1)]).entry(StatusStage::Stopped);
    assert_eq!(entry.state, Some(terminated(end_of("a", 1))));
    let forgotten = Case::new(pod, []);
    let entry = forgotten.entry(StatusStage::Terminating);
    assert_eq!(entry.state, Some(waiting(Some("CrashLoopBackOff"))));
    for stage in STOPPED {
        let entry = forgotten.entry(stage);
        assert_eq!(
            (entry.state, entry.last_state),
            (Some(terminated(end_of("a", 1))), None)
        );
    }
}

#[test]
fn init_container_without_a_record_succeeded_if_a_regular_one_was_created() {
    let pod = with_init([mk_container("init"), mk_sidecar("proxy")]);
    let codes = |case: Case| exit_codes(case.generate(StatusStage::Stopped).init_container_statuses);
    assert_eq!(codes(Case::new(pod.clone(), [exited("a", 1)])), [Some(0), None]);
    assert_eq!(codes(Case::new(pod, [])), [None, None]);
}

#[test]
fn cleaned_pod_has_only_terminated_containers_if_it_was_initialized() {
    let three = || with_init(["i1", "i2", "i3"].map(mk_container));
    let initialized = with_condition(three(), mk_condition("Initialized", "True"));
    let all_done = ["i1", "i2", "i3"].map(|name| exited(name, 0));
    for (claim, pod, instances, init, regular) in [
        ("nothing started", three(), vec![], [Some(137), None, None], None),
        (
            "one failed",
            three(),
            vec![exited("i2", 3)],
            [Some(137), Some(3), None],
            None,
        ),
        (
            "one succeeded",
            three(),
            vec![exited("i1", 0)],
            [Some(0), None, None],
            None,
        ),
        ("all succeeded", three(), all_done.to_vec(), [Some(0); 3], Some(137)),
        (
            "it was initialized",
            initialized,
            vec![],
            [Some(137), None, None],
            Some(137),
        ),
    ] {
        let status = Case::new(pod, instances).generate(StatusStage::Terminated);
        assert_eq!(exit_codes(status.init_container_statuses), init, "{claim}");
        assert_eq!(exit_codes(status.container_statuses), [regular], "{claim}");
        assert_eq!(
            (status.phase.as_deref(), status.reason),
            (Some("Failed"), None),
            "{claim}"
        );
    }
    let success = Case::new(mk_pod([mk_container("a")]), [exited("a", 0)]);
    assert_eq!(
        success.generate(StatusStage::Terminated),
        success.generate(StatusStage::Stopped)
    );
}

#[test]
fn ephemeral_container_has_no_probes_and_does_not_affect_the_phase() {
    let pod = with_spec(mk_pod([mk_container("a")]), |spec| {
        spec.ephemeral_containers = Some(vec![EphemeralContainer {
            name: "debug".into(),
            ..Default::default()
        }]);
    });
    let status = Case::new(pod.clone(), [exited("a", 0), exited("debug", 1)]).generate(StatusStage::Stopped);
    let expected = ContainerStatus {
        started: None,
        ..mk_entry("debug", terminated(end_of("debug", 1)))
    };
    assert_eq!(status.ephemeral_container_statuses, Some(vec![expected]));
    assert_eq!(status.phase.as_deref(), Some("Succeeded"));
    let unchanged = Case::new(pod, []).generate(StatusStage::Terminated);
    assert_eq!(exit_codes(unchanged.ephemeral_container_statuses), [None]);
}

#[test]
fn entries_are_sorted_by_name_and_init_ones_by_spec() {
    let pod = mk_pod(["b", "a", "b"].map(mk_container));
    let pod = with_spec(pod, |spec| {
        spec.init_containers = Some(["z", "y"].map(mk_container).to_vec());
    });
    let status = Case::new(with_entry(pod, mk_entry("gone", waiting(None))), []).generate(StatusStage::Stopped);
    let names =
        |entries: Option<Vec<ContainerStatus>>| entries.unwrap().into_iter().map(|it| it.name).collect::<Vec<_>>();
    assert_eq!(names(status.container_statuses), ["a", "b"], "each name once");
    assert_eq!(names(status.init_container_statuses), ["z", "y"]);
}

#[test]
fn messages_follow_the_runtimes_and_share_12_kib_without_split_characters() {
    let message = |containers: usize, runtime: &str, own: &str| {
        let names: Vec<String> = (0..containers).map(|number| format!("c{number}")).collect();
        let exit = Container {
            message: runtime.into(),
            ..exited("c0", 1)
        };
        let mut case = Case::new(mk_pod(names.iter().map(|name| mk_container(name))), [exit]);
        case.messages = Messages::from([("c0-0".to_owned(), own.to_owned())]);
        let ContainerState { terminated, .. } = case.entry(StatusStage::Stopped).state.unwrap();
        terminated.unwrap().message.unwrap_or_default()
    };
    for (runtime, own, expected) in [
        ("", "", ""),
        ("", "own", "own"),
        ("runtime", "", "runtime"),
        ("runtime", "own", "runtime: own"),
    ] {
        assert_eq!(message(1, runtime, own), expected);
    }
    assert_eq!(message(1, "", &"x".repeat(20_000)).len(), 12_288);
    assert_eq!(message(4, "", &"x".repeat(20_000)).len(), 3072);
    assert_eq!(message(4, "x", &"€".repeat(20_000)), format!("x: {}", "€".repeat(1023)));
}
