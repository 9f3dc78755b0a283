//! Probes, readiness gates, networks, volumes and QoS classes.

use serde_json::{Value, json};

use crate::scenario::{Scenario, both, container, ends, pod, runs, scenario, shows, single, with};

/// Created with the pods in both namespaces.
pub const SETTINGS: &str = "settings";

const GATE: &str = "testbed.test/gate";

pub fn scenarios() -> Vec<Scenario> {
    let gated = || {
        with(
            single("Always", &ends(0)),
            json!({ "readinessGates": [{ "conditionType": GATE }] }),
        )
    };
    let gate = json!({ "status": { "conditions": [{ "type": GATE, "status": "True", "reason": "Tested" }] } });
    vec![
        scenario("probe_that_succeeds", probed("readinessProbe", "true"))
            .until(both(runs, shows("main", "ready", true))),
        scenario("probe_that_fails", probed("readinessProbe", "false"))
            .until(both(runs, shows("main", "ready", false))),
        scenario("probe_of_the_start_that_fails", probed("startupProbe", "false"))
            .until(both(runs, shows("main", "started", false))),
        scenario("gate_that_is_shut", gated()),
        scenario("gate_that_is_open", gated())
            .write_when_running("/status", gate)
            .until(|pod| condition(pod, "Ready") == "True"),
        scenario(
            "network_of_the_host",
            with(single("Always", &ends(0)), json!({ "hostNetwork": true })),
        ),
        scenario("volumes", volumes()),
        scenario(
            "guaranteed",
            pod(
                "Never",
                &[with(
                    container("main", &ends(0)),
                    json!({ "resources": { "limits": { "memory": "32Mi", "cpu": "100m" } } }),
                )],
            ),
        ),
    ]
}

fn probed(kind: &str, program: &str) -> Value {
    let mut main = container("main", &ends(0));
    main[kind] = json!({ "exec": { "command": [program] }, "periodSeconds": 1, "failureThreshold": 1000 });
    pod("Always", &[main])
}

fn volumes() -> Value {
    let names = ["memory", "settings", "secret", "projected"];
    let mounts: Vec<_> = names
        .iter()
        .map(|name| json!({ "name": name, "mountPath": format!("/{name}") }))
        .collect();
    let projected = json!([
        { "configMap": { "name": SETTINGS } },
        { "downwardAPI": { "items": [{ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } }] } },
    ]);
    with(
        pod(
            "Always",
            &[with(container("main", &ends(0)), json!({ "volumeMounts": mounts }))],
        ),
        json!({ "volumes": [
            { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } },
            { "name": "settings", "configMap": { "name": SETTINGS } },
            { "name": "secret", "secret": { "secretName": SETTINGS } },
            { "name": "projected", "projected": { "sources": projected } },
        ] }),
    )
}

fn condition<'a>(pod: &'a Value, kind: &str) -> &'a str {
    let conditions = pod["status"]["conditions"].as_array();
    let found = conditions.and_then(|conditions| conditions.iter().find(|it| it["type"] == kind));
    found.and_then(|found| found["status"].as_str()).unwrap_or_default()
}
