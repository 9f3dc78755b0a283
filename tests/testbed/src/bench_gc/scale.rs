//! The agent and more objects than the control plane of a test holds: on the API server in memory, a process of its own.
//!
//! For each arrangement a new server and a new agent: what is resident is then of this arrangement and nothing before it.

pub mod crowd;
pub mod table;

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::time::Instant;

use self::crowd::{COLLECTION, Crowd};
use super::collector::{Collector, until_quiet};
use super::field::{self, Policy};
use super::gone;
use super::progress::thousands;
use crate::apiserver::process::ApiServerProcess;
use crate::bench::usage::Usage;
use crate::http2::Http2;

/// The small graph that large ones are compared with.
const FEW: u32 = 10_000;
/// Among which half of the objects are shared out.
const OWNERS: u32 = 1000;
/// How many are created and then deleted, to see what an event costs.
const EVENTS: u32 = 5000;
/// How often.
const TIMES: u32 = 3;
/// As many of the dependents of one owner as are waited for.
const FIRST: u32 = 20_000;

/// What the agent needed with some objects.
#[derive(Debug, Clone, Serialize)]
pub struct Seen {
    /// The objects.
    pub crowd: Crowd,
    /// Seconds from its start until it had seen them.
    pub start: f64,
    /// Resident MiB, settled.
    pub resident: f64,
    /// The most resident MiB until then.
    pub peak_start: f64,
    /// The most resident MiB with all that came then.
    pub peak: f64,
    /// CPU microseconds for each event, each time.
    pub event: Vec<f64>,
    /// Dependents a second, of the first ones to go with their owner.
    pub rate: Option<f64>,
}

/// What the agent needed with few objects and with many.
#[derive(Debug, Clone, Serialize)]
pub struct Scale {
    /// Resident MiB with nothing to see.
    pub none: f64,
    /// A small graph.
    pub few: Seen,
    /// One owner of as many as are waited for.
    pub first: Seen,
    /// Half of many objects shared out among owners.
    pub shared: Seen,
    /// Half of many objects with one owner.
    pub half: Seen,
    /// All of many objects with one owner.
    pub all: Seen,
}

/// The two programs.
struct Programs<'a> {
    agent: &'a Path,
    apiserver: &'a Path,
}

// === impl Scale ===

impl Scale {
    /// Measures one arrangement after the other.
    pub async fn measure(agent: &Path, apiserver: &Path, objects: u32) -> Result<Self> {
        let programs = Programs { agent, apiserver };
        let half = objects / 2;
        let few = FEW.min(objects);
        let first = FIRST.min(half);
        Ok(Self {
            none: programs.alone().await?,
            few: programs.see(Crowd::new(10, few / 2, few), None).await?,
            first: programs.see(Crowd::new(1, first, first + 1), Some(first)).await?,
            shared: programs.see(Crowd::new(OWNERS, half, objects), None).await?,
            half: programs.see(Crowd::new(1, half, objects), None).await?,
            all: programs.see(Crowd::new(1, objects, objects + 1), Some(first)).await?,
        })
    }
}

// === impl Programs ===

impl Programs<'_> {
    /// With nothing to see.
    async fn alone(&self) -> Result<f64> {
        let api = ApiServerProcess::start(self.apiserver).await?;
        let agent = Collector::agent(self.agent, &api.administrator()).await?;
        let usage = agent.usage()?;
        let resident = agent.during(async {
            until_quiet(usage).await?;
            usage.resident()
        });
        let resident = resident.await?;
        agent.stop().await?;
        Ok(resident)
    }

    /// With these objects; if so many of the first owner's dependents are to go, the owner is deleted at last.
    async fn see(&self, crowd: Crowd, go: Option<u32>) -> Result<Seen> {
        println!("{crowd}");
        let api = ApiServerProcess::start(self.apiserver).await?;
        let client = Http2::connect(&api.administrator(), 1).await?;
        let owners = crowd.create(&client).await?;
        let begin = Instant::now();
        let agent = Collector::agent(self.agent, &api.administrator()).await?;
        let start = begin.elapsed().as_secs_f64();
        let usage = agent.usage()?;
        let seen = agent.during(async {
            until_quiet(usage).await?;
            let resident = usage.resident()?;
            let peak_start = usage.peak()?;
            usage.forget_peak()?;
            let mut event = Vec::new();
            for time in 0..TIMES {
                event.push(events(&client, usage, &owners, time).await?);
            }
            let rate = match go {
                Some(dependents) => Some(rate(&client, crowd.objects, dependents).await?),
                None => None,
            };
            let peak = usage.peak()?;
            Ok(Seen {
                crowd,
                start,
                resident,
                peak_start,
                peak,
                event,
                rate,
            })
        });
        let seen = seen.await.with_context(|| crowd.to_string())?;
        let mib = seen.peak.max(seen.peak_start);
        println!(
            "  synced after {start:.2} s, {:.1} MiB, {mib:.1} at the peak, {:.1} µs for an event",
            seen.resident,
            seen.event.first().copied().unwrap_or_default()
        );
        // It may have a million deletions before it: nobody waits for them, nor for it.
        drop(agent);
        Ok(seen)
    }
}

/// CPU microseconds of the agent for each event when dependents of owners that stay come and go.
async fn events(client: &Http2, usage: Usage, owners: &[String], time: u32) -> Result<f64> {
    let before = usage.cpu()?;
    let names = crowd::come(client, owners, EVENTS, time).await?;
    until_quiet(usage).await?;
    crowd::go(client, &names).await?;
    until_quiet(usage).await?;
    let spent = usage.cpu()? - before;
    Ok(spent.as_secs_f64() * 1e6 / f64::from(2 * EVENTS))
}

/// Deletes the first owner and waits until so many went with it.
async fn rate(client: &Http2, objects: u32, dependents: u32) -> Result<f64> {
    let begin = Instant::now();
    field::delete(client, &crowd::owner_path(0), Policy::Background).await?;
    let rest = objects - 1 - dependents;
    let gone = gone::until_left(client, COLLECTION, objects, rest, begin)
        .await
        .with_context(|| format!("{} dependents", thousands(dependents)))?;
    Ok(f64::from(dependents) / gone.as_secs_f64())
}
