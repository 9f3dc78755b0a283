//! A node full of typical pods: most keep running, some have a container that exits and is restarted.

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    containerd::{POLITE, TOOL_IMAGE},
    kubelet::Kubelet,
    stage::{PODS, Stage},
};

/// One pod in this many has a container that exits.
const RESTLESS: usize = 20;
/// After this, the kubelet restarts it, later each time.
const SLEEP: &str = "sleep 45";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Creates them; they run when this returns.
pub async fn run(stage: &Stage, kubelet: &Kubelet, count: usize) -> Result<()> {
    let settings = json!({ "metadata": { "name": "settings" }, "data": { "settings.yaml": "level: info\n" } });
    stage.admin.create(CONFIG_MAPS, &settings).await?.ok()?;
    let pods: Vec<_> = (0..count).map(pod).collect();
    kubelet.run_pods(stage, &pods).await.map(drop)
}

/// Number of container restarts so far.
pub async fn restarts(stage: &Stage) -> Result<i64> {
    let pods = stage.admin.list(PODS, &[]).await?.ok()?;
    let pods = pods["items"].as_array().into_iter().flatten();
    let containers = pods.flat_map(|pod| pod["status"]["containerStatuses"].as_array().into_iter().flatten());
    Ok(containers
        .filter_map(|container| container["restartCount"].as_i64())
        .sum())
}

fn pod(index: usize) -> Value {
    let app = format!("app-{}", index / 5);
    let mut containers = vec![container("main", POLITE)];
    if index.is_multiple_of(RESTLESS) {
        containers.push(container("restless", SLEEP));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("{app}-{index}"),
            "labels": { "app": app, "pod-template-hash": "5d8f7c9b64" },
            "annotations": { "example.com/checksum": "3f5a1c0d8e7b6a4925c1f0e3d2b4a6978c5e1f0a" },
        },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": containers,
            "volumes": [
                { "name": "settings", "configMap": { "name": "settings" } },
                { "name": "scratch", "emptyDir": {} },
            ],
        },
    })
}

fn container(name: &str, script: &str) -> Value {
    json!({
        "name": name,
        "image": TOOL_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "env": [
            { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
            { "name": "LOG_LEVEL", "value": "info" },
        ],
        "lifecycle": { "preStop": { "exec": { "command": ["sleep", "1"] } } },
        "ports": [{ "name": "http", "containerPort": 8080 }],
        "resources": { "requests": { "cpu": "1m", "memory": "8Mi" }, "limits": { "memory": "64Mi" } },
        "volumeMounts": [
            { "name": "settings", "mountPath": "/etc/app", "readOnly": true },
            { "name": "scratch", "mountPath": "/scratch" },
        ],
    })
}
