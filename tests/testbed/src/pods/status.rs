//! The status that a kubelet writes once a pod runs.

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_cri::v1::{ContainerState, ContainerStatus, ContainerStatusRequest};
use k8s_openapi::api::core::v1::Container;
use serde_json::{Map, Value, json};

use super::StartedPod;
use super::configs;
use super::qos::QosClass;
use super::start::is_sidecar;
use crate::containerd::Cri;

/// Conditions of a running pod.
const CONDITIONS: [&str; 5] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
];

/// Reads the containers' state from the runtime and converts it to the API's form.
pub(super) async fn of(mut cri: Cri, started: &StartedPod, host_ip: &str) -> Result<Value> {
    let spec = started.pod.spec.as_ref().context("read the pod: spec is missing")?;
    let init = statuses(&mut cri, started, spec.init_containers.as_deref().unwrap_or_default()).await?;
    let main = statuses(&mut cri, started, &spec.containers).await?;
    let generation = started.pod.metadata.generation;
    let conditions = CONDITIONS.map(|kind| {
        let condition = json!({
            "type": kind,
            "status": "True",
            "lastProbeTime": null,
            "lastTransitionTime": time(started.started_at),
        });
        with_generation(condition, generation)
    });
    let ip = started.ip.as_deref().unwrap_or(host_ip);
    let mut status = json!({
        "phase": "Running",
        "conditions": conditions,
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "startTime": time(started.started_at),
        "qosClass": QosClass::of(&started.pod).name(),
        "containerStatuses": main,
    });
    if !init.is_empty() {
        status["initContainerStatuses"] = Value::Array(init);
    }
    Ok(with_generation(status, generation))
}

async fn statuses(cri: &mut Cri, started: &StartedPod, containers: &[Container]) -> Result<Vec<Value>> {
    let mut statuses = Vec::new();
    for container in containers {
        let id = started.containers.get(&container.name);
        let id = id.with_context(|| format!("look up container {}: it was not started", container.name))?;
        let request = ContainerStatusRequest {
            container_id: id.clone(),
            verbose: false,
        };
        let answer = cri
            .container_status(request)
            .await
            .with_context(|| format!("look at container {id}"))?;
        statuses.push(one(container, &answer.into_inner().status.unwrap_or_default()));
    }
    Ok(statuses)
}

fn one(container: &Container, status: &ContainerStatus) -> Value {
    let id = format!("containerd://{}", status.id);
    let running = status.state() == ContainerState::ContainerRunning;
    let state = if running {
        json!({"running": {"startedAt": time_of(status.started_at)}})
    } else {
        json!({"terminated": {
            "exitCode": status.exit_code,
            "reason": status.reason,
            "startedAt": time_of(status.started_at),
            "finishedAt": time_of(status.finished_at),
            "containerID": &id,
        }})
    };
    // An init container that ended well counts as ready.
    let ready = running || (!is_sidecar(container) && status.exit_code == 0);
    json!({
        "name": container.name,
        "state": state,
        "lastState": Map::new(),
        "ready": ready,
        "restartCount": 0,
        "image": configs::image(container),
        "imageID": status.image_ref,
        "containerID": id,
        "started": running,
    })
}

fn with_generation(mut value: Value, generation: Option<i64>) -> Value {
    if let Some(generation) = generation {
        value["observedGeneration"] = json!(generation);
    }
    value
}

/// The API has whole seconds.
fn time(timestamp: Timestamp) -> String {
    format!("{timestamp:.0}")
}

fn time_of(nanoseconds: i64) -> Option<String> {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).ok().map(time)
}
