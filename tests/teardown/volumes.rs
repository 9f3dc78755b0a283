//! Volumes: what was mounted is unmounted, what was written is removed.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    pods::{POLITE, container, pod},
    scene::Scene,
};

/// One of each kind, two of them with a subPath.
fn volumes() -> Value {
    let field = json!({ "path": "name", "fieldRef": { "fieldPath": "metadata.name" } });
    json!([
        { "name": "disk", "emptyDir": {} },
        { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "8Mi" } },
        { "name": "secret", "secret": { "secretName": "s" } },
        { "name": "map", "configMap": { "name": "m" } },
        { "name": "down", "downwardAPI": { "items": [&field] } },
        { "name": "all", "projected": { "sources": [
            { "serviceAccountToken": { "path": "token" } },
            { "configMap": { "name": "m", "items": [{ "key": "ca", "path": "deep/ca.crt" }] } },
            { "downwardAPI": { "items": [&field] } },
        ] } },
    ])
}

fn mounts() -> Value {
    json!([
        { "name": "disk", "mountPath": "/disk" },
        { "name": "disk", "mountPath": "/part", "subPath": "a/part" },
        { "name": "memory", "mountPath": "/memory" },
        { "name": "memory", "mountPath": "/memory-part", "subPath": "part" },
        { "name": "secret", "mountPath": "/secret" },
        { "name": "map", "mountPath": "/map" },
        { "name": "map", "mountPath": "/map-file", "subPath": "data" },
        { "name": "down", "mountPath": "/down" },
        { "name": "all", "mountPath": "/all" },
    ])
}

pub async fn volumes_of_every_kind_are_unmounted_and_removed(scene: &mut Scene) -> Result<()> {
    let fill = "mkdir -p /disk/a/b; for i in 1 2 3; do echo $i > /disk/a/b/$i; echo $i > /part/$i; \
                dd if=/dev/zero of=/memory/$i bs=64k count=8; echo $i > /memory-part/$i; done 2>/dev/null";
    let mut main = container("main", &format!("{fill}; {POLITE}"));
    main["volumeMounts"] = mounts();
    let mut second = container("second", POLITE);
    second["volumeMounts"] = mounts();
    let mut full = pod("full", 10, &[main, second]);
    full["spec"]["volumes"] = volumes();
    // The token is that of somebody.
    full["spec"]["serviceAccountName"] = "default".into();
    let pod = scene.run(full).await?;

    let before = scene.stage.leftovers(std::slice::from_ref(&pod)).await?;
    let mounted = before.remains.iter().filter(|line| line.starts_with("mount ")).count();
    // Four on a tmpfs, and three subPaths in each of two containers.
    ensure!(mounted == 4 + 3 * 2, "{before}");
    let written = pod.volumes.get("disk").context("volume disk")?.join("a/b/3");
    ensure!(written.is_file(), "{} is missing", written.display());

    scene.take_down(&pod).await.map(drop)
}

/// What lies behind a hostPath is not the pod's.
pub async fn what_a_host_path_shows_stays(scene: &mut Scene) -> Result<()> {
    let mut main = container(
        "main",
        &format!("mkdir -p /out/kept; echo data > /out/kept/file; {POLITE}"),
    );
    main["volumeMounts"] = json!([{ "name": "out", "mountPath": "/kept", "subPath": "kept" }]);
    let pod = scene.run(pod("host", 10, &[main])).await?;
    scene.take_down(&pod).await?;
    let file = scene.out("host").join("kept/file");
    let text = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
    ensure!(text == "data\n", "{text}");
    Ok(())
}
