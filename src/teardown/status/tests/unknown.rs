//! Unknown and unreadable fields of an object stay unchanged.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::arbitrary::{World, world};
use super::fixture::*;
use super::strategic_merge::apply;
use crate::{model::pod::PodObject, teardown::status::StatusStage};
/// A running pod in the server's JSON.
fn running_pod() -> Value {
    let pod = with_entry(mk_pod([mk_container("a")]), mk_entry("a", running_since(at(10))));
    let pod = with_condition(pod, mk_condition("Ready", "True"));
    let mut pod = serde_json::to_value(pod).unwrap();
    pod["metadata"]["name"] = "web".into();
    pod["metadata"]["namespace"] = "ns".into();
    pod
}

/// The pod in the server after its container has exited.
fn after_its_end(pod: &Value) -> Value {
    let object = PodObject::from_value(pod).unwrap();
    let case = Case::new(object.pod, [exited("a", 3)]);
    let wanted = case.generate(StatusStage::Stopped);
    let patch = crate::teardown::status::patch(&case.pod, &object.statuses, UID, &wanted).unwrap();
    apply(pod.clone(), &patch)
}

#[test]
fn unknown_fields_of_a_container_status_are_kept() {
    let mut pod = running_pod();
    let kept = [
        ("fieldOfTheFuture", json!({ "a": [1] })),
        ("user", json!({ "linux": { "uid": 0, "gid": 0, "ofTheFuture": 1 } })),
        ("resources", json!({ "limits": { "cpu": "1" }, "ofTheFuture": true })),
        (
            "volumeMounts",
            json!([{ "name": "v", "mountPath": "/v", "ofTheFuture": "x" }]),
        ),
        (
            "lastState",
            json!({ "terminated": { "exitCode": 1, "finishedAt": "9999-12-31T23:59:59Z", "ofTheFuture": 2 } }),
        ),
    ];
    for (field, value) in &kept {
        pod["status"]["containerStatuses"][0][*field] = value.clone();
    }
    let shown = &after_its_end(&pod)["status"]["containerStatuses"][0];
    assert_eq!(shown["state"]["terminated"]["exitCode"], 3);
    for (field, value) in &kept {
        assert_eq!(shown[*field], *value, "{field}");
    }
}

#[test]
fn unreadable_conditions_and_entries_are_not_changed() {
    let mut pod = running_pod();
    let condition = json!({ "type": "Mine", "status": "True", "lastTransitionTime": "9999-12-31T23:59:59Z" });
    let conditions = pod["status"]["conditions"].as_array_mut().unwrap();
    conditions.extend([condition.clone(), json!({ "type": 7, "status": "True" })]);
    // An own condition, which stays true.
    conditions.push(json!({ "type": "PodScheduled", "status": "True", "lastTransitionTime": "9999-12-31T23:59:59Z" }));
    let odd = json!({ "name": 7, "image": "i" });
    pod["status"]["containerStatuses"]
        .as_array_mut()
        .unwrap()
        .push(odd.clone());
    let shown = &after_its_end(&pod)["status"];
    assert_eq!(shown["phase"], "Failed");
    let conditions = shown["conditions"].as_array().unwrap();
    let of_type = |kind: &Value| conditions.iter().find(|it| it["type"] == *kind).unwrap();
    assert_eq!(*of_type(&json!("Mine")), condition);
    assert_eq!(of_type(&json!(7))["status"], "True");
    assert_eq!(
        of_type(&json!("PodScheduled"))["lastTransitionTime"],
        "9999-12-31T23:59:59Z"
    );
    assert_eq!(of_type(&json!("Ready"))["status"], "False");
    assert_eq!(shown["containerStatuses"].as_array().unwrap()[1..], [odd]);
}

#[test]
fn unreadable_state_is_replaced_by_the_runtimes() {
    for state in [
        json!("running"),
        json!({ "running": 7 }),
        json!({ "waiting": { "reason": 7 } }),
    ] {
        let mut pod = running_pod();
        pod["status"]["containerStatuses"][0]["state"] = state.clone();
        let shown = &after_its_end(&pod)["status"]["containerStatuses"][0];
        assert_eq!(shown["state"]["terminated"]["exitCode"], 3, "{state}");
    }
}

#[test]
fn an_exit_code_that_cannot_be_read_is_no_success() {
    let mut pod = running_pod();
    pod["status"]["containerStatuses"][0]["state"] = json!({ "terminated": { "exitCode": "zero" } });
    let object = PodObject::from_value(&pod).unwrap();
    let case = Case::new(object.pod, []);
    assert_eq!(case.phase(StatusStage::Terminated), "Failed");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// The fields that are read give the same status as the whole object.
    #[test]
    fn fields_that_are_not_read_change_no_status(world in world()) {
        let mut live = serde_json::to_value(&world.pod).unwrap();
        live["metadata"]["name"] = "web".into();
        live["metadata"]["namespace"] = "ns".into();
        let wanted = world.wanted();
        let object = PodObject::from_value(&live).unwrap();
        prop_assert_eq!(&object.unreadable, &Vec::<String>::new());
        let read = World { pod: object.pod, ..world };
        let patched = crate::teardown::status::patch(&read.pod, &object.statuses, UID, &read.wanted());
        let after = patched.map_or(live.clone(), |body| apply(live, &body));
        prop_assert_eq!(patch(&serde_json::from_value(after).unwrap(), UID, &wanted), None);
    }
}
