//! `--gc auto` beside kube-controller-manager's garbage collector.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::Value;
use testbed::{
    api::ApiServer as _,
    control_plane::{ControlPlane, ControllerManager, Leader, Settings},
    rest::Client,
};

use crate::{
    agent::{Agent, account},
    scene::{delete, in_namespace, owned, plain, to, wait_for_deletion},
};

/// kube-controller-manager's Lease must not change for 45 s.
const TURN: Duration = Duration::from_secs(180);
/// Duration of that Lease, which the agent does not consider: a busy machine must not end its holder.
const LEASE: Duration = Duration::from_secs(60);
const MAPS: &str = "configmaps/v1";

/// Deletes an owner and waits for its dependent's deletion, by either collector.
async fn wait_for_collection(admin: &Client, name: &str) -> Result<()> {
    let maps = in_namespace(MAPS, "default");
    let owner = admin.create(&maps, &plain(name, &owned([]))).await?.ok()?;
    let child = format!("{name}-child");
    admin
        .create(&maps, &plain(&child, &owned([to(&owner, true)])))
        .await?
        .ok()?;
    delete(admin, &format!("{maps}/{name}"), "Foreground").await?;
    wait_for_deletion(admin, &format!("{maps}/{name}")).await?;
    wait_for_deletion(admin, &format!("{maps}/{child}")).await
}

fn is_on_standby(status: &Value, because: &str) -> bool {
    let why = status["election"]["standby"].as_str();
    why.is_some_and(|why| why.contains(because)) && status["election"]["activeSince"].is_null()
}

fn works(status: &Value) -> bool {
    status["synced"] == true && status["election"]["standby"].is_null() && status["election"]["activeSince"].is_string()
}

/// Waits until the agent is on standby for this reason, stops the other collector, and waits until the agent works.
/// Returns when the other one last renewed its Lease.
async fn expect_takeover(agent: &Agent, other: ControllerManager, because: &str, admin: &Client) -> Result<Timestamp> {
    let stood = agent.until(TURN, "the agent to stand by", |status| is_on_standby(status, because));
    let status = other.during(stood).await?;
    ensure!(status["synced"] == false && status["work"].is_null(), "{status}");
    other.during(wait_for_collection(admin, "by-the-original")).await?;
    ensure!(is_on_standby(&agent.status().await?, because), "it stood by no longer");
    drop(other);
    agent.until(TURN, "the agent to work", works).await?;
    wait_for_collection(admin, "by-the-agent").await?;
    Ok(Leader::of(admin).await?.context("no Lease")?.renewed)
}

pub async fn the_agent_is_on_standby_while_kube_controller_manager_holds_its_lease_and_then_takes_over() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let admin = plane.admin()?;
    let settings = Settings::only_the_collector().with_leader_election(LEASE);
    let mut other = plane.start_controllers(&settings).await?;
    other.until_at_work().await?;
    let agent = Agent::start(&account(&plane).await?, "auto")?;
    let followed = expect_takeover(
        &agent,
        other,
        "kube-controller-manager works: it renews its Lease",
        &admin,
    );
    let renewed = agent.during(followed).await?;
    let turn = &agent.status().await?["election"];
    let since: Timestamp = turn["activeSince"].as_str().unwrap_or_default().parse()?;
    let rested = since.duration_since(renewed);
    // Less a second for the clocks: the agent does not count by the same one.
    ensure!(rested.as_secs() >= 45 - 1, "it followed after {rested}");
    agent.stop().await
}

/// kube-controller-manager with `--leader-elect=false` has no Lease.
pub async fn beside_kube_controller_manager_without_a_lease_each_object_has_the_same_outcome() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let admin = plane.admin()?;
    let mut other = plane.start_controllers(&Settings::only_the_collector()).await?;
    other.until_at_work().await?;
    let agent = Agent::start(&account(&plane).await?, "auto")?;
    let both = async {
        agent.until(TURN, "the agent to work", works).await?;
        for round in 0..5 {
            wait_for_collection(&admin, &format!("by-both-{round}")).await?;
        }
        Ok(())
    };
    agent.during(other.during(both)).await?;
    agent.stop().await
}
