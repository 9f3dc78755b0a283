//! Regression tests: minimal plans that once broke an invariant.

use std::time::Duration;

use testbed::scripted_cri::Manners;

use crate::{
    plan::{Action, ApiFault, Plan, Step},
    pods::{ContainerPlan, Hook, Kind, PodPlan, Role, State},
    runner::one,
};

fn at(seconds: u64, what: Action) -> Step {
    Step {
        at: Duration::from_secs(seconds),
        what,
    }
}

/// A pod whose only container ignores its stop signal.
fn stubborn() -> PodPlan {
    PodPlan {
        kind: Kind::Plain,
        grace: 0,
        finalizer: false,
        containers: vec![ContainerPlan {
            role: Role::Regular,
            hook: Hook::None,
            state: State::Running,
            obeys: None,
            unread: false,
        }],
        old_sandboxes: 0,
        volumes: Vec::new(),
    }
}

fn play(seed: u64, pods: &[PodPlan], steps: &[Step]) {
    for manners in [Manners::Containerd, Manners::CriO] {
        let (pods, steps) = (pods.to_vec(), steps.to_vec());
        let plan = Plan {
            seed,
            manners,
            names_processes: true,
            pods,
            steps,
        };
        let outcome = one(&plan);
        assert_eq!(outcome.broken, None, "{plan}\n{}", outcome.trace.join("\n"));
    }
}

#[test]
fn hook_that_completes_just_after_a_kubelet_started_is_not_rerun() {
    let mut draining = stubborn();
    draining.grace = 30;
    draining.containers[0].hook = Hook::Exec(Duration::from_millis(242), 0);
    draining.containers[0].role = Role::Sidecar;
    draining.containers[0].obeys = Some((Duration::ZERO, 0));
    let mut stopping = stubborn();
    stopping.grace = 46;
    stopping.containers[0].obeys = Some((Duration::from_millis(2_517), 0));
    let delete = |pod, grace| Action::Delete { pod, grace };
    let milliseconds = |at, what| Step {
        at: Duration::from_millis(at),
        what,
    };
    let lasts = Duration::from_secs(11);
    // The time of detection of the kubelet depends on other work of the agent.
    for comes in (12_070..12_300).step_by(10) {
        let steps = [
            milliseconds(10_170, delete(0, Some(1))),
            milliseconds(12_067, delete(1, None)),
            milliseconds(comes, Action::Kubelet { lasts }),
            at(
                40,
                Action::Crash {
                    turns: 0,
                    down: Duration::from_secs(1),
                },
            ),
        ];
        play(1, &[stopping.clone(), draining.clone()], &steps);
    }
}

#[test]
fn shortened_grace_period_is_recorded_before_it_applies() {
    // For each last write of the request's commit, and any subset of the earlier ones.
    for (seed, after) in (0..6).flat_map(|seed| (0..16).map(move |after| (seed, after))) {
        let steps = vec![
            at(
                1,
                Action::Delete {
                    pod: 0,
                    grace: Some(40),
                },
            ),
            at(11, Action::CutAtWrite { after }),
            at(
                18,
                Action::Kill {
                    pod: 0,
                    grace: Some(23),
                    evict: false,
                },
            ),
            // Duration of the fault.
            at(70, Action::Release { pod: 0 }),
        ];
        play(seed, &[stubborn()], &steps);
    }
}

#[test]
fn write_that_waits_for_a_connection_is_not_sent_after_a_kubelet_has_started() {
    let steps = vec![
        at(
            5,
            Action::Api {
                faults: ApiFault::Delay(9_706),
                verb: None,
                times: 2,
            },
        ),
        at(18, Action::Delete { pod: 0, grace: None }),
        at(
            20,
            Action::Kubelet {
                lasts: Duration::from_secs(26),
            },
        ),
        at(70, Action::Release { pod: 0 }),
    ];
    let mut pod = stubborn();
    pod.containers[0].obeys = Some((Duration::ZERO, 0));
    pod.grace = 30;
    play(0, &[pod], &steps);
}

#[test]
fn stop_request_is_kept_for_a_pod_that_was_deleted_during_an_api_outage() {
    let steps = vec![
        at(
            5,
            Action::ApiAway {
                lasts: Duration::from_secs(36),
            },
        ),
        at(10, Action::Delete { pod: 0, grace: None }),
        at(
            27,
            Action::Kill {
                pod: 0,
                grace: None,
                evict: true,
            },
        ),
        at(
            37,
            Action::Kubelet {
                lasts: Duration::from_secs(22),
            },
        ),
    ];
    let mut pod = stubborn();
    pod.grace = 30;
    play(0, &[pod], &steps);
}

#[test]
fn wrong_runtime_state_is_recorded_before_the_cgroup_is_removed() {
    // Without the cgroup there is no evidence against the runtime any more, and a CRI-O sandbox stays ready.
    for (seed, after) in (0..3).flat_map(|seed| (0..24).map(move |after| (seed, after))) {
        let steps = vec![
            at(19, Action::Delete { pod: 0, grace: None }),
            at(
                20,
                Action::ShimDies {
                    pod: 0,
                    all: true,
                    rest: None,
                },
            ),
            at(50, Action::CutAtWrite { after }),
            at(
                97,
                Action::RuntimeRestarts {
                    down: Duration::from_secs(1),
                },
            ),
        ];
        let mut pod = stubborn();
        pod.grace = 10;
        play(seed, &[pod], &steps);
    }
}
