//! The fields of a status that the agent sets, and how two statuses differ in them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};

use crate::{
    model::{observation::Difference, pod::STATUS_UNKNOWN},
    teardown::status::{DEADLINE_EXCEEDED, is_set_by_agent},
};

/// Values by path. Times, addresses and IDs are left out: they are those of the runtime.
type Fields = BTreeMap<String, String>;

/// Longer termination messages may have been cut.
const LONG_MESSAGE: usize = 1000;

const LOOP: &str = "real exit of a container in a crash loop";
const FORGOTTEN: &str = "container that the runtime no longer knows after it was stopped";
const RESTARTS: &str = "restart count";
const NOT_READY: &str = "terminating pod that the API shows as not ready";
const UNKNOWN_MESSAGE: &str = "message for a container of which nothing is known";
const CUT_MESSAGE: &str = "long termination message";
const DEADLINE: &str = "message for a deadline that has passed";
const EVICTED: &str = "evicted, all containers exit 0";

/// The fields that differ, in the order of their paths.
pub(super) fn differences(kubelet: &PodStatus, agent: &PodStatus) -> Vec<Difference> {
    let (kubelet, agent) = (fields(kubelet), fields(agent));
    let paths: BTreeSet<&String> = kubelet.keys().chain(agent.keys()).collect();
    let differing = paths.into_iter().filter(|path| kubelet.get(*path) != agent.get(*path));
    let differing = differing.filter(|path| !is_of_older_kubelet(path, &kubelet));
    let difference = |path: &String| Difference {
        field: path.clone(),
        kubelet: kubelet.get(path).cloned(),
        agent: agent.get(path).cloned(),
        documented: situation(path, &kubelet, &agent).map(str::to_owned),
    };
    differing.map(difference).collect()
}

/// Kubelets before 1.37 give neither reason nor message for a sandbox that is not ready.
fn is_of_older_kubelet(path: &str, kubelet: &Fields) -> bool {
    let field = path.strip_prefix("conditions[PodReadyToStartContainers].");
    matches!(field, Some("reason" | "message")) && !kubelet.contains_key(path)
}

/// The situation in the documentation that explains the difference.
fn situation(path: &str, kubelet: &Fields, agent: &Fields) -> Option<&'static str> {
    let of = |fields: &'_ Fields, path: &str| fields.get(path).cloned().unwrap_or_default();
    if let Some((container, field)) = path.split_once("].") {
        let at = |field: &str| format!("{container}].{field}");
        if container.starts_with("conditions[") {
            let is_ready = container.ends_with("[Ready") || container.ends_with("[ContainersReady");
            let rises = of(kubelet, &at("status")) == "True" && of(agent, &at("status")) == "False";
            return (is_ready && rises).then_some(NOT_READY);
        }
        let (mine, theirs) = (of(agent, &at("state.reason")), of(kubelet, &at("state.reason")));
        if theirs == STATUS_UNKNOWN && mine != STATUS_UNKNOWN && field != "restartCount" {
            let is_same = of(kubelet, &at("lastState.exitCode")) == of(agent, &at("state.exitCode"));
            let in_loop = is_same && of(kubelet, &at("lastState.reason")) != STATUS_UNKNOWN;
            return Some(if in_loop { LOOP } else { FORGOTTEN });
        }
        let length = |fields: &Fields| fields.get(path).map_or(0, String::len);
        return match field {
            "restartCount" => Some(RESTARTS),
            "state.message" if theirs == STATUS_UNKNOWN && mine == STATUS_UNKNOWN => Some(UNKNOWN_MESSAGE),
            "state.message" if length(kubelet).min(length(agent)) >= LONG_MESSAGE => Some(CUT_MESSAGE),
            _ => None,
        };
    }
    let is_evicted = of(agent, "phase") == "Failed" && agent.contains_key("reason");
    match path {
        "message" if [kubelet, agent].iter().all(|it| of(it, "reason") == DEADLINE_EXCEEDED) => Some(DEADLINE),
        "phase" | "reason" | "message" if is_evicted && of(kubelet, "phase") == "Succeeded" => Some(EVICTED),
        _ => None,
    }
}

fn fields(status: &PodStatus) -> Fields {
    let mut all = Fields::new();
    let mut add = |at: &str, object: &Value, fields: &[&str]| {
        for field in fields {
            let value = match &object[*field] {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let is_default = value.is_empty() || *field == "signal" && value == "0";
            if !is_default {
                all.insert(format!("{at}{field}"), value);
            }
        }
    };
    let status = serde_json::to_value(status).unwrap_or_default();
    add("", &status, &["phase", "reason", "message"]);
    for condition in entries(&status["conditions"]) {
        let name = condition["type"].as_str().unwrap_or_default();
        if is_set_by_agent(name) {
            add(
                &format!("conditions[{name}]."),
                condition,
                &["status", "reason", "message"],
            );
        }
    }
    for list in [
        "initContainerStatuses",
        "containerStatuses",
        "ephemeralContainerStatuses",
    ] {
        for container in entries(&status[list]) {
            let at = format!("{list}[{}].", container["name"].as_str().unwrap_or_default());
            add(&at, container, &["ready", "started", "restartCount"]);
            for state in ["state", "lastState"] {
                for (kind, details) in container[state].as_object().into_iter().flatten() {
                    add(&at, &json!({ state: kind }), &[state]);
                    let fields: &[&str] = match kind.as_str() {
                        "terminated" => &["exitCode", "signal", "reason", "message"],
                        "waiting" => &["reason"],
                        _ => &[],
                    };
                    add(&format!("{at}{state}."), details, fields);
                }
            }
        }
    }
    all
}

fn entries(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The situations in docs/explanation/kubelet-differences.md that are recognized.
    const SITUATIONS: [&str; 8] = [
        LOOP,
        FORGOTTEN,
        RESTARTS,
        NOT_READY,
        UNKNOWN_MESSAGE,
        CUT_MESSAGE,
        DEADLINE,
        EVICTED,
    ];

    const DOCS: &str = include_str!("../../docs/explanation/kubelet-differences.md");

    fn status(status: &Value) -> PodStatus {
        serde_json::from_value(status.clone()).unwrap()
    }

    fn ended(reason: &str, code: i32) -> Value {
        json!({ "terminated": { "exitCode": code, "reason": reason } })
    }

    fn one(state: &Value, last: &Value, restarts: i32) -> PodStatus {
        status(&json!({
            "phase": "Failed",
            "containerStatuses": [{
                "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": restarts, "state": state,
                "lastState": last,
            }],
        }))
    }

    fn found(kubelet: &PodStatus, agent: &PodStatus) -> Vec<(String, Option<String>)> {
        let all = differences(kubelet, agent).into_iter();
        all.map(|it| (it.field, it.documented)).collect()
    }

    #[test]
    fn documentation_has_every_situation_that_is_recognized() {
        for situation in SITUATIONS {
            assert!(DOCS.contains(&format!("| {situation} |")), "{situation}");
        }
    }

    #[test]
    fn intended_differences_have_their_situation_and_others_have_none() {
        let (none, error) = (json!({}), ended("Error", 3));
        let unknown = ended(STATUS_UNKNOWN, 137);
        let is = |kubelet: &PodStatus, agent: &PodStatus, situation: Option<&str>| {
            let found = found(kubelet, agent);
            assert!(!found.is_empty());
            for (field, documented) in found {
                assert_eq!(documented.as_deref(), situation, "{field}");
            }
        };
        is(&one(&unknown, &error, 2), &one(&error, &none, 2), Some(LOOP));
        is(&one(&unknown, &none, 0), &one(&error, &none, 0), Some(FORGOTTEN));
        is(&one(&error, &none, 3), &one(&error, &none, 2), Some(RESTARTS));
        is(&one(&error, &none, 0), &one(&ended("Error", 4), &none, 0), None);
        // The kubelet has read nothing of the container.
        let lost = found(&one(&unknown, &unknown, 0), &one(&ended("Error", 137), &none, 0));
        assert!(lost.iter().all(|(_, it)| it.as_deref() == Some(FORGOTTEN)), "{lost:?}");
        // An unknown exit of the agent is no intended difference.
        is(&one(&error, &none, 0), &one(&unknown, &none, 0), None);
        let message = |text: &str, reason: &str| {
            let state = json!({ "terminated": { "exitCode": 137, "reason": reason, "message": text } });
            one(&state, &json!({}), 0)
        };
        is(
            &message("a", STATUS_UNKNOWN),
            &message("b", STATUS_UNKNOWN),
            Some(UNKNOWN_MESSAGE),
        );
        is(&message("a", "Error"), &message("b", "Error"), None);
        let long = "é".repeat(LONG_MESSAGE);
        is(
            &message(&long, "Error"),
            &message(&long[2..], "Error"),
            Some(CUT_MESSAGE),
        );
        let pod = |value: Value| status(&value);
        let late = |text: &str| pod(json!({ "phase": "Failed", "reason": DEADLINE_EXCEEDED, "message": text }));
        is(&late("a"), &late("b"), Some(DEADLINE));
        let evicted = pod(json!({ "phase": "Failed", "reason": "Evicted", "message": "m" }));
        is(&pod(json!({ "phase": "Succeeded" })), &evicted, Some(EVICTED));
        is(
            &pod(json!({ "phase": "Succeeded" })),
            &pod(json!({ "phase": "Failed" })),
            None,
        );
    }

    #[test]
    fn conditions_of_others_and_what_an_older_kubelet_omits_are_no_differences() {
        let with = |extra: Value| {
            let mut conditions = vec![json!({ "type": "Ready", "status": "False", "reason": "PodFailed" })];
            conditions.extend(extra.as_array().unwrap().iter().cloned());
            status(&json!({ "phase": "Failed", "conditions": conditions }))
        };
        let foreign = with(json!([{ "type": "example.com/gate", "status": "True" }]));
        assert_eq!(found(&foreign, &with(json!([]))), []);
        let sandbox = |reason: Option<&str>| {
            with(json!([{ "type": "PodReadyToStartContainers", "status": "False", "reason": reason }]))
        };
        assert_eq!(found(&sandbox(None), &sandbox(Some("PodSandboxNotReady"))), []);
        let [(field, None)] = &found(&sandbox(Some("Other")), &sandbox(Some("PodSandboxNotReady")))[..] else {
            panic!()
        };
        assert_eq!(field, "conditions[PodReadyToStartContainers].reason");
    }
}
