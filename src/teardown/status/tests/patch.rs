//! The patch: only own fields, only differences.

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::fixture::*;
use crate::{
    model::pod::PodObject,
    teardown::status::{StatusStage, patch as patch_with_raw},
};

/// A running pod with the status of a kubelet.
fn settled() -> Case {
    let entry = mk_entry("a", running_since(at(10)));
    let mut case = Case::new(with_entry(mk_pod([mk_container("a")]), entry), [running("a")]);
    case.pod = send(&case.pod, &case.generate(StatusStage::Terminating));
    for condition in case.pod.status.as_mut().unwrap().conditions.iter_mut().flatten() {
        condition.last_transition_time = Some(Time(at(5)));
    }
    case
}

/// The server appends new conditions.
fn sorted(mut status: PodStatus) -> PodStatus {
    let conditions = status.conditions.iter_mut().flatten();
    let mut all: Vec<_> = conditions.map(std::mem::take).collect();
    all.sort_by(|one, other| one.type_.cmp(&other.type_));
    status.conditions = Some(all);
    status
}

#[test]
fn nothing_is_sent_when_nothing_changed() {
    let mut case = settled();
    assert_eq!(patch(&case.pod, UID, &case.generate(StatusStage::Terminating)), None);
    // As the server prints it.
    let entries = case.pod.status.as_mut().unwrap().container_statuses.as_mut().unwrap();
    entries[0].last_state = Some(Default::default());
    assert_eq!(patch(&case.pod, UID, &case.generate(StatusStage::Terminating)), None);
}

#[test]
fn finished_pod_needs_one_small_patch() {
    let mut case = settled();
    case.observed.containers = vec![exited("a", 0)];
    let body = patch(&case.pod, UID, &case.generate(StatusStage::Stopped)).unwrap();
    let condition = |kind: &str, status: &str, since: &str| {
        json!({
            "type": kind, "status": status, "reason": "PodCompleted", "lastTransitionTime": since,
            "observedGeneration": 2, "message": null, "lastProbeTime": null,
        })
    };
    let expected = json!({
        "metadata": { "uid": UID },
        "status": {
            "phase": "Succeeded",
            "$setElementOrder/conditions": [
                { "type": "PodReadyToStartContainers" },
                { "type": "Initialized" },
                { "type": "Ready" },
                { "type": "ContainersReady" },
                { "type": "PodScheduled" },
            ],
            "conditions": [
                condition("Initialized", "True", "2026-05-28T20:26:45Z"),
                condition("Ready", "False", "2026-05-28T20:43:20Z"),
                condition("ContainersReady", "False", "2026-05-28T20:43:20Z"),
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
fn patch_produces_the_wanted_status() {
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
            assert_eq!(sorted(case.pod.status.clone().unwrap()), sorted(wanted), "{stage:?}");
        }
    }
    let mut without_status = Case::new(mk_pod([mk_container("a")]), [exited("a", 0)]);
    without_status.pod.status = None;
    let wanted = without_status.generate(StatusStage::Stopped);
    assert_eq!(send(&without_status.pod, &wanted).status, Some(wanted));
}

#[test]
fn pod_with_another_uid_is_not_changed() {
    let mut pod = settled().pod;
    let wanted = PodStatus {
        phase: Some("Failed".into()),
        ..Default::default()
    };
    assert_eq!(patch(&pod, "another", &wanted), None);
    pod.metadata.uid = None;
    assert_eq!(patch(&pod, UID, &wanted), None);
    assert_eq!(patch(&pod, "", &wanted), None);
}

#[test]
fn absent_field_of_a_shown_condition_is_removed_and_foreign_conditions_are_not_sent() {
    let old = PodCondition {
        message: Some("old".into()),
        ..mk_condition("Initialized", "True")
    };
    let pod = with_condition(mk_pod([]), mk_condition("example.com/lb", "True"));
    let case = Case::new(with_condition(pod, old), []);
    let wanted = case.generate(StatusStage::Stopped);
    let body = patch(&case.pod, UID, &wanted).unwrap();
    let sent = body["status"]["conditions"].to_string();
    assert!(!sent.contains("example.com/lb"), "{body}");
    let shown = send(&case.pod, &wanted).status.unwrap().conditions;
    assert_eq!(
        shown
            .iter()
            .flatten()
            .find(|it| it.type_ == "Initialized")
            .unwrap()
            .message,
        None
    );
}

#[test]
fn addresses_of_the_runtime_are_sent_only_if_the_api_has_none() {
    let ips = |case: &Case| {
        let status = case.generate(StatusStage::Terminating);
        let all: Vec<_> = status.pod_ips.into_iter().flatten().map(|it| it.ip).collect();
        (status.pod_ip, all)
    };
    let mut case = Case::new(mk_pod([mk_container("a")]), [running("a")]);
    case.observed.sandboxes[0].ips = ["junk", "fd00:0::0007", "10.0.0.8", "10.0.0.9"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(ips(&case).0.as_deref(), Some("10.0.0.7"), "it stays");
    case.pod.status.as_mut().unwrap().pod_ip = None;
    assert_eq!(
        ips(&case),
        (Some("10.0.0.8".into()), vec!["10.0.0.8".into(), "fd00::7".into()])
    );
    case.pod.status.as_mut().unwrap().host_ip = Some("fd01::1".into());
    assert_eq!(ips(&case).1, ["fd00::7", "10.0.0.8"], "the node's family is first");
    case.observed.sandboxes[0].is_ready = false;
    assert_eq!(ips(&case), (None, Vec::new()));
    case.pod = with_spec(case.pod, |spec| spec.host_network = Some(true));
    assert_eq!(ips(&case).0.as_deref(), Some("fd01::1"));
}

#[test]
fn fields_of_others_and_of_newer_apis_stay_unchanged() {
    let pod = with_entry(mk_pod([mk_container("a")]), mk_entry("a", running_since(at(10))));
    let mut pod = serde_json::to_value(pod).unwrap();
    let of_entry = [
        ("fieldOfTheFuture", json!({ "a": [1] })),
        ("user", json!({ "linux": { "uid": 0, "gid": 0, "ofTheFuture": 1 } })),
        ("resources", json!({ "limits": { "cpu": "1" }, "ofTheFuture": true })),
        ("allocatedResources", json!({ "cpu": "1" })),
        ("stopSignal", json!("SIGUSR1")),
        (
            "volumeMounts",
            json!([{ "name": "v", "mountPath": "/v", "ofTheFuture": "x" }]),
        ),
        (
            "lastState",
            json!({ "terminated": { "exitCode": 1, "ofTheFuture": 2 } }),
        ),
    ];
    let of_status = [
        (
            "resourceClaimStatuses",
            json!([{ "name": "gpu", "resourceClaimName": "web-gpu" }]),
        ),
        ("qosClass", json!("Burstable")),
        ("fieldOfTheFuture", json!([{ "name": "data" }])),
    ];
    for (field, value) in &of_entry {
        pod["status"]["containerStatuses"][0][*field] = value.clone();
    }
    for (field, value) in &of_status {
        pod["status"][*field] = value.clone();
    }
    let object = PodObject::from_value(&pod).unwrap();
    let case = Case::new(object.pod, [exited("a", 3)]);
    let body = patch_with_raw(
        &case.pod,
        object.raw_status.as_deref(),
        UID,
        &case.generate(StatusStage::Terminated),
    )
    .unwrap();
    let shown = apply(pod, &body);
    let entry = &shown["status"]["containerStatuses"][0];
    assert_eq!(entry["state"]["terminated"]["exitCode"], 3);
    for (field, value) in of_entry {
        assert_eq!(entry[field], value, "{field}");
    }
    for (field, value) in of_status {
        assert_eq!(shown["status"][field], value, "{field}");
        assert_eq!(body["status"][field], Value::Null, "{field}");
    }
}
