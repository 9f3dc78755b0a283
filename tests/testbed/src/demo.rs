//! The demo: six pods on a private node are deleted, and the agent's teardown is shown.
//!
//! `cast → stage → deletion → timelines → leftovers`. Everything is removed afterwards, also after a failure.

mod cast;
mod picture;
mod screen;

use std::{collections::BTreeMap, path::Path, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use serde_json::Value;
use tokio::time::Instant;

use self::cast::{Member, NAMESPACE, cast};
use self::screen::{Mood, Screen};
use crate::apiserver::{Config, MemApiServer};
use crate::leftovers::Leftovers;
use crate::rest::EventType;
use crate::stage::{AgentProcess, Stage};
use crate::wait::{eventually, until_ok};

/// Much longer than the slowest pod takes.
const LIMIT: Duration = Duration::from_secs(60);
/// Resources on the node, as [`Leftovers`] names them, with the names shown here.
const RESOURCES: [(&str, &str); 6] = [
    ("container", "containers"),
    ("sandbox", "sandboxes"),
    ("process", "processes"),
    ("mount", "mounts"),
    ("cgroup", "cgroups"),
    ("directory", "directories"),
];
/// Pods whose timelines are in the picture.
const PICTURED: [&str; 2] = ["stubborn", "farewell"];

/// Runs the demo with this agent, and writes its picture as an SVG. Returns whether nothing is left of any pod.
pub async fn run(agent: &Path, picture: Option<&Path>) -> Result<bool> {
    ensure!(
        agent.is_file(),
        "there is no agent at {}: build it (cargo build --release), or name it with --agent",
        agent.display()
    );
    let mut screen = Screen::default();
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
    let before = stage.leftovers(&pods).await?;

    let agent = stage.start_agent(agent).await?;
    screen.record(true);
    screen.heading("All six are deleted; the agent takes them down");
    screen.say("  Cleanup (containers, logs, directories) comes last, of at most four pods at once.\n");
    let last = agent.during(delete(stage, &agent, cast, screen)).await?;

    screen.record(false);
    screen.heading("How each of them went: one bar for each step, from its beginning to its end");
    show_timelines(stage, &agent, cast, &last, screen).await?;
    agent.stop().await?;

    screen.record(true);
    screen.heading("Leftovers");
    // The kernel may need a moment to reap a process.
    let clean = until_ok(Duration::from_secs(5), async || {
        let left = stage.leftovers(&pods).await?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    });
    clean.await.ok();
    let after = stage.leftovers(&pods).await?;
    for (kind, name) in RESOURCES {
        let count = |left: &Leftovers| left.count(kind);
        let mood = if after.has(kind) { Mood::Bad } else { Mood::Good };
        screen.mark(
            mood,
            &format!("{name:12} {:3} before, {} now", count(&before), count(&after)),
        );
    }
    if !after.is_empty() {
        screen.say(&format!("\nThis is left:\n{after}"));
        return Ok(false);
    }
    screen.say("\nNothing is left on the node.");
    Ok(true)
}

/// Deletes all pods, and waits until the agent is done with them. Returns their last objects.
async fn delete(
    stage: &Stage,
    agent: &AgentProcess,
    cast: &[Member],
    screen: &mut Screen,
) -> Result<BTreeMap<String, Value>> {
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let list = stage.admin.list(&path, &[]).await?.ok()?;
    let version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    let mut watch = stage.admin.watch(&path, &[("resourceVersion", version)]).await?;
    let begin = Instant::now();
    let deletes = cast
        .iter()
        .map(|member| stage.admin.delete_pod(NAMESPACE, member.name, member.grace));
    try_join_all(deletes).await?;
    let mut last = BTreeMap::new();
    let mut left = cast.len();
    while left > 0 {
        let Some(event) = tokio::time::timeout_at(begin + LIMIT, watch.next()).await?? else {
            bail!("the API server has ended the watch");
        };
        let name = event.name().to_owned();
        if event.kind == EventType::Deleted {
            left -= 1;
            let seconds = begin.elapsed().as_secs_f64();
            screen.mark(Mood::Good, &format!("{name:12} object deleted after {seconds:.2} s"));
        }
        last.insert(name, event.object);
    }
    eventually(LIMIT, "the node to be clean", async || {
        Ok((agent.status().await?["counters"]["finished"] == cast.len()).then_some(()))
    })
    .await?;
    let seconds = begin.elapsed().as_secs_f64();
    screen.mark(Mood::Good, &format!("node clean after {seconds:.2} s"));
    Ok(last)
}

/// The last status of each container, such as `main 0`.
fn exits(pod: &Value) -> Vec<String> {
    let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let exits = statuses.filter_map(|status| {
        let ended = &status["state"]["terminated"];
        let message = ended["message"].as_str().map(str::trim).unwrap_or_default();
        let message = if message.is_empty() {
            String::new()
        } else {
            format!(" (“{message}”)")
        };
        Some(format!(
            "{} {}{message}",
            status["name"].as_str()?,
            ended["exitCode"].as_i64()?
        ))
    });
    exits.collect()
}

async fn show_timelines(
    stage: &Stage,
    agent: &AgentProcess,
    cast: &[Member],
    last: &BTreeMap<String, Value>,
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
        let exits = last.get(member.name).map(exits).unwrap_or_default();
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
