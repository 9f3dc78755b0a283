//! The demo: six pods on a private node are deleted, and the agent's teardown is shown.
//!
//! `cast → stage → progress → timelines → remaining`. Everything is removed afterwards, also after a failure.

mod cast;
mod picture;
mod progress;
mod remaining;
mod screen;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;

use self::cast::{Member, NAMESPACE, cast};
use self::progress::{Fate, Progress};
use self::remaining::Remaining;
use self::screen::{Mood, Screen};
use crate::apiserver::{Config, MemApiServer};
use crate::stage::{AgentProcess, Stage};

/// Pods whose timelines are in the picture.
const PICTURED: [&str; 2] = ["stubborn", "farewell"];

/// Runs the demo with this agent, and writes its picture as an SVG. Returns whether nothing is left of any pod.
pub async fn run(agent: &Path, picture: Option<&Path>) -> Result<bool> {
    ensure!(
        agent.is_file(),
        "there is no agent at {}: build it (cargo build --release), or name it with --agent",
        agent.display()
    );
    let mut screen = Screen::new();
    let cast = cast();
    screen.heading("A node of its own");
    let api = MemApiServer::start(Config::default()).await?;
    let stage = Stage::set(Box::new(api)).await.context("set the stage")?;
    screen.say(&format!(
        "  containerd {} with its own root, network and images; an API server in memory\n  at {}. No kubelet.",
        stage.containerd.version(),
        stage.api.url()
    ));
    let clean = play(&stage, agent, &cast, &mut screen).await;
    if let Some(file) = picture {
        std::fs::write(file, picture::svg(screen.recorded())).with_context(|| format!("write {}", file.display()))?;
    }
    let put_away = stage.containerd.stop().await.context("put the node away");
    let clean = clean?;
    put_away?;
    Ok(clean)
}

async fn play(stage: &Stage, agent: &Path, cast: &[Member], screen: &mut Screen) -> Result<bool> {
    screen.heading("Six pods, started as a kubelet would have left them");
    let namespace = serde_json::json!({ "metadata": { "name": NAMESPACE } });
    stage.admin.create("/api/v1/namespaces", &namespace).await?.ok()?;
    let manifests: Vec<_> = cast.iter().map(Member::manifest).collect();
    let pods = stage.run_pods(&manifests).await.context("start the pods")?;
    for member in cast {
        screen.say(&format!("    {:12} {}", member.name, member.does));
    }
    let before = Remaining::look(stage, &pods).await?;

    let agent = stage.start_agent(agent, &[]).await?;
    screen.record(true);
    screen.heading("All six are deleted; the agent takes them down");
    screen.say("  Cleanup (containers, logs, directories) waits until no other pod is being stopped.\n");
    let fates = delete(stage, &agent, cast, screen).await?;

    screen.record(false);
    screen.heading("How each of them went: one bar for each step, from its beginning to its end");
    show_timelines(stage, &agent, cast, &fates, screen).await?;
    let code = agent.stop().await?;

    screen.record(true);
    screen.heading("Leftovers");
    let after = Remaining::look_patiently(stage, &pods).await?;
    for ((kind, before), (_, after)) in before.counts().into_iter().zip(after.counts()) {
        let mood = if after == 0 { Mood::Good } else { Mood::Bad };
        screen.mark(mood, &format!("{kind:12} {before:3} before, {after} now"));
    }
    for line in after.lines() {
        screen.say(&format!("      {line}"));
    }
    ensure!(code == Some(0), "the agent ended with exit code {code:?}");
    screen.say(if after.is_nothing() {
        "\nNothing is left on the node."
    } else {
        "\nSomething is left."
    });
    Ok(after.is_nothing())
}

async fn delete(
    stage: &Stage,
    agent: &AgentProcess,
    cast: &[Member],
    screen: &mut Screen,
) -> Result<BTreeMap<&'static str, Fate>> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let list = stage.admin.list(&path, &[]).await?.ok()?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let watch = stage.admin.watch(&path, &[("resourceVersion", version)]).await?;
    let progress = Progress::new(agent, watch, cast.iter().map(|member| member.name).collect());
    let deletes = cast
        .iter()
        .map(|member| stage.admin.delete_pod(NAMESPACE, member.name, member.grace));
    try_join_all(deletes).await?;
    progress.follow(screen).await
}

async fn show_timelines(
    stage: &Stage,
    agent: &AgentProcess,
    cast: &[Member],
    fates: &BTreeMap<&'static str, Fate>,
    screen: &mut Screen,
) -> Result<()> {
    let events = stage
        .admin
        .list(&format!("/api/v1/namespaces/{NAMESPACE}/events"), &[])
        .await?
        .ok()?;
    let events = events["items"].as_array().cloned().unwrap_or_default();
    for (index, member) in cast.iter().enumerate() {
        screen.record(PICTURED.contains(&member.name));
        screen.heading(&format!("{}. {}: {}", index + 1, member.name, member.does));
        screen.say(&format!("   Look for: {}.", member.look_for));
        screen.say(agent.timeline(NAMESPACE, member.name).await?.trim_end());
        let exits = fates.get(member.name).map(Fate::exits).unwrap_or_default();
        if !exits.is_empty() {
            screen.say(&format!("  reported exit codes: {}", exits.join(", ")));
        }
        let warnings = events
            .iter()
            .filter(|event| event["type"] == "Warning" && event["involvedObject"]["name"] == member.name);
        for event in warnings {
            let word = |key: &str| event[key].as_str().unwrap_or("?");
            screen.say(&format!("  event: {}: {}", word("reason"), word("message")));
        }
    }
    Ok(())
}
