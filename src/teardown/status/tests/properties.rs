//! Properties of the status of any pod.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::{collection::vec, option::of, prelude::*, sample::select};

use super::fixture::*;
use crate::{
    model::pod::container_statuses,
    node::cri::types::{Container, ContainerState as RuntimeState},
    teardown::status::{StatusInput, StatusStage, containers::has_exited, generate, has_terminal_phase},
};

/// The containers of each pod: a regular one, another one, an init container, a sidecar.
const NAMES: [&str; 4] = ["a", "b", "init", "proxy"];

fn state(name: &'static str) -> impl Strategy<Value = ContainerState> {
    prop_oneof![
        Just(ContainerState::default()),
        Just(running_since(at(10))),
        of(select(&["CrashLoopBackOff", "ImagePullBackOff"][..])).prop_map(waiting),
        (0..3).prop_map(move |code| terminated(end_of(name, code))),
    ]
}

fn entry(name: &'static str) -> impl Strategy<Value = Option<ContainerStatus>> {
    let id = of(select(&["0", "1"][..]));
    let fields = (
        id,
        of(state(name)),
        of(state(name)),
        0..3,
        any::<bool>(),
        of(any::<bool>()),
    );
    of(fields.prop_map(
        move |(id, state, last_state, restart_count, ready, started)| ContainerStatus {
            container_id: id.map(|id| format!("containerd://{name}-{id}")),
            last_state,
            restart_count,
            ready,
            started,
            state,
            ..mk_entry(name, ContainerState::default())
        },
    ))
}

fn instances(name: &'static str) -> impl Strategy<Value = Vec<Container>> {
    let states = [
        RuntimeState::Created,
        RuntimeState::Running,
        RuntimeState::Exited,
        RuntimeState::Unknown,
    ];
    let instance = (select(states.to_vec()), 0..3, any::<bool>());
    vec(instance, 0..3).prop_map(move |all| {
        let instances = all.into_iter().enumerate().rev();
        let mk = |(number, (state, exit_code, is_unread))| Container {
            id: format!("{name}-{number}"),
            restart_count: i32::try_from(number).unwrap(),
            exit_code,
            is_unread,
            finished_at: Some(at(20)),
            ..mk_instance(name, state)
        };
        instances.map(mk).collect()
    })
}

/// A pod in any state of API and runtime, at any stage.
fn case() -> impl Strategy<Value = (Case, StatusStage)> {
    let entries = NAMES.map(entry);
    let containers = NAMES.map(instances);
    let phase = of(select(&["Pending", "Running", "Succeeded", "Failed", "?"][..]));
    let condition = (
        select(&["Ready", "ContainersReady", "Initialized", "mine"][..]),
        any::<bool>(),
    );
    let others = (
        phase,
        vec(condition, 0..3),
        any::<bool>(),
        any::<bool>(),
        of(0..2_000_i64),
    );
    (entries, containers, others, select(STAGES.to_vec())).prop_map(|(entries, containers, others, stage)| {
        let (phase, conditions, is_evicted, has_sandbox, deadline) = others;
        let pod = with_spec(mk_pod([mk_container("a"), mk_container("b")]), |spec| {
            spec.init_containers = Some(vec![mk_container("init"), mk_sidecar("proxy")]);
            spec.active_deadline_seconds = deadline;
        });
        let mut pod = with_status(pod, |status| status.phase = phase.map(str::to_owned));
        for (kind, is_true) in conditions {
            let shown = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
            if shown.into_iter().all(|it| it.type_ != kind) {
                pod = with_condition(pod, mk_condition(kind, if is_true { "True" } else { "False" }));
            }
        }
        for entry in entries.into_iter().flatten() {
            pod = match &*entry.name {
                "a" | "b" => with_entry(pod, entry),
                _ => with_init_entry(pod, entry),
            };
        }
        let mut case = Case::new(pod, containers.into_iter().flatten());
        case.eviction = is_evicted.then(evicted);
        if !has_sandbox {
            case.observed.sandboxes[0].is_ready = false;
        }
        (case, stage)
    })
}

fn runs(case: &Case) -> bool {
    case.observed
        .containers
        .iter()
        .any(|it| it.state == RuntimeState::Running)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn generate_never_panics_even_at_the_ends_of_time((mut case, stage) in case(), is_late in any::<bool>()) {
        let edge = if is_late { Timestamp::MAX } else { Timestamp::MIN };
        case.pod.status.as_mut().unwrap().start_time = Some(Time(edge));
        for container in &mut case.observed.containers {
            (container.started_at, container.finished_at) = (Some(edge), Some(edge));
        }
        generate(&StatusInput { now: edge, ..case.facts(stage) });
    }

    #[test]
    fn sent_status_of_the_same_state_is_not_sent_again((mut case, stage) in case()) {
        let wanted = case.generate(stage);
        case.pod = send(&case.pod, &wanted);
        prop_assert_eq!(patch(&case.pod, UID, &wanted), None);
        prop_assert_eq!(patch(&case.pod, UID, &case.generate(stage)), None);
    }

    #[test]
    fn shown_exits_restart_counts_and_terminal_phases_stay((case, stage) in case()) {
        let (before, after) = (case.pod.status.clone().unwrap(), case.generate(stage));
        for entry in container_statuses(&after) {
            if let Some(old) = container_statuses(&before).find(|old| old.name == entry.name) {
                prop_assert!(entry.restart_count >= old.restart_count);
                let is_later_run = entry.container_id != old.container_id;
                prop_assert!(!has_exited(old) || has_exited(entry) || is_later_run);
            }
        }
        if has_terminal_phase(&before) {
            let verdict = |status: &PodStatus| (status.phase.clone(), status.reason.clone(), status.message.clone());
            prop_assert_eq!(verdict(&before), verdict(&after));
        }
    }

    #[test]
    fn terminal_phase_comes_only_when_nothing_may_run_and_makes_the_pod_unready((case, stage) in case()) {
        let (before, wanted) = (case.pod.status.clone().unwrap(), case.generate(stage));
        if !has_terminal_phase(&wanted) {
            return Ok(());
        }
        if runs(&case) || stage == StatusStage::Terminating {
            prop_assert_eq!(&wanted.phase, &before.phase);
        }
        if case.eviction.is_some() && !has_terminal_phase(&before) {
            prop_assert_eq!(wanted.phase.as_deref(), Some("Failed"));
        }
        for condition in wanted.conditions.iter().flatten() {
            let is_ready = ["Ready", "ContainersReady"].contains(&&*condition.type_);
            prop_assert!(!is_ready || condition.status == "False", "{:?}", condition);
        }
    }

    #[test]
    fn every_pod_has_a_terminal_phase_after_its_cleanup((mut case, _) in case()) {
        case.observed.containers.retain(|container| container.state != RuntimeState::Running);
        prop_assert!(has_terminal_phase(&case.generate(StatusStage::Terminated)));
    }
}
