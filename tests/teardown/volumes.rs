//! Volumes: mounts are unmounted, files are removed.

use std::{ffi::OsStr, fs, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::cgroups;
use tokio::time::{Instant, sleep};

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

/// The mount table shows it: the next attempt would be half a minute later.
#[allow(
    clippy::disallowed_methods,
    reason = "the directory is the test's own, not the agent's work"
)]
pub async fn unmount_by_hand_unblocks_the_pod_at_once(scene: &mut Scene) -> Result<()> {
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
    let late = Instant::now() + PATIENCE * 3;
    loop {
        let status = scene.status().await?;
        let traces = status["pods"]["terminating"].as_array().cloned().unwrap_or_default();
        let attempts = traces.iter().find(|trace| trace["uid"] == pod.uid());
        if attempts.is_some_and(|trace| trace["attempts"].as_u64() >= Some(7)) {
            break;
        }
        ensure!(Instant::now() < late, "no seven attempts: {status}");
        sleep(Duration::from_millis(50)).await;
    }
    let unmounted = Command::new("umount").arg(&dir).status()?;
    ensure!(unmounted.success(), "{unmounted}");
    fs::remove_dir(&dir)?;
    let since = Instant::now();
    scene.gone_and_clean(&pod).await?;
    // The pause is at least 30 s, and little of it had passed.
    ensure!(
        since.elapsed() < Duration::from_secs(20),
        "only after {:?}",
        since.elapsed()
    );
    Ok(())
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
    let mut holder = Command::new("sleep").arg("300").current_dir(memory).spawn()?;
    let of_container = |name: &OsStr| name.to_string_lossy().contains(container.as_str());
    for cgroup in cgroups::find(of_container)? {
        fs::write(cgroup.join("cgroup.procs"), holder.id().to_string())
            .with_context(|| format!("join {}", cgroup.display()))?;
    }
    scene.delete(&pod, None).await?;
    let name = scene.name("held");
    let path = memory.to_str().context("UTF-8")?;
    let named = format!(
        "process {} \"sleep\" of container {} (working directory)",
        holder.id(),
        &container[..13]
    );
    let late = Instant::now() + PATIENCE;
    let (output, events) = loop {
        // Before the termination begins it is not known. A search that takes too long names no holder.
        let output = scene.ask(&["why", &name]).await.unwrap_or_default();
        let events = scene.events(&pod).await?;
        let is_named = |event: &Value| {
            let message = event["message"].as_str().unwrap_or_default();
            event["reason"] == "FailedUnMount" && message.contains("of container")
        };
        // During an attempt no next one is announced.
        let parts = ["BLOCKED  volumes: ", &*named, "The next attempt begins by"];
        let is_complete = parts.iter().all(|part| output.contains(part));
        if is_complete && events.iter().any(is_named) || Instant::now() > late {
            let events: Vec<Value> = events.into_iter().filter(is_named).collect();
            break (output, events);
        }
        sleep(Duration::from_millis(50)).await;
    };
    holder.kill().and_then(|()| holder.wait())?;
    let of_pod = format!(
        "process {} belongs to pod {}",
        holder.id(),
        scene.name(&other.identity.name)
    );
    for words in [path, &named, &of_pod, "done: term, sandbox"] {
        ensure!(output.contains(words), "{words:?} is not in {output}");
    }
    ensure!(
        output.contains("The next attempt begins by") && !events.is_empty(),
        "{output}; {events:?}"
    );
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
