//! `--gc auto` beside kube-controller-manager's garbage collector.

use std::time::Duration;

use anyhow::{Result, ensure};
use jiff::Timestamp;
use serde_json::Value;
use testbed::{
    api::ApiServer as _,
    control_plane::{ControlPlane, ControllerManager, Settings},
    rest::Client,
};

use crate::{
    agent::{Agent, account},
    scene::{delete, gone, in_namespace, owned, plain, to},
};

/// kube-controller-manager's Lease must not change for 45 s.
const TURN: Duration = Duration::from_secs(180);
const MAPS: &str = "configmaps/v1";

/// Deletes an owner and waits for its dependent's deletion, by either collector.
async fn collected(admin: &Client, name: &str) -> Result<()> {
    let maps = in_namespace(MAPS, "default");
    let owner = admin.create(&maps, &plain(name, &owned([]))).await?.ok()?;
    let child = format!("{name}-child");
    admin
        .create(&maps, &plain(&child, &owned([to(&owner, true)])))
        .await?
        .ok()?;
    delete(admin, &format!("{maps}/{name}"), "Foreground").await?;
    gone(admin, &format!("{maps}/{name}")).await?;
    gone(admin, &format!("{maps}/{child}")).await
}

fn stands_by(status: &Value, because: &str) -> bool {
    let why = status["turn"]["standsBy"].as_str();
    why.is_some_and(|why| why.contains(because)) && status["turn"]["worksSince"].is_null()
}

fn works(status: &Value) -> bool {
    status["synced"] == true && status["turn"]["standsBy"].is_null() && status["turn"]["worksSince"].is_string()
}

/// Waits until the agent is on standby for this reason, stops the other collector, and waits until the agent works.
/// Returns the time of the stop.
async fn follows(agent: &Agent, other: ControllerManager, because: &str, admin: &Client) -> Result<Timestamp> {
    let stood = agent.until(TURN, "the agent to stand by", |status| stands_by(status, because));
    let status = other.during(stood).await?;
    ensure!(status["synced"] == false && status["work"].is_null(), "{status}");
    other.during(collected(admin, "by-the-original")).await?;
    ensure!(stands_by(&agent.status().await?, because), "it stood by no longer");
    drop(other);
    let end = Timestamp::now();
    agent.until(TURN, "the agent to work", works).await?;
    collected(admin, "by-the-agent").await?;
    Ok(end)
}

pub async fn it_stands_by_while_an_elected_controller_manager_works_and_follows_when_that_is_gone() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let admin = plane.admin()?;
    let settings = Settings::only_the_collector().with_leader_election();
    let mut other = plane.start_controllers(&settings).await?;
    other.until_at_work().await?;
    let agent = Agent::start(&account(&plane).await?, "auto")?;
    let followed = follows(
        &agent,
        other,
        "kube-controller-manager works: it renews its Lease",
        &admin,
    );
    let end = agent.during(followed).await?;
    let turn = &agent.status().await?["turn"];
    let since: Timestamp = turn["worksSince"].as_str().unwrap_or_default().parse()?;
    let rested = since.duration_since(end);
    // Less the 2 s between two renewals, and two checks.
    ensure!(rested.as_secs() >= 45 - 6, "it followed after {rested}");
    agent.stop().await
}

/// kube-controller-manager with `--leader-elect=false` has no Lease.
pub async fn beside_a_collector_without_a_lease_each_object_comes_to_the_same_end() -> Result<()> {
    let plane = ControlPlane::start().await?;
    let admin = plane.admin()?;
    let mut other = plane.start_controllers(&Settings::only_the_collector()).await?;
    other.until_at_work().await?;
    let agent = Agent::start(&account(&plane).await?, "auto")?;
    let both = async {
        agent.until(TURN, "the agent to work", works).await?;
        for round in 0..5 {
            collected(&admin, &format!("by-both-{round}")).await?;
        }
        Ok(())
    };
    agent.during(other.during(both)).await?;
    agent.stop().await
}
