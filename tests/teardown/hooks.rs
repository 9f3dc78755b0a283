//! preStop hooks.

use std::{fs, time::Duration};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use testbed::{pods::StartedPod, wait::until_ok};

use super::{
    pods::{NOTING, STUBBORN, exec, hooked},
    scene::{PATIENCE, Scene},
};

pub async fn exec_hook_runs_before_the_stop_signal(scene: &mut Scene) -> Result<()> {
    let hook = exec("echo begins >> /out/log; sleep 1; echo ends >> /out/log");
    let pod = scene.run(hooked("command", 30, NOTING, &hook)).await?;
    let history = scene.follow(&pod).await?;
    scene.take_down(&pod).await?;
    let said = scene.logged("command");
    ensure!(said == ["begins", "ends", "term"], "{said:?}");
    ensure!(history.end().await?.exit("main")? == (0, "Completed"));
    Ok(())
}

pub async fn failed_hook_is_an_event_and_the_stop_continues(scene: &mut Scene) -> Result<()> {
    let hook = exec("echo secret; exit 3");
    let pod = scene.run(hooked("fails", 30, NOTING, &hook)).await?;
    let history = scene.follow(&pod).await?;
    scene.take_down(&pod).await?;
    let event = scene.event(&pod, "FailedPreStopHook").await?;
    ensure!(event["type"] == "Warning", "{event}");
    ensure!(
        event["involvedObject"]["fieldPath"] == "spec.containers{main}",
        "{event}"
    );
    ensure!(!event.to_string().contains("secret"), "{event}");
    ensure!(scene.logged("fails") == ["term"]);
    ensure!(history.end().await?.exit("main")? == (0, "Completed"));
    Ok(())
}

/// The hook begins in the grace period and uses all of it. The container gets 2 s, the minimum of every stop.
pub async fn overrunning_hook_is_cut_off_at_the_deadline(scene: &mut Scene) -> Result<()> {
    let hook = exec("echo begins >> /out/log; sleep 60; echo ends >> /out/log");
    let pod = scene.run(hooked("overruns", 8, STUBBORN, &hook)).await?;
    let history = scene.follow(&pod).await?;
    let took = scene.take_down(&pod).await?;
    ensure!(
        took >= Duration::from_secs(10) && took < Duration::from_secs(60),
        "8 s of grace and 2 s of stop took {took:?}"
    );
    let said = scene.logged("overruns");
    ensure!(said == ["begins", "term"], "{said:?}");
    scene.event(&pod, "FailedPreStopHook").await?;
    ensure!(history.end().await?.exit("main")? == (137, "Error"));
    Ok(())
}

pub async fn http_hook_reaches_a_named_port_of_the_pod(scene: &mut Scene) -> Result<()> {
    let read = r#"while read -r line; do echo "$line" >> /out/request; [ ${#line} -le 1 ] && break; done"#;
    let answer = r#"printf "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n""#;
    let script = format!("nc -l -p 8080 -e sh -c '{read}; {answer}' &\n{NOTING}");
    let hook = json!({ "httpGet": {
        "path": "/bye?now=1", "port": "web", "httpHeaders": [{ "name": "X-Hook", "value": "yes" }],
    }});
    let mut pod = hooked("asked", 30, &script, &hook);
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "web", "containerPort": 8080 }]);
    let pod = scene.run(pod).await?;
    listens(scene, &pod, 8080).await?;
    scene.take_down(&pod).await?;
    let request = fs::read_to_string(scene.out("asked").join("request")).context("read the request")?;
    ensure!(request.starts_with("GET /bye?now=1 HTTP/1.1\r\n"), "{request}");
    ensure!(request.to_lowercase().contains("x-hook: yes"), "{request}");
    ensure!(scene.logged("asked") == ["term"]);
    let events = scene.events(&pod).await?;
    ensure!(
        events.iter().all(|event| event["reason"] != "FailedPreStopHook"),
        "{events:?}"
    );
    Ok(())
}

pub async fn sleep_hook_delays_the_stop_signal(scene: &mut Scene) -> Result<()> {
    let hook = json!({ "sleep": { "seconds": 2 } });
    let pod = scene.run(hooked("sleeps", 30, NOTING, &hook)).await?;
    let took = scene.take_down(&pod).await?;
    ensure!(
        took >= Duration::from_secs(2) && took < Duration::from_secs(30),
        "a sleep of 2 s took {took:?}"
    );
    ensure!(scene.logged("sleeps") == ["term"]);
    Ok(())
}

/// Waits until a process in the pod listens on the port.
async fn listens(scene: &Scene, pod: &StartedPod, port: u16) -> Result<()> {
    let script = format!("cat /proc/net/tcp /proc/net/tcp6 | grep -q ':{port:04X} .* 0A '");
    until_ok(PATIENCE, async || {
        let looked = scene.stage.starter.exec(pod, "main", &["sh", "-c", &script]).await?;
        ensure!(looked.exit_code == 0, "no process listens on port {port}");
        Ok(())
    })
    .await
}
