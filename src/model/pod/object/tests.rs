//! Reading of objects: of any size, and of invalid ones.

use serde_json::{Value, json};

use super::*;
use crate::model::pod::{ApiObject, PodView};

fn pod() -> Value {
    json!({
        "metadata": { "name": "web", "namespace": "ns", "uid": "1", "resourceVersion": "7",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30 },
        "spec": {
            "nodeName": "n1", "terminationGracePeriodSeconds": 30, "hostUsers": false,
            "containers": [{ "name": "a", "image": "i", "lifecycle": { "preStop": { "sleep": { "seconds": 3 } } } }],
            "volumes": [{ "name": "v", "emptyDir": {} }],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            "containerStatuses": [{ "name": "a", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } }, "newField": 1 }],
        },
    })
}

fn read(pod: &Value) -> PodObject {
    PodObject::from_value(pod).unwrap()
}

/// The pod with this value at a JSON pointer.
fn with(place: &str, value: Value) -> Value {
    let mut pod = pod();
    let (parent, field) = place.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[field] = value;
    pod
}

#[test]
fn pod_without_identity_or_with_a_field_of_another_type_is_rejected() {
    for (place, value) in [
        ("/metadata/uid", json!("")),
        ("/metadata/uid", json!(7)),
        ("/metadata/name", Value::Null),
        ("/metadata/namespace", json!({})),
        ("/metadata/annotations", json!(7)),
        ("/metadata/deletionTimestamp", json!("yesterday")),
        ("/spec/containers", json!("none")),
        ("/spec/volumes", json!(3)),
        ("/status", json!(3)),
    ] {
        assert!(
            PodObject::from_value(&with(place, value.clone())).is_err(),
            "{place} {value}"
        );
    }
    assert!(PodObject::from_value(&json!(7)).is_err());
}

#[test]
fn field_that_is_not_used_may_have_any_type() {
    for place in [
        "/metadata/managedFields",
        "/spec/tolerations",
        "/spec/newField",
        "/status/newField",
    ] {
        let view = PodView::project(read(&with(place, json!(7))), false);
        assert!(view.deletion.is_some() && view.object.last_known().is_some(), "{place}");
    }
    let mirror = with("/metadata/annotations", json!({ CONFIG_MIRROR: 7 }));
    assert!(PodView::project(read(&mirror), false).mirror);
    let statuses = read(&pod()).raw_status.unwrap();
    assert!(
        statuses.get().contains("newField"),
        "unknown fields are kept for an update"
    );
}

#[test]
fn host_paths_are_kept_up_to_a_number_of_bytes() {
    let volumes = |paths: Vec<String>| {
        let volume = |path: &String| json!({ "name": "v", "hostPath": { "path": path } });
        PodView::project(read(&with("/spec/volumes", paths.iter().map(volume).collect())), false)
    };
    let view = volumes(["/data", "/var/lib/kubelet/plugins/d"].map(str::to_owned).into());
    assert_eq!(view.host_paths, ["/data", "/var/lib/kubelet/plugins/d"].map(Box::from));
    assert!(!view.attachable_volumes);
    let long = format!("/{}", "x".repeat(MOST_HOST_PATHS));
    let short = (0..2_000).map(|path| format!("/{path:07}"));
    let view = volumes([long].into_iter().chain(short).collect());
    assert_eq!(view.host_paths.len(), MOST_HOST_PATHS / 8);
}

#[test]
fn large_object_is_unread_until_its_worker_reads_it() {
    let elements = |count: usize, element: &dyn Fn(usize) -> Value| (0..count).map(element).collect::<Value>();
    let named = |at: usize| json!({ "name": format!("c{at}") });
    for (place, value) in [
        ("/spec/containers", elements(200, &named)),
        ("/spec/ephemeralContainers", elements(200, &named)),
        ("/spec/resourceClaims", elements(2_000, &named)),
        (
            "/spec/containers/0/lifecycle/preStop",
            json!({ "exec": { "command": ["x".repeat(200_000)] } }),
        ),
        ("/status/message", json!("x".repeat(200_000))),
        (
            "/status/conditions",
            elements(2_000, &|at| json!({ "type": format!("c{at}"), "status": "True" })),
        ),
        (
            "/status/containerStatuses/0/state",
            json!({ "waiting": { "message": "x".repeat(200_000) } }),
        ),
    ] {
        let pod = with(place, value);
        let view = PodView::project(read(&pod), false);
        assert!(
            matches!(view.object, ApiObject::Unread) && view.containers.is_empty(),
            "{place}"
        );
        assert!(view.deletion.is_some(), "{place}");
        let whole = PodView::whole(read(&pod), false);
        assert!(matches!(whole.object, ApiObject::Present(_)), "{place}");
        let for_stop = PodView::for_stop(read(&pod));
        assert!(matches!(for_stop.object, ApiObject::NotKept), "{place}");
        assert_eq!(for_stop.containers, whole.containers, "{place}");
    }
    let env = elements(1_000, &|_| json!({ "name": "V", "value": "x".repeat(1_000) }));
    let view = PodView::project(read(&with("/spec/containers/0/env", env)), false);
    assert!(
        matches!(view.object, ApiObject::Present(_)),
        "unused fields have no weight"
    );
    assert!(matches!(PodView::for_stop(read(&pod())).object, ApiObject::Present(_)));
}
