//! Rules for pods: defaults and allowed changes.

use serde_json::{Value, json};

use crate::apiserver::error::Cause;
use crate::apiserver::object;

const DEFAULT_GRACE: i64 = 30;
const CONTAINER_LISTS: [&str; 2] = ["initContainers", "containers"];

/// Fills in what a reader of pods relies on.
pub fn defaults(pod: &mut Value) {
    let spec = object::child_mut(pod, "spec");
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(DEFAULT_GRACE)),
        ("dnsPolicy", json!("ClusterFirst")),
        ("schedulerName", json!("default-scheduler")),
        ("enableServiceLinks", json!(true)),
        ("securityContext", json!({})),
    ] {
        spec.entry(field).or_insert(value);
    }
    if spec["terminationGracePeriodSeconds"]
        .as_i64()
        .is_some_and(|grace| grace < 0)
    {
        spec["terminationGracePeriodSeconds"] = 1.into();
    }
    for list in CONTAINER_LISTS {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        containers.into_iter().flatten().for_each(container_defaults);
    }
    pod["status"] = json!({ "phase": "Pending" });
}

fn container_defaults(container: &mut Value) {
    let Value::Object(map) = container else { return };
    for (field, value) in [
        ("terminationMessagePath", json!("/dev/termination-log")),
        ("terminationMessagePolicy", json!("File")),
        ("resources", json!({})),
    ] {
        map.entry(field).or_insert(value);
    }
    if let Some(Value::Object(get)) = container.pointer_mut("/lifecycle/preStop/httpGet") {
        get.entry("path").or_insert(json!("/"));
        get.entry("scheme").or_insert(json!("HTTP"));
    }
}

/// Errors of a new pod.
pub fn complaints(pod: &Value) -> Vec<Cause> {
    let main = pod["spec"]["containers"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    if main.is_empty() {
        return vec![Cause::required("spec.containers", "")];
    }
    let nameless = |field: &str| -> Vec<Cause> {
        let nameless = main
            .iter()
            .enumerate()
            .filter(|(_, container)| container[field].as_str().is_none_or(str::is_empty));
        nameless
            .map(|(index, _)| Cause::required(&format!("spec.containers[{index}].{field}"), ""))
            .collect()
    };
    [nameless("name"), nameless("image")].concat()
}

/// What is wrong with a change of a pod's spec: few fields may change.
pub fn spec_complaints(old: &Value, new: &Value) -> Option<Cause> {
    let fixed = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        for list in ["initContainers", "containers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
                container.remove("image");
            }
        }
        for field in ["activeDeadlineSeconds", "tolerations", "schedulingGates"] {
            spec.as_object_mut().and_then(|spec| spec.remove(field));
        }
        spec
    };
    (fixed(old) != fixed(new)).then(|| {
        let why = "pod updates may not change fields other than `spec.containers[*].image`,\
                   `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                   existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                   previously negative)";
        Cause::forbidden("spec", why)
    })
}

/// What is wrong with a change of a pod's status: without restarts, what has ended stays ended.
pub fn status_complaints(old: &Value, new: &Value) -> Vec<Cause> {
    let policy = object::text(old, "/spec/restartPolicy");
    let mut causes = Vec::new();
    if new["status"]["observedGeneration"]
        .as_i64()
        .is_some_and(|generation| generation < 0)
    {
        let why = "must be greater than or equal to 0";
        causes.push(Cause::invalid(
            "status.observedGeneration",
            &new["status"]["observedGeneration"],
            why,
        ));
    }
    if policy != "Never" && policy != "OnFailure" {
        return causes;
    }
    for list in ["containerStatuses", "initContainerStatuses"] {
        let statuses = new["status"][list].as_array().map(Vec::as_slice).unwrap_or_default();
        for (index, status) in statuses.iter().enumerate() {
            let before = old["status"][list]
                .as_array()
                .and_then(|old| old.iter().find(|old| old["name"] == status["name"]));
            let Some(ended) = before.and_then(|before| before.pointer("/state/terminated")) else {
                continue;
            };
            if policy == "OnFailure" && ended["exitCode"] != 0 {
                continue;
            }
            if status.pointer("/state/terminated").is_none() {
                let field = format!("status.{list}[{index}].state");
                causes.push(Cause::forbidden(
                    &field,
                    "may not be transitioned to non-terminated state",
                ));
            }
        }
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_grace_is_stored_as_one() {
        let mut pod = json!({ "spec": { "terminationGracePeriodSeconds": -5, "containers": [{}] } });
        defaults(&mut pod);
        assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 1);
        assert_eq!(pod["spec"]["restartPolicy"], "Always");
    }

    #[test]
    fn only_images_deadline_and_tolerations_may_change() {
        let old = json!({ "spec": { "nodeName": "n", "containers": [{ "name": "c", "image": "a" }] } });
        let mut new = old.clone();
        new["spec"]["containers"][0]["image"] = "b".into();
        new["spec"]["activeDeadlineSeconds"] = 3.into();
        assert_eq!(spec_complaints(&old, &new), None);
        new["spec"]["nodeName"] = "m".into();
        assert!(spec_complaints(&old, &new).is_some());
    }

    #[test]
    fn exited_container_does_not_run_again_without_restarts() {
        let of = |policy: &str, state: Value| json!({ "spec": { "restartPolicy": policy }, "status": { "containerStatuses": [{ "name": "c", "state": state }] } });
        let ended = |code: i64| json!({ "terminated": { "exitCode": code } });
        let running = json!({ "running": {} });
        let complaints = |policy, code| status_complaints(&of(policy, ended(code)), &of(policy, running.clone())).len();
        assert_eq!(complaints("Never", 1), 1);
        assert_eq!(complaints("OnFailure", 1), 0);
        assert_eq!(complaints("OnFailure", 0), 1);
        assert_eq!(complaints("Always", 0), 0);
    }
}
