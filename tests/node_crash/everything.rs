//! The pod of all runs.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use testbed::pods::StartedPod;

use super::{
    drivers::demand,
    pods::{NOTING, container, exec, pod},
};

pub const POD: &str = "web";

/// A pod with every kind of resource.
pub fn everything(grace: Duration) -> Value {
    let mut main = container("main", NOTING);
    main["lifecycle"] = json!({ "preStop": exec("echo hook >> /out/log; sleep 1; echo hooked >> /out/log") });
    main["volumeMounts"] = json!([
        { "name": "disk", "mountPath": "/disk" },
        { "name": "memory", "mountPath": "/memory", "subPath": "part" },
        { "name": "all", "mountPath": "/all" },
    ]);
    let stubborn = container("stubborn", "trap 'echo ignored >> /out/log' TERM");
    let mut sidecar = container("sidecar", "trap 'echo sidecar >> /out/log; exit 0' TERM");
    sidecar["restartPolicy"] = "Always".into();
    let seconds = i64::try_from(grace.as_secs()).unwrap_or_default();
    let mut pod = pod(POD, seconds, &[main, stubborn]);
    pod["spec"]["initContainers"] = json!([sidecar]);
    let field = json!({ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } });
    pod["spec"]["volumes"] = json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } },
        { "name": "all", "projected": { "sources": [{ "downwardAPI": { "items": [field] } }] } },
    ]);
    demand(&mut pod);
    pod
}

/// Links in the pod's volume that lead to data outside.
pub fn link_outside(pod: &StartedPod, kept: &Path) -> Result<()> {
    fs::create_dir_all(kept).with_context(|| format!("create {}", kept.display()))?;
    fs::write(kept.join("data"), "precious").context("write what is to be kept")?;
    let disk = pod.volumes.get("disk").context("volume disk")?;
    fs::create_dir_all(disk.join("deep")).context("make a directory in a volume")?;
    symlink(kept, disk.join("deep/link")).context("link out of a volume")?;
    symlink(kept.join("data"), disk.join("link")).context("link out of a volume")
}
