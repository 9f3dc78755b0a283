//! The patch: only own fields, only differences, no reverts.

use k8s_openapi::api::core::v1::{ContainerStatus, EphemeralContainer, Pod, PodCondition, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::fixture::*;
use super::strategic_merge::apply;
use crate::teardown::status::StatusStage;

/// The pod after a patch with the runtime's state at this stage.
fn patched(case: &Case, stage: StatusStage) -> Pod {
    let wanted = case.generate(stage);
    send(&case.pod, &wanted)
}

/// The pod after this patch, as in the server.
fn send(live: &Pod, wanted: &PodStatus) -> Pod {
    let pod = serde_json::to_value(live).unwrap();
    let body = patch(live, UID, wanted).unwrap_or_else(|| json!({}));
    serde_json::from_value(apply(pod, &body)).unwrap()
}

/// The `status` part of the patch from a live pod to the wanted status.
fn status_patch(live: &Pod, wanted: &PodStatus) -> Option<Value> {
    patch(live, UID, wanted).map(|mut body| body["status"].take())
}

fn live(pod: &Pod) -> &PodStatus {
    pod.status.as_ref().unwrap()
}

/// A running pod with the status of a kubelet.
fn settled() -> Case {
    let entry = mk_entry("a", running_since(at(10)));
    let mut case = Case::new(with_entry(mk_pod([mk_container("a")]), entry), [running("a")]);
    case.pod = patched(&case, StatusStage::Terminating);
    for condition in case.pod.status.as_mut().unwrap().conditions.iter_mut().flatten() {
        condition.last_transition_time = Some(Time(at(5)));
    }
    case
}

#[test]
fn nothing_is_sent_when_nothing_changed() {
    let case = settled();
    assert_eq!(patch(&case.pod, UID, &case.generate(StatusStage::Terminating)), None);
}

#[test]
fn finished_pod_needs_one_small_patch() {
    let mut case = settled();
    case.observed.containers = vec![exited("a", 0)];
    let body = patch(&case.pod, UID, &case.generate(StatusStage::Stopped)).unwrap();
    let over = json!({
        "status": "False", "reason": "PodCompleted", "lastTransitionTime": "2026-05-28T20:43:20Z",
    });
    let of_type = |kind: &str| {
        let mut change = over.clone();
        change["type"] = json!(kind);
        change
    };
    let expected = json!({
        "metadata": { "uid": UID },
        "status": {
            "phase": "Succeeded",
            "$setElementOrder/conditions": [
                { "type": "PodReadyToStartContainers" }, { "type": "Initialized" }, { "type": "Ready" },
                { "type": "ContainersReady" }, { "type": "PodScheduled" },
            ],
            "conditions": [
                { "type": "Initialized", "reason": "PodCompleted" }, of_type("Ready"), of_type("ContainersReady"),
            ],
            "containerStatuses": [{
                "containerID": "containerd://a-0",
                "image": "a:1",
                "imageID": "sha256:a",
                "name": "a",
                "ready": false,
                "restartCount": 0,
                "started": false,
                "state": { "terminated": {
                    "containerID": "containerd://a-0",
                    "exitCode": 0,
                    "finishedAt": "2026-05-28T20:27:00Z",
                    "reason": "Completed",
                    "startedAt": "2026-05-28T20:26:50Z",
                } },
            }],
        },
    });
    assert_eq!(body, expected);
}

#[test]
fn patch_produces_the_wanted_status_and_is_then_empty() {
    for eviction in [None, Some(evicted())] {
        let mut case = settled();
        case.eviction = eviction;
        for (stage, instances) in [
            (StatusStage::Terminating, vec![running("a")]),
            (StatusStage::Stopped, vec![exited("a", 0)]),
        ] {
            case.observed.containers = instances;
            let wanted = case.generate(stage);
            case.pod = send(&case.pod, &wanted);
            assert_eq!(live(&case.pod), &wanted, "{stage:?}");
            assert_eq!(patch(&case.pod, UID, &wanted), None, "{stage:?}");
        }
    }
}

#[test]
fn pod_with_another_uid_is_not_changed() {
    let case = settled();
    let wanted = PodStatus {
        phase: Some("Failed".into()),
        ..Default::default()
    };
    assert_eq!(patch(&case.pod, "another", &wanted), None);
    let mut nameless = case.pod;
    nameless.metadata.uid = None;
    assert_eq!(patch(&nameless, UID, &wanted), None);
    assert_eq!(patch(&nameless, "", &wanted), None);
}

#[test]
fn reason_and_message_go_with_the_phase_they_belonged_to() {
    let pod = with_status(settled().pod, |status| {
        status.reason = Some("NodeLost".into());
        status.message = Some("the node did not answer".into());
    });
    let case = Case {
        pod,
        ..Case::new(mk_pod([]), [exited("a", 0)])
    };
    let body = status_patch(&case.pod, &case.generate(StatusStage::Stopped)).unwrap();
    assert_eq!((&body["reason"], &body["message"]), (&Value::Null, &Value::Null));
    assert!(body.as_object().unwrap().contains_key("reason") && body.as_object().unwrap().contains_key("message"));
}

#[test]
fn terminal_phase_of_the_live_object_wins_over_a_late_status() {
    let mut case = settled();
    let early = case.generate(StatusStage::Terminating);
    case.observed.containers = vec![exited("a", 0)];
    case.eviction = Some(evicted());
    let over = patched(&case, StatusStage::Stopped);
    assert_eq!(send(&over, &early), over, "the early status comes late");
    case.eviction = None;
    let succeeded = case.generate(StatusStage::Stopped);
    assert_eq!(live(&send(&over, &succeeded)).phase.as_deref(), Some("Failed"));
    assert_eq!(live(&send(&over, &succeeded)).reason.as_deref(), Some("Evicted"));
}

#[test]
fn terminated_entry_is_not_replaced_by_a_running_one_of_the_same_run() {
    for policy in ["Always", "Never"] {
        let mut case = settled();
        case.pod = with_spec(case.pod, |spec| spec.restart_policy = Some(policy.into()));
        let early = case.generate(StatusStage::Terminating);
        case.observed.containers = vec![exited("a", 3)];
        let ended = patched(&case, StatusStage::Terminating);
        assert_eq!(
            live(&send(&ended, &early)).container_statuses,
            live(&ended).container_statuses,
            "{policy}"
        );
    }
}

#[test]
fn later_run_replaces_a_terminated_one_where_the_policy_allows() {
    let ended = with_entry(mk_pod([mk_container("a")]), mk_entry("a", terminated(end_of("a", 0))));
    let later = ContainerStatus {
        container_id: Some("containerd://a-1".into()),
        restart_count: 1,
        ..mk_entry("a", running_since(at(30)))
    };
    let wanted = PodStatus {
        container_statuses: Some(vec![later]),
        ..Default::default()
    };
    for (policy, expected) in [("Always", 1), ("Never", 0)] {
        let ended = with_spec(ended.clone(), |spec| spec.restart_policy = Some(policy.into()));
        let entries = send(&ended, &wanted).status.unwrap().container_statuses.unwrap();
        assert_eq!(entries[0].restart_count, expected, "{policy}");
    }
}

#[test]
fn foreign_conditions_are_not_in_the_patch() {
    let mut case = settled();
    let stale = mk_condition("example.com/lb", "False");
    case.pod = with_condition(case.pod, stale);
    case.observed.containers = vec![exited("a", 0)];
    let wanted = case.generate(StatusStage::Stopped);
    let mut meanwhile = case.pod;
    let conditions = meanwhile.status.as_mut().unwrap().conditions.get_or_insert_default();
    conditions.retain(|condition| condition.type_ != "example.com/lb");
    conditions.insert(0, mk_condition("example.com/lb", "True"));
    conditions.insert(0, mk_condition("example.com/new", "True"));
    let body = status_patch(&meanwhile, &wanted).unwrap();
    let types = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|element| element["type"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(types(&body["conditions"]), ["Initialized", "Ready", "ContainersReady"]);
    let order = [
        "example.com/new",
        "example.com/lb",
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
    ];
    assert_eq!(types(&body["$setElementOrder/conditions"]), order);
    let after = send(&meanwhile, &wanted);
    assert_eq!(
        live(&after).conditions.as_ref().unwrap()[1],
        mk_condition("example.com/lb", "True")
    );
}

#[test]
fn an_eviction_through_the_api_meanwhile_keeps_its_condition() {
    let mut case = settled();
    case.observed.containers = vec![exited("a", 0)];
    let wanted = case.generate(StatusStage::Stopped);
    let by_api = PodCondition {
        reason: Some("EvictionByEvictionAPI".into()),
        ..mk_condition("DisruptionTarget", "True")
    };
    let after = send(&with_condition(case.pod, by_api.clone()), &wanted);
    assert!(live(&after).conditions.as_ref().unwrap().contains(&by_api));
}

#[test]
fn unchanged_condition_keeps_its_transition_time() {
    let case = settled();
    let wanted = PodStatus {
        conditions: Some(vec![PodCondition {
            last_transition_time: Some(Time(at(999))),
            reason: Some("New".into()),
            ..mk_condition("Initialized", "True")
        }]),
        ..Default::default()
    };
    let body = status_patch(&case.pod, &wanted).unwrap();
    assert_eq!(
        body["conditions"],
        json!([{ "type": "Initialized", "reason": "New", "observedGeneration": 1 }])
    );
}

#[test]
fn a_field_of_a_condition_that_must_go_is_null() {
    let old = PodCondition {
        message: Some("old".into()),
        ..mk_condition("Ready", "False")
    };
    let pod = with_condition(mk_pod([]), old);
    let wanted = PodStatus {
        conditions: Some(vec![mk_condition("Ready", "False")]),
        ..Default::default()
    };
    assert_eq!(
        status_patch(&pod, &wanted).unwrap()["conditions"],
        json!([{ "type": "Ready", "message": null }])
    );
}

#[test]
fn entries_of_containers_added_meanwhile_stay() {
    let mut case = settled();
    case.observed.containers = vec![exited("a", 0)];
    let wanted = case.generate(StatusStage::Stopped);
    let debug = mk_entry("debug", running_since(at(50)));
    let meanwhile = with_spec(case.pod, |spec| {
        spec.ephemeral_containers = Some(vec![EphemeralContainer {
            name: "debug".into(),
            ..Default::default()
        }]);
    });
    let meanwhile = with_status(meanwhile, |status| {
        status.ephemeral_container_statuses = Some(vec![debug.clone()]);
    });
    let after = send(&meanwhile, &wanted);
    assert_eq!(live(&after).ephemeral_container_statuses, Some(vec![debug]));
}

#[test]
fn entries_without_a_container_are_removed() {
    let pod = with_init_entry(settled().pod, mk_entry("ghost", waiting(None)));
    let case = Case {
        pod,
        ..Case::new(mk_pod([]), [running("a")])
    };
    let body = status_patch(&case.pod, &case.generate(StatusStage::Terminating)).unwrap();
    assert_eq!(body, json!({ "initContainerStatuses": null }));
}

#[test]
fn addresses_are_added_and_removed_by_name_and_never_erased() {
    let ips = |list: &[&str]| Some(list.iter().map(|ip| PodIP { ip: (*ip).to_owned() }).collect::<Vec<_>>());
    let pod = with_status(mk_pod([]), |status| status.pod_ips = ips(&["10.0.0.7", "fd00::7"]));
    let wanted = |list: &[&str]| PodStatus {
        pod_ip: list.first().map(|ip| (*ip).to_owned()),
        pod_ips: ips(list),
        ..Default::default()
    };
    assert_eq!(status_patch(&pod, &wanted(&[])), None);
    assert_eq!(status_patch(&pod, &wanted(&["10.0.0.7", "fd00::7"])), None);
    let expected = json!({
        "podIP": "10.0.0.8",
        "podIPs": [{ "ip": "10.0.0.8" }, { "$patch": "delete", "ip": "10.0.0.7" }],
        "$setElementOrder/podIPs": [{ "ip": "10.0.0.8" }, { "ip": "fd00::7" }],
    });
    assert_eq!(status_patch(&pod, &wanted(&["10.0.0.8", "fd00::7"])), Some(expected));
    let swapped = wanted(&["fd00::7", "10.0.0.7"]);
    assert_eq!(live(&send(&pod, &swapped)).pod_ips, swapped.pod_ips);
}

#[test]
fn defaults_of_the_server_are_no_difference() {
    let mut case = settled();
    let entries = case.pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
    entries[0].last_state = Some(Default::default());
    entries[0].stop_signal = Some(String::new());
    assert_eq!(patch(&case.pod, UID, &case.generate(StatusStage::Terminating)), None);
}

#[test]
fn pod_without_status_gets_one() {
    let mut case = Case::new(mk_pod([mk_container("a")]), [exited("a", 0)]);
    case.pod.status = None;
    let after = patched(&case, StatusStage::Stopped);
    assert_eq!(after.status, Some(case.generate(StatusStage::Stopped)));
}

#[test]
fn claim_statuses_and_volume_health_are_not_changed() {
    let of_others = json!({
        "resourceClaimStatuses": [{ "name": "gpu", "resourceClaimName": "web-gpu" }],
        "extendedResourceClaimStatus": {
            "resourceClaimName": "web-extended",
            "requestMappings": [{ "containerName": "a", "requestName": "r", "resourceName": "example.com/gpu" }],
        },
        "nodeAllocatableResourceClaimStatuses": [{ "resourceClaimName": "web-cpu" }],
        "volumeHealth": [{ "name": "data", "health": "Unhealthy" }],
    });
    let mut case = settled();
    case.observed.containers = vec![exited("a", 0)];
    let mut shown = serde_json::to_value(&case.pod).unwrap();
    for (field, value) in of_others.as_object().unwrap() {
        shown["status"][field] = value.clone();
    }
    case.pod = serde_json::from_value(shown.clone()).unwrap();
    let body = patch(&case.pod, UID, &case.generate(StatusStage::Terminated)).unwrap();
    for (field, value) in of_others.as_object().unwrap() {
        assert!(!body.to_string().contains(field.as_str()), "{body}");
        assert_eq!(apply(shown.clone(), &body)["status"][field], *value);
    }
}
