//! Regression tests: minimal plans that once broke an invariant.

use std::time::Duration;

use testbed::scripted_cri::Manners;

use crate::{
    plan::{Action, ApiFault, Cause, Plan, Shims, Step},
    pods::{ContainerPlan, Hook, Kind, PodPlan, Role, State},
    runner::one,
};

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A pod with this grace period, whose only container ignores its stop signal or exits after this time.
fn pod(grace: i64, exits_after: Option<Duration>) -> PodPlan {
    let main = ContainerPlan {
        role: Role::Regular,
        hook: Hook::None,
        state: State::Running,
        obeys: exits_after.map(|after| (after, 0)),
        unread: false,
    };
    PodPlan {
        kind: Kind::Plain,
        grace,
        finalizer: false,
        containers: vec![main],
        old_sandboxes: 0,
        volumes: Vec::new(),
    }
}

/// No invariant breaks with either runtime.
fn play(seed: u64, pods: &[PodPlan], steps: &[(Duration, Action)]) {
    for manners in [Manners::Containerd, Manners::CriO] {
        let steps = steps.iter().map(|(at, what)| Step {
            at: *at,
            what: what.clone(),
        });
        let plan = Plan {
            seed,
            manners,
            names_processes: true,
            pods: pods.to_vec(),
            steps: steps.collect(),
        };
        let outcome = one(&plan);
        assert_eq!(outcome.broken, None, "{plan}\n{}", outcome.trace.join("\n"));
    }
}

#[test]
fn hook_that_completes_just_after_a_kubelet_started_is_not_rerun() {
    let mut draining = pod(30, Some(Duration::ZERO));
    draining.containers[0].hook = Hook::Exec(millis(242), 0);
    draining.containers[0].role = Role::Sidecar;
    let pods = [pod(46, Some(millis(2_517))), draining];
    // The time of detection of the kubelet depends on other work of the agent.
    for comes in (12_070..12_300).step_by(10) {
        let steps = [
            (millis(10_170), Action::Delete(0, Some(1))),
            (millis(12_067), Action::Delete(1, None)),
            (millis(comes), Action::Kubelet(secs(11))),
            (secs(40), Action::Crash(0, secs(1))),
        ];
        play(1, &pods, &steps);
    }
}

#[test]
fn shortened_grace_period_is_recorded_before_it_applies() {
    // For each last write of the request's commit, and any subset of the earlier ones.
    for (seed, after) in (0..6).flat_map(|seed| (0..16).map(move |after| (seed, after))) {
        let steps = [
            (secs(1), Action::Delete(0, Some(40))),
            (secs(11), Action::CutAtWrite(after)),
            (secs(18), Action::Stop(0, Some(23), Cause::Stop)),
            // Duration of the fault.
            (secs(70), Action::Release(0)),
        ];
        play(seed, &[pod(0, None)], &steps);
    }
}

#[test]
fn write_that_waits_for_a_connection_is_not_sent_after_a_kubelet_has_started() {
    let steps = [
        (secs(5), Action::Api(ApiFault::Delay(9_706), None, 2)),
        (secs(18), Action::Delete(0, None)),
        (secs(20), Action::Kubelet(secs(26))),
        (secs(70), Action::Release(0)),
    ];
    play(0, &[pod(30, Some(Duration::ZERO))], &steps);
}

#[test]
fn stop_request_is_kept_for_a_pod_that_was_deleted_during_an_api_outage() {
    let steps = [
        (secs(5), Action::ApiAway(secs(36))),
        (secs(10), Action::Delete(0, None)),
        (secs(27), Action::Stop(0, None, Cause::Eviction)),
        (secs(37), Action::Kubelet(secs(22))),
    ];
    play(0, &[pod(30, None)], &steps);
}

#[test]
fn wrong_runtime_state_is_recorded_before_the_cgroup_is_removed() {
    // Without the cgroup there is no evidence against the runtime any more, and a CRI-O sandbox stays ready.
    for (seed, after) in (0..3).flat_map(|seed| (0..24).map(move |after| (seed, after))) {
        let steps = [
            (secs(19), Action::Delete(0, None)),
            (secs(20), Action::ShimDies(0, Shims::All, None)),
            (secs(50), Action::CutAtWrite(after)),
            (secs(97), Action::RuntimeRestarts(secs(1))),
        ];
        play(seed, &[pod(10, None)], &steps);
    }
}
