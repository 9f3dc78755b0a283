//! Reading of any object, also of an invalid one.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::model::pod::{ApiObject, Hook, PodView};

fn pod() -> Value {
    json!({
        "metadata": {
            "name": "web", "namespace": "ns", "uid": "1", "resourceVersion": "7",
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30,
            "managedFields": [{ "manager": "m", "time": "2026-01-01T00:00:00Z" }],
        },
        "spec": {
            "nodeName": "n1", "terminationGracePeriodSeconds": 30, "hostUsers": false,
            "containers": [{ "name": "a", "image": "i", "lifecycle": { "preStop": { "sleep": { "seconds": 3 } } } }],
            "volumes": [{ "name": "v", "emptyDir": {} }],
            "resourceClaims": [{ "name": "gpu", "resourceClaimName": "c" }],
        },
        "status": {
            "phase": "Running", "podIP": "10.0.0.1", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
            "containerStatuses": [{ "name": "a", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
                "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } } }],
        },
    })
}

fn read(pod: &Value) -> PodObject {
    PodObject::from_value(pod).unwrap()
}

#[test]
fn unreadable_field_is_unknown_and_the_other_fields_stay_valid() {
    let late = json!("9999-12-31T23:59:59Z");
    for (place, value, reported) in [
        (
            "/metadata/deletionTimestamp",
            late.clone(),
            "metadata.deletionTimestamp",
        ),
        (
            "/metadata/deletionTimestamp",
            json!("yesterday"),
            "metadata.deletionTimestamp",
        ),
        (
            "/metadata/deletionGracePeriodSeconds",
            json!("soon"),
            "metadata.deletionGracePeriodSeconds",
        ),
        ("/metadata/managedFields/0/time", late.clone(), ""),
        ("/metadata/managedFields", json!(7), ""),
        ("/metadata/annotations", json!({ "a": 7 }), ""),
        (
            "/spec/terminationGracePeriodSeconds",
            json!("soon"),
            "spec.terminationGracePeriodSeconds",
        ),
        ("/spec/containers", json!("none"), "spec.containers"),
        ("/spec/containers/0", json!(null), "spec.containers[0]"),
        ("/spec/containers/0/name", json!(7), "spec.containers[0].name"),
        (
            "/spec/containers/0/lifecycle/preStop",
            json!(3),
            "spec.containers[0].lifecycle.preStop",
        ),
        ("/spec/containers/0/resources", json!(3), ""),
        ("/spec/volumes", json!(3), "spec.volumes"),
        ("/spec/volumes/0", json!(3), "spec.volumes[0]"),
        ("/spec/resourceClaims/0/name", json!(3), "spec.resourceClaims[0].name"),
        ("/spec/tolerations", json!(3), ""),
        ("/status", json!(3), "status"),
        ("/status/startTime", late.clone(), "status.startTime"),
        (
            "/status/conditions/0/lastTransitionTime",
            late.clone(),
            "status.conditions[0].lastTransitionTime",
        ),
        (
            "/status/containerStatuses/0/state/running/startedAt",
            late,
            "status.containerStatuses[0].state.running.startedAt",
        ),
    ] {
        let mut pod = pod();
        let (parent, field) = place.rsplit_once('/').unwrap();
        match pod.pointer_mut(parent).unwrap() {
            Value::Array(list) => list[0] = value.clone(),
            object => object[field] = value.clone(),
        }
        let object = read(&pod);
        let expected: Vec<_> = [reported].into_iter().filter(|path| !path.is_empty()).collect();
        assert_eq!(object.unreadable, expected, "{place} {value}");
        let view = PodView::project(object, false);
        assert!(
            view.deletion.is_some() && view.object.last_known().is_some(),
            "{place} {value}"
        );
    }
}

#[test]
fn unreadable_field_counts_as_the_safer_value() {
    let with = |place: &str, value| {
        let mut pod = pod();
        *pod.pointer_mut(place).unwrap() = value;
        PodView::project(read(&pod), false)
    };
    for odd in [json!(3), json!([3]), json!([{ "emptyDir": null }])] {
        assert!(with("/spec/volumes", odd.clone()).attachable_volumes, "{odd}");
    }
    let hook = with("/spec/containers/0/lifecycle/preStop", json!(3));
    assert_eq!(hook.containers[0].pre_stop, Some(Hook::Invalid));
}

#[test]
fn pod_without_identity_or_readable_annotations_is_rejected() {
    for (field, value) in [
        ("uid", json!("")),
        ("uid", json!(7)),
        ("name", Value::Null),
        ("namespace", json!({})),
        ("annotations", json!(7)),
    ] {
        let mut pod = pod();
        pod["metadata"][field] = value.clone();
        assert!(PodObject::from_value(&pod).is_err(), "{field} {value}");
    }
    assert!(PodObject::from_value(&json!(7)).is_err());
    let mut mirror = pod();
    mirror["metadata"]["annotations"][CONFIG_MIRROR] = json!(7);
    assert!(PodView::project(read(&mirror), false).mirror);
}

#[test]
fn host_paths_are_kept_up_to_a_number_of_bytes() {
    let volumes = |paths: Vec<String>| {
        let mut pod = pod();
        pod["spec"]["volumes"] = paths
            .iter()
            .map(|path| json!({ "name": "v", "hostPath": { "path": path } }))
            .collect();
        PodView::project(read(&pod), false)
    };
    let view = volumes(["/data", "/var/lib/kubelet/plugins/d"].map(str::to_owned).into());
    assert_eq!(view.host_paths, ["/data", "/var/lib/kubelet/plugins/d"].map(Box::from));
    assert!(!view.attachable_volumes);
    let long = format!("/{}", "x".repeat(MOST_HOST_PATHS));
    let view = volumes(
        [long]
            .into_iter()
            .chain((0..100_000).map(|path| format!("/{path:07}")))
            .collect(),
    );
    assert_eq!(view.host_paths.len(), MOST_HOST_PATHS / 8);
}

#[test]
fn large_object_is_unread_until_its_worker_reads_it() {
    let elements = |count: usize, element: &dyn Fn(usize) -> Value| (0..count).map(element).collect::<Value>();
    for (place, value) in [
        (
            "/spec/containers",
            elements(200, &|at| json!({ "name": format!("c{at}") })),
        ),
        (
            "/spec/ephemeralContainers",
            elements(200, &|at| json!({ "name": format!("c{at}") })),
        ),
        (
            "/spec/containers/0/lifecycle/preStop",
            json!({ "exec": { "command": ["x".repeat(200_000)] } }),
        ),
        (
            "/spec/containers/0/ports",
            elements(2_000, &|_| json!({ "name": "p", "containerPort": 1 })),
        ),
        (
            "/spec/resourceClaims",
            elements(2_000, &|at| json!({ "name": format!("c{at}") })),
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
        let mut pod = pod();
        let (parent, field) = place.rsplit_once('/').unwrap();
        pod.pointer_mut(parent).unwrap()[field] = value;
        let view = PodView::project(read(&pod), false);
        assert!(
            matches!(view.object, ApiObject::Unread) && view.containers.is_empty(),
            "{place}"
        );
        assert!(view.deletion.is_some(), "{place}");
        let whole = PodView::whole(read(&pod), false);
        assert!(
            matches!(whole.object, ApiObject::Present(_)) && !whole.containers.is_empty(),
            "{place}"
        );
        let for_stop = PodView::for_stop(read(&pod), |_| false);
        assert!(
            matches!(for_stop.object, ApiObject::NotKept { is_large: true }) && for_stop.containers.is_empty(),
            "{place}"
        );
    }
    let mut pod = pod();
    pod["spec"]["containers"][0]["env"] = elements(1_000, &|_| json!({ "name": "V", "value": "x".repeat(1_000) }));
    assert!(
        !matches!(PodView::project(read(&pod), false).object, ApiObject::Unread),
        "unused fields have no weight"
    );
}

#[test]
fn stop_of_a_large_object_keeps_existing_containers_and_small_hooks() {
    let exec = |bytes: usize| json!({ "preStop": { "exec": { "command": ["x".repeat(bytes)] } } });
    let ports: Value = (0..1_000).map(|_| json!({ "name": "p", "containerPort": 1 })).collect();
    let get = json!({ "preStop": { "httpGet": { "port": "p" } } });
    let mut pod = pod();
    pod["spec"]["containers"] = json!([
        { "name": "gone" },
        { "name": "large", "lifecycle": exec(1 << 20) },
        { "name": "small", "lifecycle": exec(10), "ports": [{ "name": "p", "containerPort": 1 }] },
        { "name": "none", "ports": ports },
        { "name": "ports", "lifecycle": get, "ports": ports },
    ]);
    let view = PodView::for_stop(read(&pod), |name| name != "gone");
    let kept: Vec<_> = view
        .containers
        .iter()
        .map(|it| (&*it.name, it.pre_stop.as_ref().map(Hook::kind), it.ports.len()))
        .collect();
    let expected = [
        ("large", Some("large"), 0),
        ("small", Some("exec"), 1),
        ("none", None, 0),
        ("ports", Some("large"), 0),
    ];
    assert_eq!(kept, expected);
    pod["spec"]["containers"] = json!([{ "name": "small", "lifecycle": exec(10) }]);
    let small = PodView::for_stop(read(&pod), |_| false);
    assert!(small.containers.len() == 1 && matches!(small.object, ApiObject::Present(_)));
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        Just(json!("9999-12-31T23:59:59Z")),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            proptest::collection::hash_map("name|type|state|running|hostPath|preStop", inner, 0..3)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// JSON pointers of all values within a value.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    all.push(at.to_owned());
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(field, value)| pointers(value, &format!("{at}/{field}"), all)),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .for_each(|(index, value)| pointers(value, &format!("{at}/{index}"), all)),
        _ => {}
    }
}

proptest! {
    #[test]
    fn deleted_pod_stays_deleted_with_any_other_field_broken(index in any::<prop::sample::Index>(), odd in any_value()) {
        let mut pod = pod();
        let mut all = Vec::new();
        pointers(&pod, "", &mut all);
        all.retain(|it| !["", "/metadata", "/metadata/uid", "/metadata/name", "/metadata/namespace"].contains(&&**it));
        all.retain(|it| it != "/metadata/deletionTimestamp" || !odd.is_null());
        *pod.pointer_mut(&all[index.index(all.len())]).unwrap() = odd;
        prop_assert!(PodView::project(read(&pod), false).deletion.is_some());
    }
}
