//! A Node object with this machine's identity.

use std::fs;

use jiff::Timestamp;
use serde_json::{Value, json};

const CONDITIONS: [(&str, &str, &str); 4] = [
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
    ("Ready", "True", "KubeletReady"),
];

/// The object as a kubelet of this machine would maintain it, with an address for its pods' host.
pub fn node_object(name: &str, host_ip: &str) -> Value {
    let now = format!("{:.0}", Timestamp::now());
    let conditions = CONDITIONS.map(|(kind, status, reason)| {
        json!({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        })
    });
    let resources = json!({"cpu": processors().to_string(), "memory": "16Gi", "pods": "250"});
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": architecture(),
            },
        },
        "spec": {},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": host_ip},
                {"type": "Hostname", "address": name},
            ],
            "capacity": resources,
            "allocatable": resources,
            "conditions": conditions,
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "machineID": line("/etc/machine-id"),
                // Not every virtual machine has one; the kubelet reports it as empty then.
                "systemUUID": line("/sys/class/dmi/id/product_uuid"),
                "bootID": line("/proc/sys/kernel/random/boot_id"),
                "kernelVersion": line("/proc/sys/kernel/osrelease"),
                "osImage": "testbed",
                "containerRuntimeVersion": "containerd://1",
                "kubeletVersion": "v1.37.2",
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": architecture(),
            },
        },
    })
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
