//! Agent or runtime is killed during a teardown.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use jiff::SignedDuration;
use testbed::wait::until_ok;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    pods::{STUBBORN, exec, hooked, simple},
    scene::{PATIENCE, Scene, grace_end},
};

/// Late in the grace period: much less than a whole one is left.
pub async fn deadline_stays_when_the_agent_is_killed_during_the_wait(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let pod = scene.run(simple("waits", 12, STUBBORN)).await?;
    let start = Instant::now();
    scene.delete(&pod, None).await?;
    scene.wait_for_line("waits", "term").await?;
    let timeline = ["timeline", &scene.name("waits"), "-ojson"];
    let (before, _) = grace_end(&scene.ask(&timeline).await?)?;
    sleep_until(start + Duration::from_secs(10)).await;
    scene.crash_agent().await?;
    scene.start_agent().await?;
    let (after, resumed) = until_ok(PATIENCE, async || grace_end(&scene.ask(&timeline).await?)).await?;
    let latest = resumed.context("the termination is resumed")?.max(before);
    ensure!(after <= latest + SignedDuration::from_secs(1), "{before}, then {after}");
    scene.gone(&pod).await?;
    let took = start.elapsed();
    ensure!(
        took >= Duration::from_millis(11_900),
        "a grace period of 12 s took {took:?}"
    );
    scene.clean(&pod).await?;
    scene.stop_agent().await
}

/// After one signal it waits for its pods. After two it leaves them to the next start.
pub async fn second_stop_signal_exits_at_once_and_loses_nothing(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let pod = scene.run(simple("left", 30, STUBBORN)).await?;
    let start = Instant::now();
    scene.delete(&pod, None).await?;
    scene.wait_for_line("left", "term").await?;
    let agent = scene.own_agent()?;
    agent.send_sigterm()?;
    while !agent.log().contains("Stopping; terminating pods") {
        ensure!(start.elapsed() < PATIENCE, "it does not listen: {}", agent.log_tail());
        sleep(Duration::from_millis(20)).await;
    }
    agent.stop().await?;
    let left = scene.stage.leftovers(std::slice::from_ref(&pod)).await?;
    ensure!(left.has("process"), "its grace period has not ended: {left}");
    scene.start_agent().await?;
    scene.gone_and_clean(&pod).await?;
    let took = start.elapsed();
    ensure!(
        took >= Duration::from_millis(29_900),
        "a grace period of 30 s took {took:?}"
    );
    scene.stop_agent().await
}

pub async fn finished_hook_is_not_rerun_after_a_restart(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let pod = scene
        .run(hooked("once", 4, STUBBORN, &exec("echo hook >> /out/log")))
        .await?;
    scene.delete(&pod, None).await?;
    // The signal comes only after the end of the hook is recorded.
    scene.wait_for_line("once", "term").await?;
    scene.crash_agent().await?;
    scene.start_agent().await?;
    scene.gone_and_clean(&pod).await?;
    let said = scene.logged("once");
    ensure!(said.iter().filter(|line| *line == "hook").count() == 1, "{said:?}");
    scene.stop_agent().await
}

pub async fn hook_interrupted_by_a_crash_gets_the_remaining_time(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let hook = exec("echo hook >> /out/log; sleep 60; echo ended >> /out/log");
    let pod = scene.run(hooked("again", 8, STUBBORN, &hook)).await?;
    let history = scene.follow(&pod).await?;
    let start = Instant::now();
    scene.delete(&pod, None).await?;
    scene.wait_for_line("again", "hook").await?;
    sleep_until(start + Duration::from_secs(6)).await;
    scene.crash_agent().await?;
    scene.start_agent().await?;
    scene.gone(&pod).await?;
    let took = start.elapsed();
    // 8 s of grace period and 2 s of stop.
    ensure!(took >= Duration::from_millis(9_900), "it took {took:?}");
    let said = scene.logged("again");
    ensure!(said == ["hook", "hook", "term"] || said == ["hook", "term"], "{said:?}");
    ensure!(history.end().await?.exit("main")? == (137, "Error"));
    scene.clean(&pod).await?;
    scene.stop_agent().await
}

pub async fn deletion_while_no_agent_ran_is_done_at_its_start(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    scene.stop_agent().await?;
    let graceful = scene.run(simple("graceful", 2, STUBBORN)).await?;
    let forced = scene.run(simple("forced", 30, STUBBORN)).await?;
    scene.delete(&graceful, None).await?;
    scene.start_agent().await?;
    scene.gone_and_clean(&graceful).await?;
    // Only the agent's journal has it from here on.
    scene.delete(&forced, None).await?;
    scene.wait_for_line("forced", "term").await?;
    scene.crash_agent().await?;
    scene.delete(&forced, Some(0)).await?;
    scene.gone(&forced).await?;
    scene.start_agent().await?;
    scene.clean(&forced).await?;
    scene.stop_agent().await
}

pub async fn restart_of_the_runtime_only_delays_a_teardown(scene: &mut Scene) -> Result<()> {
    scene.start_agent().await?;
    let waits = scene.run(simple("waits", 4, STUBBORN)).await?;
    let lives = scene.run(simple("lives", 4, STUBBORN)).await?;
    let before = scene.object("lives").await?;
    let history = scene.follow(&waits).await?;
    scene.delete(&waits, None).await?;
    scene.wait_for_line("waits", "term").await?;
    let stage = Arc::get_mut(&mut scene.stage).context("the stage serves other claims, too")?;
    stage.containerd.restart().await?;
    scene.gone_and_clean(&waits).await?;
    let states = history.end().await?;
    ensure!(states.exit("main")? == (137, "Error"), "{}", states.last());
    scene.untouched(&lives, &before).await?;
    scene.take_down(&lives).await?;
    scene.stop_agent().await
}
