//! Properties of the status of any pod, including invalid and outdated ones.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::option::of;
use proptest::prelude::*;
use serde_json::json;

use super::arbitrary::{World, status, world};
use super::fixture::{UID, patch};
use super::strategic_merge::apply;
use crate::{
    node::cri::types::ContainerState as RuntimeState,
    teardown::status::{Phase, StatusStage},
};
/// Fields of a status that a patch may have, without order directives.
const OURS: [&str; 11] = [
    "phase",
    "reason",
    "message",
    "conditions",
    "containerStatuses",
    "initContainerStatuses",
    "ephemeralContainerStatuses",
    "observedGeneration",
    "podIP",
    "podIPs",
    "startTime",
];

fn send(live: &Pod, wanted: &PodStatus) -> Pod {
    let body = patch(live, UID, wanted).unwrap_or_else(|| json!({}));
    serde_json::from_value(apply(serde_json::to_value(live).unwrap(), &body)).unwrap()
}

// --- properties ---

fn status_of(pod: &Pod) -> PodStatus {
    pod.status.clone().unwrap_or_default()
}

fn all_lists(status: &PodStatus) -> [&[ContainerStatus]; 3] {
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    lists.map(|list| list.as_deref().unwrap_or_default())
}

/// Entries in both lists, the first of each name, as (before, after).
fn pairs<'a>(before: &'a PodStatus, after: &'a PodStatus) -> Vec<(&'a ContainerStatus, &'a ContainerStatus)> {
    let mut pairs = Vec::new();
    for (before, after) in all_lists(before).into_iter().zip(all_lists(after)) {
        for entry in after {
            pairs.extend(before.iter().find(|old| old.name == entry.name).map(|old| (old, entry)));
        }
    }
    pairs
}

/// Foreign conditions, without their order among types.
fn foreign(status: &PodStatus) -> Vec<&PodCondition> {
    let foreign = |condition: &&PodCondition| ["mine", "gate", ""].contains(&condition.type_.as_str());
    let mut list: Vec<&PodCondition> = status.conditions.iter().flatten().filter(foreign).collect();
    list.sort_by_key(|condition| &condition.type_);
    list
}

fn has_ended(entry: &ContainerStatus) -> bool {
    entry.state.as_ref().is_some_and(|state| state.terminated.is_some())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn generate_never_panics_even_at_the_ends_of_time(mut world in world(), extreme in any::<bool>()) {
        let edge = if extreme { Timestamp::MAX } else { Timestamp::MIN };
        world.now = edge;
        world.pod.status.get_or_insert_default().start_time = Some(Time(edge));
        for container in &mut world.observed.containers {
            container.started_at = Some(edge);
            container.finished_at = Some(edge);
        }
        world.wanted();
    }

    #[test]
    fn the_patch_is_empty_once_it_was_applied(world in world()) {
        let wanted = world.wanted();
        let after = send(&world.pod, &wanted);
        prop_assert_eq!(patch(&after, UID, &wanted), None);
    }

    #[test]
    fn a_late_patch_is_empty_once_it_was_applied(world in world(), meanwhile in of(status())) {
        let wanted = world.wanted();
        let live = Pod { status: meanwhile, ..world.pod };
        let after = send(&live, &wanted);
        prop_assert_eq!(patch(&after, UID, &wanted), None);
    }

    #[test]
    fn status_of_the_same_state_is_unchanged(world in world()) {
        // The API refuses two containers of one name.
        prop_assume!(has_unique_names(&world.pod));
        let after = World { pod: send(&world.pod, &world.wanted()), ..world };
        prop_assert_eq!(patch(&after.pod, UID, &after.wanted()), None);
    }

    #[test]
    fn restart_counts_never_fall(world in world(), meanwhile in of(status())) {
        let wanted = world.wanted();
        for (before, after) in pairs(&status_of(&world.pod), &wanted) {
            prop_assert!(after.restart_count >= before.restart_count);
        }
        let live = Pod { status: meanwhile, ..world.pod };
        for (before, after) in pairs(&status_of(&live), &status_of(&send(&live, &wanted))) {
            prop_assert!(after.restart_count >= before.restart_count);
        }
    }

    #[test]
    fn a_terminal_phase_never_changes(world in world(), meanwhile in of(status())) {
        let wanted = world.wanted();
        let verdict = |status: &PodStatus| (status.phase.clone(), status.reason.clone(), status.message.clone());
        let live = Pod { status: meanwhile, ..world.pod.clone() };
        for (before, after) in [(status_of(&world.pod), wanted.clone()), (status_of(&live), status_of(&send(&live, &wanted)))] {
            if Phase::is_terminal_in(&before) {
                prop_assert_eq!(verdict(&before), verdict(&after));
            }
        }
    }

    #[test]
    fn no_terminal_phase_is_new_while_something_may_run(world in world()) {
        let runs = world.observed.containers.iter().any(|container| container.state == RuntimeState::Running);
        let may_run = runs || world.stage == StatusStage::Terminating;
        let wanted = world.wanted();
        if may_run && Phase::is_terminal_in(&wanted) {
            prop_assert_eq!(wanted.phase, status_of(&world.pod).phase);
        }
    }

    #[test]
    fn evicted_pod_never_succeeds(world in world()) {
        let was_over = Phase::from_status(&status_of(&world.pod)) == Some(Phase::Succeeded);
        if world.eviction.is_some() && !was_over {
            let phase = world.wanted().phase;
            prop_assert_ne!(phase.as_deref(), Some("Succeeded"));
        }
    }

    #[test]
    fn every_pod_has_a_terminal_phase_after_its_cleanup(mut world in world()) {
        world.observed.containers.retain(|container| container.state != RuntimeState::Running);
        world.stage = StatusStage::Terminated;
        prop_assert!(Phase::is_terminal_in(&world.wanted()));
    }

    #[test]
    fn terminal_pod_is_not_ready(world in world()) {
        let wanted = world.wanted();
        if Phase::is_terminal_in(&wanted) {
            for condition in wanted.conditions.iter().flatten() {
                let ready = ["Ready", "ContainersReady"].contains(&condition.type_.as_str());
                prop_assert!(!ready || condition.status == "False", "{:?}", condition);
            }
        }
    }

    #[test]
    fn patch_has_only_the_uid_and_own_fields(world in world(), meanwhile in of(status())) {
        let live = Pod { status: meanwhile, ..world.pod.clone() };
        if let Some(body) = patch(&live, UID, &world.wanted()) {
            let top: Vec<&String> = body.as_object().unwrap().keys().collect();
            prop_assert_eq!(top, ["metadata", "status"]);
            prop_assert_eq!(&body["metadata"], &json!({ "uid": UID }));
            for field in body["status"].as_object().unwrap().keys() {
                let field = field.strip_prefix("$setElementOrder/").unwrap_or(field);
                prop_assert!(OURS.contains(&field), "{}", field);
            }
            for change in body["status"]["conditions"].as_array().into_iter().flatten() {
                prop_assert!(!["mine", "gate", ""].contains(&change["type"].as_str().unwrap()), "{}", change);
            }
        }
    }

    #[test]
    fn foreign_fields_are_unchanged(world in world(), meanwhile in of(status())) {
        let live = Pod { status: meanwhile, ..world.pod.clone() };
        let after = send(&live, &world.wanted());
        prop_assert_eq!(&live.metadata, &after.metadata);
        prop_assert_eq!(&live.spec, &after.spec);
        let (before, after) = (status_of(&live), status_of(&after));
        prop_assert_eq!(&before.qos_class, &after.qos_class);
        prop_assert_eq!(foreign(&before), foreign(&after));
    }

    #[test]
    fn terminated_container_stays_terminated(mut world in world(), meanwhile in of(status())) {
        let spec = world.pod.spec.get_or_insert_default();
        spec.restart_policy = Some("Never".into());
        for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
            container.restart_policy = None;
            container.restart_policy_rules = None;
        }
        let wanted = world.wanted();
        let live = Pod { status: meanwhile, ..world.pod.clone() };
        for (before, after) in pairs(&status_of(&world.pod), &wanted) {
            prop_assert!(!has_ended(before) || has_ended(after));
        }
        for (before, after) in pairs(&status_of(&live), &status_of(&send(&live, &wanted))) {
            prop_assert!(!has_ended(before) || has_ended(after));
        }
    }
}

fn has_unique_names(pod: &Pod) -> bool {
    let spec = pod.spec.iter();
    let names = spec.flat_map(|spec| {
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|it| &it.name);
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        containers.map(|it| &it.name).chain(ephemeral)
    });
    names.clone().count() == names.collect::<BTreeSet<_>>().len()
}
