//! The status that a teardown would report, by the function that the teardown uses. Pure.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::facts::PlanFacts;
use crate::{
    model::pod::{PodObject, UNKNOWN_EXIT_CODE},
    node::cri::types::{ContainerState, RuntimePod, SandboxState},
    teardown::status::{self, Messages, StatusInput, StatusStage},
};

/// A status that would be reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedStatus {
    /// With which exit codes of the containers that run now.
    pub if_exit_codes: String,
    /// The phase.
    pub phase: Option<String>,
    /// The pod-level reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The conditions.
    pub conditions: Vec<PlannedCondition>,
}

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PlannedCondition {
    /// Its type.
    #[serde(rename = "type")]
    pub name: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Its reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The statuses after the teardown: if all running containers exit with 0, and otherwise. One if these are the same; none without
/// the object.
pub(super) fn planned_statuses(facts: &PlanFacts, runtime: &RuntimePod, now: Timestamp) -> Vec<PlannedStatus> {
    let Some(object) = facts.view.object.last_known() else {
        return Vec::new();
    };
    let runs = runtime.possibly_running().next().is_some();
    let outcome = |if_exit_codes: &str, code| {
        let pod = exited(runtime, code, now);
        planned_status(if_exit_codes, object, &pod, &facts.runtime_name, now)
    };
    if !runs {
        return vec![outcome("as known", 0)];
    }
    let (good, bad) = (outcome("all are 0", 0), outcome("one is not 0", UNKNOWN_EXIT_CODE));
    if good.phase == bad.phase && good.conditions == bad.conditions {
        return vec![PlannedStatus {
            if_exit_codes: "any".to_owned(),
            ..good
        }];
    }
    vec![good, bad]
}

fn planned_status(
    if_exit_codes: &str,
    object: &PodObject,
    observed: &RuntimePod,
    runtime_name: &str,
    now: Timestamp,
) -> PlannedStatus {
    let status = status::generate(&StatusInput {
        pod: &object.pod,
        observed,
        runtime_name,
        now,
        stage: StatusStage::Terminated,
        eviction: None,
        messages: &Messages::default(),
    });
    let conditions = status.conditions.into_iter().flatten();
    PlannedStatus {
        if_exit_codes: if_exit_codes.to_owned(),
        phase: status.phase,
        reason: status.reason,
        conditions: conditions
            .map(|it| PlannedCondition {
                name: it.type_,
                status: it.status,
                reason: it.reason,
            })
            .collect(),
    }
}

/// The pod after its stop, with this exit code of all containers that run now.
fn exited(runtime: &RuntimePod, code: i32, now: Timestamp) -> RuntimePod {
    let mut pod = runtime.clone();
    for container in pod.containers.iter_mut().filter(|it| it.state.may_run()) {
        container.state = ContainerState::Exited;
        container.exit_code = code;
        container.finished_at = Some(now);
        container.reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
        container.is_unread = false;
    }
    for sandbox in &mut pod.sandboxes {
        sandbox.state = SandboxState::NotReady;
    }
    pod
}
