//! Builders for pods in API and runtime.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use serde_json::{Value, json};

use crate::{
    model::termination::Eviction,
    node::cri::types::{Container, ContainerState as RuntimeState, RuntimePod, Sandbox},
    teardown::status::{Messages, StatusInput, StatusStage, generate},
};
pub(super) const UID: &str = "11111111-2222-3333-4444-555555555555";
pub(super) const STAGES: [StatusStage; 3] = [StatusStage::Terminating, StatusStage::Stopped, StatusStage::Terminated];

/// Seconds after a fixed time in 2026.
pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_780_000_000 + seconds).unwrap()
}

/// Time of the status.
pub(super) fn now() -> Timestamp {
    at(1000)
}

/// The patch for an object without unknown fields.
pub(super) fn patch(pod: &Pod, uid: &str, wanted: &PodStatus) -> Option<Value> {
    crate::teardown::status::patch(pod, None, uid, wanted)
}

/// One pod in API and runtime.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub pod: Pod,
    pub observed: RuntimePod,
    pub eviction: Option<Eviction>,
    pub messages: Messages,
}

impl Case {
    pub(super) fn new(pod: Pod, containers: impl IntoIterator<Item = Container>) -> Self {
        let observed = RuntimePod {
            sandboxes: vec![mk_sandbox()],
            containers: containers.into_iter().collect(),
        };
        Self {
            pod,
            observed,
            eviction: None,
            messages: Messages::default(),
        }
    }

    pub(super) fn generate(&self, stage: StatusStage) -> PodStatus {
        generate(&self.facts(stage))
    }

    pub(super) fn facts(&self, stage: StatusStage) -> StatusInput<'_> {
        StatusInput {
            pod: &self.pod,
            observed: &self.observed,
            runtime_name: "containerd",
            now: now(),
            stage,
            eviction: self.eviction.as_ref(),
            messages: &self.messages,
        }
    }

    /// The entry of the regular container.
    pub(super) fn entry(&self, stage: StatusStage) -> ContainerStatus {
        self.generate(stage).container_statuses.unwrap().remove(0)
    }

    pub(super) fn phase(&self, stage: StatusStage) -> String {
        self.generate(stage).phase.unwrap_or_default()
    }
}

pub(super) fn evicted() -> Eviction {
    Eviction {
        reason: "Evicted".into(),
        message: "The node was low on memory".into(),
        disruption: Some("low on memory".into()),
    }
}

/// The object after a patch by the server, as far as a pod status needs it.
pub(super) fn apply(object: Value, patch: &Value) -> Value {
    let (Value::Object(mut object), Value::Object(patch)) = (object, patch) else {
        return patch.clone();
    };
    for (field, value) in patch {
        let old = object.remove(field).unwrap_or_default();
        let new = match value {
            Value::Null => continue,
            Value::Array(changes) if field == "conditions" => merge_conditions(old, changes),
            Value::Object(_) if old.is_object() => apply(old, value),
            value => value.clone(),
        };
        object.insert(field.clone(), new);
    }
    Value::Object(object)
}

fn merge_conditions(old: Value, changes: &[Value]) -> Value {
    let mut list = if let Value::Array(list) = old { list } else { Vec::new() };
    for change in changes {
        match list.iter_mut().find(|it| it["type"] == change["type"]) {
            Some(old) => *old = apply(old.take(), change),
            None => list.push(change.clone()),
        }
    }
    Value::Array(list)
}

/// The pod in the server after the patch to this status.
pub(super) fn send(live: &Pod, wanted: &PodStatus) -> Pod {
    let body = patch(live, UID, wanted).unwrap_or_else(|| json!({}));
    serde_json::from_value(apply(serde_json::to_value(live).unwrap(), &body)).unwrap()
}

// --- the spec ---

pub(super) fn mk_container(name: &str) -> Spec {
    Spec {
        name: name.into(),
        image: Some(format!("{name}:1")),
        ..Default::default()
    }
}

pub(super) fn mk_sidecar(name: &str) -> Spec {
    Spec {
        restart_policy: Some("Always".into()),
        ..mk_container(name)
    }
}

/// A running pod that is being deleted, without a container entry in its status.
pub(super) fn mk_pod(containers: impl IntoIterator<Item = Spec>) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some("web".into()),
            namespace: Some("shop".into()),
            uid: Some(UID.into()),
            generation: Some(2),
            deletion_timestamp: Some(Time(at(900))),
            ..Default::default()
        },
        spec: Some(PodSpec {
            containers: containers.into_iter().collect(),
            restart_policy: Some("Never".into()),
            ..Default::default()
        }),
        status: Some(PodStatus {
            phase: Some("Running".into()),
            pod_ip: Some("10.0.0.7".into()),
            host_ip: Some("192.168.0.1".into()),
            start_time: Some(Time(at(0))),
            ..Default::default()
        }),
    }
}

/// Changes the spec of a pod.
pub(super) fn with_spec(mut pod: Pod, change: impl FnOnce(&mut PodSpec)) -> Pod {
    change(pod.spec.as_mut().unwrap());
    pod
}

/// Changes the status of a pod.
pub(super) fn with_status(mut pod: Pod, change: impl FnOnce(&mut PodStatus)) -> Pod {
    change(pod.status.as_mut().unwrap());
    pod
}

pub(super) fn with_entry(pod: Pod, entry: ContainerStatus) -> Pod {
    with_status(pod, |status| {
        status.container_statuses.get_or_insert_default().push(entry);
    })
}

pub(super) fn with_init_entry(pod: Pod, entry: ContainerStatus) -> Pod {
    with_status(pod, |status| {
        status.init_container_statuses.get_or_insert_default().push(entry);
    })
}

pub(super) fn with_condition(pod: Pod, condition: PodCondition) -> Pod {
    with_status(pod, |status| status.conditions.get_or_insert_default().push(condition))
}

// --- the API ---

/// An entry with the ID of an instance of [`mk_instance`].
pub(super) fn mk_entry(name: &str, state: ContainerState) -> ContainerStatus {
    let runs = state.running.is_some();
    ContainerStatus {
        container_id: Some(format!("containerd://{name}-0")),
        image: format!("{name}:1"),
        image_id: format!("sha256:{name}"),
        name: name.into(),
        ready: runs,
        started: Some(runs),
        state: Some(state),
        ..Default::default()
    }
}

pub(super) fn running_since(started: Timestamp) -> ContainerState {
    ContainerState {
        running: Some(ContainerStateRunning {
            started_at: Some(Time(started)),
        }),
        ..Default::default()
    }
}

pub(super) fn waiting(reason: Option<&str>) -> ContainerState {
    let waiting = ContainerStateWaiting {
        reason: reason.map(Into::into),
        message: None,
    };
    ContainerState {
        waiting: Some(waiting),
        ..Default::default()
    }
}

pub(super) fn terminated(end: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(end),
        ..Default::default()
    }
}

/// The terminated state of [`mk_instance`].
pub(super) fn end_of(name: &str, exit_code: i32) -> ContainerStateTerminated {
    ContainerStateTerminated {
        container_id: Some(format!("containerd://{name}-0")),
        exit_code,
        finished_at: Some(Time(at(20))),
        reason: Some(if exit_code == 0 { "Completed" } else { "Error" }.into()),
        started_at: Some(Time(at(10))),
        ..Default::default()
    }
}

pub(super) fn mk_condition(kind: &str, status: &str) -> PodCondition {
    PodCondition {
        last_transition_time: Some(Time(at(5))),
        observed_generation: Some(1),
        status: status.into(),
        type_: kind.into(),
        ..Default::default()
    }
}

// --- the runtime ---

pub(super) fn mk_sandbox() -> Sandbox {
    Sandbox {
        id: "sandbox-0".into(),
        attempt: 0,
        is_ready: true,
        created_at: at(1),
        config_source: None,
        ips: vec!["10.0.0.7".into()],
    }
}

pub(super) fn mk_instance(name: &str, state: RuntimeState) -> Container {
    Container {
        id: format!("{name}-0"),
        name: name.into(),
        attempt: 0,
        sandbox_id: "sandbox-0".into(),
        state,
        created_at: at(9),
        started_at: Some(at(10)),
        finished_at: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        image: format!("{name}:1"),
        image_ref: format!("sha256:{name}"),
        restart_count: 0,
        termination_message_file: None,
        message_falls_back_to_log: false,
        log_path: String::new(),
        is_unread: false,
    }
}

pub(super) fn running(name: &str) -> Container {
    mk_instance(name, RuntimeState::Running)
}

pub(super) fn exited(name: &str, exit_code: i32) -> Container {
    let reason = if exit_code == 0 { "Completed" } else { "Error" };
    Container {
        exit_code,
        finished_at: Some(at(20)),
        reason: reason.into(),
        ..mk_instance(name, RuntimeState::Exited)
    }
}
