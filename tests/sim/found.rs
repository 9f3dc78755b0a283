//! Plans that broke something once, as small as they were found.

use std::time::Duration;

use testbed::scripted_cri::Manners;

use crate::{
    plan::{ApiTrouble, Plan, Step, What},
    pods::{ContainerPlan, Hook, Kind, PodPlan, Role, State},
    runner::one,
};

fn at(seconds: u64, what: What) -> Step {
    Step {
        at: Duration::from_secs(seconds),
        what,
    }
}

/// A pod whose only container obeys no signal.
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

fn holds(seed: u64, pods: &[PodPlan], steps: &[Step]) {
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
fn hook_that_ends_just_after_its_kubelet_came_is_not_run_again() {
    let mut draining = stubborn();
    draining.grace = 30;
    draining.containers[0].hook = Hook::Exec(Duration::from_millis(242), 0);
    draining.containers[0].role = Role::Sidecar;
    draining.containers[0].obeys = Some((Duration::ZERO, 0));
    let mut stopping = stubborn();
    stopping.grace = 46;
    stopping.containers[0].obeys = Some((Duration::from_millis(2_517), 0));
    let delete = |pod, grace| What::Delete { pod, grace };
    let milliseconds = |at, what| Step {
        at: Duration::from_millis(at),
        what,
    };
    let lasts = Duration::from_secs(11);
    // When the kubelet is seen depends on what else the agent does just then.
    for comes in (12_070..12_300).step_by(10) {
        let steps = [
            milliseconds(10_170, delete(0, Some(1))),
            milliseconds(12_067, delete(1, None)),
            milliseconds(comes, What::Kubelet { lasts }),
            at(
                40,
                What::Crash {
                    turns: 0,
                    down: Duration::from_secs(1),
                },
            ),
        ];
        holds(1, &[stopping.clone(), draining.clone()], &steps);
    }
}

#[test]
fn a_grace_period_that_a_request_made_shorter_is_on_the_disk_before_it_counts() {
    // Whichever write of the request's commit is the last, and whatever the disk keeps of those before.
    for (seed, after) in (0..6).flat_map(|seed| (0..16).map(move |after| (seed, after))) {
        let steps = vec![
            at(
                1,
                What::Delete {
                    pod: 0,
                    grace: Some(40),
                },
            ),
            at(11, What::CutAtWrite { after }),
            at(
                18,
                What::Kill {
                    pod: 0,
                    grace: Some(23),
                    evict: false,
                },
            ),
            // As long there is trouble.
            at(70, What::Release { pod: 0 }),
        ];
        holds(seed, &[stubborn()], &steps);
    }
}

#[test]
fn a_write_that_waits_for_its_connection_is_not_sent_once_a_kubelet_is_there() {
    let steps = vec![
        at(
            5,
            What::Api {
                trouble: ApiTrouble::Delay(9_706),
                verb: None,
                times: 2,
            },
        ),
        at(18, What::Delete { pod: 0, grace: None }),
        at(
            20,
            What::Kubelet {
                lasts: Duration::from_secs(26),
            },
        ),
        at(70, What::Release { pod: 0 }),
    ];
    let mut pod = stubborn();
    pod.containers[0].obeys = Some((Duration::ZERO, 0));
    pod.grace = 30;
    holds(0, &[pod], &steps);
}

#[test]
fn a_request_is_not_given_up_for_a_pod_that_was_deleted_while_the_api_server_was_away() {
    let steps = vec![
        at(
            5,
            What::ApiAway {
                lasts: Duration::from_secs(36),
            },
        ),
        at(10, What::Delete { pod: 0, grace: None }),
        at(
            27,
            What::Kill {
                pod: 0,
                grace: None,
                evict: true,
            },
        ),
        at(
            37,
            What::Kubelet {
                lasts: Duration::from_secs(22),
            },
        ),
    ];
    let mut pod = stubborn();
    pod.grace = 30;
    holds(0, &[pod], &steps);
}

#[test]
fn the_runtime_is_overruled_on_the_disk_before_the_cgroup_is_removed() {
    // Without the cgroup nothing shows any more that the runtime is wrong, and a sandbox of CRI-O stays ready.
    for (seed, after) in (0..3).flat_map(|seed| (0..24).map(move |after| (seed, after))) {
        let steps = vec![
            at(19, What::Delete { pod: 0, grace: None }),
            at(
                20,
                What::ShimDies {
                    pod: 0,
                    all: true,
                    rest: None,
                },
            ),
            at(50, What::CutAtWrite { after }),
            at(
                97,
                What::RuntimeRestarts {
                    down: Duration::from_secs(1),
                },
            ),
        ];
        let mut pod = stubborn();
        pod.grace = 10;
        holds(seed, &[pod], &steps);
    }
}
