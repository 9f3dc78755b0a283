//! Faults of the API server during a teardown, injected into the in-memory one.

use std::time::Duration;

use anyhow::{Result, ensure};
use testbed::{
    apiserver::{
        MemApiServer,
        faults::{Action, Fault},
        requests::Request,
    },
    claims::Claim,
    wait::eventually,
};
use tokio::time::sleep;

use crate::cases::{
    Scene, Shared, claims,
    pods::{NOTING, POLITE, simple},
    scene::PATIENCE,
};

/// The claims of this file.
pub fn cases() -> Vec<Claim<Shared<MemApiServer>>> {
    claims! {
        in faults on MemApiServer;
        Shared: [
            rejected_status_is_sent_again,
            retry_after_of_the_server_is_respected,
            lost_response_changes_nothing,
            late_delete_does_not_delete_a_recreated_pod,
        ],
        Own: [
            interrupted_watch_loses_nothing,
            deletion_during_an_api_outage_is_found_after_it,
        ],
    }
}

/// Neither hook nor stop are repeated.
async fn rejected_status_is_sent_again(scene: &mut Scene, api: &MemApiServer) -> Result<()> {
    let pod = scene.run(simple("refused", 30, NOTING)).await?;
    let history = scene.follow(&pod).await?;
    for fault in [Fault::status(500).times(3), Fault::new(Action::Refuse).once()] {
        api.faults()
            .inject(fault.verb("patch").resource("pods/status").name("refused"));
    }
    scene.take_down(&pod).await?;
    ensure!(scene.logged("refused") == ["term"], "{:?}", scene.logged("refused"));
    let states = history.end().await?;
    ensure!(states.exit("main")? == (0, "Completed"), "{}", states.last());
    all_used(api, "refused")
}

async fn retry_after_of_the_server_is_respected(scene: &mut Scene, api: &MemApiServer) -> Result<()> {
    let pod = scene.run(simple("patient", 30, POLITE)).await?;
    for verb in ["patch", "delete"] {
        api.faults()
            .inject(Fault::too_many(3).verb(verb).name("patient").user(&user(scene)).once());
    }
    let took = scene.take_down(&pod).await?;
    ensure!(took >= Duration::from_secs(3), "it came back after {took:?}");
    all_used(api, "patient")
}

async fn lost_response_changes_nothing(scene: &mut Scene, api: &MemApiServer) -> Result<()> {
    let pod = scene.run(simple("lost", 30, NOTING)).await?;
    let history = scene.follow(&pod).await?;
    for verb in ["patch", "delete"] {
        let fault = Fault::new(Action::LoseResponse).verb(verb).name("lost");
        api.faults().inject(fault.user(&user(scene)).once());
    }
    scene.delete(&pod, None).await?;
    scene.gone_and_clean(&pod).await?;
    all_used(api, "lost")?;
    let states = history.end().await?;
    ensure!(states.exit("main")? == (0, "Completed"), "{}", states.last());
    // The lost request was executed all the same: the object is deleted. The agent learns that a moment later.
    eventually(PATIENCE, "the end of the teardown", async || {
        let status = scene.status().await?;
        let mut left = status["pods"]["terminating"].as_array().into_iter().flatten();
        Ok(left.all(|trace| trace["uid"] != pod.uid()).then_some(()))
    })
    .await
}

async fn interrupted_watch_loses_nothing(scene: &mut Scene, api: &MemApiServer) -> Result<()> {
    scene.start_agent().await?;
    let pods = (0..4).map(|index| simple(&format!("cut-{index}"), 30, POLITE));
    let pods = scene.run_all(pods.collect()).await?;
    for pod in &pods {
        let fault = Fault::new(Action::CutWatch).verb("watch").resource("pods");
        api.faults().inject(fault.user(&user(scene)).once());
        scene.delete(pod, None).await?;
    }
    for pod in &pods {
        scene.gone_and_clean(pod).await?;
    }
    scene.stop_agent().await
}

/// Watch, lists and the Node fail.
async fn deletion_during_an_api_outage_is_found_after_it(scene: &mut Scene, api: &MemApiServer) -> Result<()> {
    scene.start_agent().await?;
    let graceful = scene.run(simple("graceful", 30, POLITE)).await?;
    let forced = scene.run(simple("forced", 30, POLITE)).await?;
    for verb in ["get", "list", "watch"] {
        api.faults().inject(Fault::status(503).verb(verb).user(&user(scene)));
    }
    api.faults()
        .inject(Fault::new(Action::CutWatch).verb("watch").user(&user(scene)).once());
    eventually(PATIENCE, "the outage", async || {
        Ok((scene.status().await?["watch"]["state"] != "watching").then_some(()))
    })
    .await?;
    scene.delete(&graceful, None).await?;
    scene.delete(&forced, Some(0)).await?;
    let no_answer = "the API server does not answer this agent";
    scene
        .why(
            "graceful",
            &[
                no_answer,
                "check the API server and the network to it: pod-teardown check",
            ],
        )
        .await?;
    api.faults().clear();
    scene.gone_and_clean(&graceful).await?;
    scene.gone_and_clean(&forced).await?;
    scene.stop_agent().await
}

/// During the final delete the pod is deleted by another client, and recreated under its name on another node.
async fn late_delete_does_not_delete_a_recreated_pod(scene: &mut Scene, api: &MemApiServer) -> Result<()> {
    let pod = scene.run(simple("late", 30, POLITE)).await?;
    // The test's own requests take place meanwhile, and then it waits for the agent's.
    let delay = Fault::delay(Duration::from_secs(10)).verb("delete").name("late");
    api.faults().inject(delay.user(&user(scene)).once());
    scene.delete(&pod, None).await?;
    while all_used(api, "late").is_err() {
        sleep(Duration::from_millis(20)).await;
    }
    scene.delete(&pod, Some(0)).await?;
    let mut successor = simple("late", 30, POLITE);
    successor["metadata"]["namespace"] = scene.namespace.as_str().into();
    successor["spec"]["nodeName"] = "elsewhere".into();
    scene.stage.admin.create_pod(&successor).await?;
    let before = scene.object("late").await?;
    scene.clean(&pod).await?;
    ensure!(scene.object("late").await? == before);
    let deletes: Vec<Request> = api
        .requests()
        .into_iter()
        .filter(|request| request.asked.verb == "delete" && request.asked.namespace == scene.namespace)
        .filter(|request| request.asked.user == user(scene))
        .collect();
    ensure!(
        deletes.iter().map(|request| request.code).eq([Some(409)]),
        "{deletes:?}"
    );
    Ok(())
}

fn user(scene: &Scene) -> String {
    format!("system:node:{}", scene.stage.node)
}

/// Waits until all faults for the object of this name were used.
fn all_used(api: &MemApiServer, name: &str) -> Result<()> {
    let left = api.faults().pending();
    let left: Vec<_> = left
        .iter()
        .filter(|fault| fault.name.as_deref() == Some(name))
        .collect();
    ensure!(left.is_empty(), "faults that met nothing: {left:?}");
    Ok(())
}
