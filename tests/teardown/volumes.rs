//! Volumes: mounts are unmounted, files are removed.

use std::{ffi::OsStr, fs, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::{cgroups, command::Killed, wait::until_ok};

use super::{
    pods::{POLITE, container, pod, simple},
    scene::{PATIENCE, Scene},
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
    // The token of a service account.
    full["spec"]["serviceAccountName"] = "default".into();
    let pod = scene.run(full).await?;

    let before = scene.stage.leftovers(std::slice::from_ref(&pod)).await?;
    let mounted = before.remains.iter().filter(|line| line.starts_with("mount ")).count();
    // Four on a tmpfs, and three subPaths in each of two containers.
    ensure!(mounted == 4 + 3 * 2, "{mounted} mounts: {before}");
    let written = pod.volumes.get("disk").context("volume disk")?.join("a/b/3");
    ensure!(written.is_file(), "{} is missing", written.display());

    scene.take_down(&pod).await.map(drop)
}

/// The pause between attempts is never longer than 30 s.
#[allow(
    clippy::disallowed_methods,
    reason = "the directory is the test's own, not the agent's work"
)]
pub async fn unmount_by_hand_unblocks_the_pod_soon(scene: &mut Scene) -> Result<()> {
    let mut main = container("main", POLITE);
    main["volumeMounts"] = json!([{ "name": "disk", "mountPath": "/disk" }]);
    let mut web = pod("unmounted", 10, &[main]);
    web["spec"]["volumes"] = json!([{ "name": "disk", "emptyDir": {} }]);
    let pod = scene.run(web).await?;
    let disk = pod.volumes.get("disk").context("volume disk")?;
    // Of an unsupported kind.
    let dir = disk
        .ancestors()
        .nth(2)
        .context("volumes")?
        .join("kubernetes.io~iscsi/lun");
    fs::create_dir_all(&dir)?;
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&dir).status()?;
    ensure!(mounted.success(), "{mounted}");
    scene.delete(&pod, None).await?;
    // The pause after so many attempts is longer than an attempt on a slow machine.
    until_ok(PATIENCE * 3, async || {
        let status = scene.status().await?;
        let mut traces = status["pods"]["terminating"].as_array().into_iter().flatten();
        let attempts = traces.find(|trace| trace["uid"] == pod.uid());
        let is_late = attempts.is_some_and(|trace| trace["attempts"].as_u64() >= Some(7));
        ensure!(is_late, "no seven attempts: {status}");
        Ok(())
    })
    .await?;
    let unmounted = Command::new("umount").arg(&dir).status()?;
    ensure!(unmounted.success(), "{unmounted}");
    fs::remove_dir(&dir)?;
    scene.gone_and_clean(&pod).await
}

/// For example a container that can see all pods' directories. It is named by its ID, as in crictl.
pub async fn why_names_the_busy_mount_and_the_container_that_holds_it(scene: &mut Scene) -> Result<()> {
    let mut main = container("main", POLITE);
    main["volumeMounts"] = json!([{ "name": "memory", "mountPath": "/memory" }]);
    let mut web = pod("held", 10, &[main]);
    web["spec"]["volumes"] = json!([{ "name": "memory", "emptyDir": { "medium": "Memory" } }]);
    let pods = [web, simple("other", 10, POLITE)];
    let [pod, other] = scene.run_all(pods.into()).await?.try_into().ok().context("two pods")?;
    let memory = pod.volumes.get("memory").context("volume memory")?;
    let container = other.containers.get("main").context("container main")?;
    let holder = Killed::sleep_in(memory)?;
    let of_container = |name: &OsStr| name.to_string_lossy().contains(container.as_str());
    for cgroup in cgroups::find(of_container)? {
        fs::write(cgroup.join("cgroup.procs"), holder.pid().to_string())
            .with_context(|| format!("join {}", cgroup.display()))?;
    }
    scene.delete(&pod, None).await?;
    let path = memory.to_str().context("UTF-8")?;
    let named = format!(
        "process {} \"sleep\" of container {} (working directory)",
        holder.pid(),
        &container[..13]
    );
    let of_pod = format!("process {} belongs to pod {}", holder.pid(), scene.name("other"));
    // A search that takes too long names no holder, and during an attempt no next one is announced.
    let texts = [
        "BLOCKED  volumes: ",
        path,
        &*named,
        &of_pod,
        "done: term, sandbox",
        "The next attempt begins by",
    ];
    let shown = scene.why("held", &texts).await;
    let is_named = until_ok(PATIENCE, async || {
        let events = scene.events(&pod).await?;
        let is_named = |event: &Value| {
            let message = event["message"].as_str().unwrap_or_default();
            event["reason"] == "FailedUnMount" && message.contains("of container")
        };
        ensure!(events.iter().any(is_named), "{events:?}");
        Ok(())
    })
    .await;
    drop(holder);
    shown.and(is_named)?;
    scene.gone_and_clean(&pod).await?;
    scene.take_down(&other).await.map(drop)
}

/// The content of a hostPath is not the pod's.
pub async fn content_of_a_host_path_stays(scene: &mut Scene) -> Result<()> {
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
