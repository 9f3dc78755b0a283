//! The agent with more objects than a test's control plane can hold, on the in-memory API server in its own process.
//!
//! Each arrangement has a new server and a new agent, so that no memory of an earlier one counts.

pub mod object_set;
pub mod table;

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::time::Instant;

use self::object_set::{COLLECTION, ObjectSet};
use super::bench_cluster::{self, Policy};
use super::collector::{Collector, wait_until_idle};
use super::progress::thousands;
use super::remaining;
use crate::apiserver::process::ApiServerProcess;
use crate::bench::usage::Usage;
use crate::http2::Http2;

/// Number of objects of the small graph, the baseline.
const FEW: u32 = 10_000;
/// Number of owners of half of the objects.
const OWNERS: u32 = 1000;
/// Number of objects that are created and deleted to measure the cost of an event.
const EVENTS: u32 = 5000;
/// Repetitions of that.
const TIMES: u32 = 3;
/// Number of dependents whose deletion is waited for.
const FIRST: u32 = 20_000;
/// kubernetes/kubernetes#139436: so many objects with owners, at so many requests per second, took kube-controller-manager
/// 82 minutes.
const LIMITED: u32 = 240_000;
const LIMIT: u32 = 100;

/// Results of one arrangement.
#[derive(Debug, Clone, Serialize)]
pub struct ScaleResult {
    /// The objects.
    pub object_set: ObjectSet,
    /// Seconds from its start until it was synced.
    pub start: f64,
    /// Resident MiB when idle.
    pub resident: f64,
    /// Peak resident MiB until then.
    pub peak_start: f64,
    /// Peak resident MiB with all later work.
    pub peak: f64,
    /// CPU microseconds per event, for each repetition.
    pub event: Vec<f64>,
    /// Dependents per second, of the first ones that were deleted with their owner.
    pub rate: Option<f64>,
}

/// Results of all arrangements.
#[derive(Debug, Clone, Serialize)]
pub struct Scale {
    /// Resident MiB without objects.
    pub none: f64,
    /// A small graph.
    pub few: ScaleResult,
    /// One owner with as many dependents as are waited for.
    pub first: ScaleResult,
    /// Half of many objects, shared by several owners.
    pub shared: ScaleResult,
    /// Half of many objects, with one owner.
    pub half: ScaleResult,
    /// All of many objects, with one owner.
    pub all: ScaleResult,
    /// Objects with owners at a server that limits the collector's requests.
    pub limited: ScaleResult,
}

/// The two binaries.
struct Programs<'a> {
    agent: &'a Path,
    apiserver: &'a Path,
}

// === impl Scale ===

impl Scale {
    /// Measures all arrangements.
    pub async fn measure(agent: &Path, apiserver: &Path, objects: u32) -> Result<Self> {
        let programs = Programs { agent, apiserver };
        let half = objects / 2;
        let few = FEW.min(objects);
        let first = FIRST.min(half);
        Ok(Self {
            none: programs.measure_without_objects().await?,
            few: programs.measure_objects(ObjectSet::new(10, few / 2, few), None).await?,
            first: programs
                .measure_objects(ObjectSet::new(1, first, first + 1), Some(first))
                .await?,
            shared: programs
                .measure_objects(ObjectSet::new(OWNERS, half, objects), None)
                .await?,
            half: programs.measure_objects(ObjectSet::new(1, half, objects), None).await?,
            all: programs
                .measure_objects(ObjectSet::new(1, objects, objects + 1), Some(first))
                .await?,
            limited: programs.measure_limited(LIMITED.min(objects)).await?,
        })
    }
}

// === impl Programs ===

impl Programs<'_> {
    /// Measures without objects.
    async fn measure_without_objects(&self) -> Result<f64> {
        let api = ApiServerProcess::start(self.apiserver).await?;
        let agent = Collector::agent(self.agent, &api.administrator()).await?;
        let usage = agent.usage()?;
        let resident = agent.during(async {
            wait_until_idle(usage).await?;
            usage.resident()
        });
        let resident = resident.await?;
        agent.stop().await?;
        Ok(resident)
    }

    /// Measures only the start, at a server that allows [`LIMIT`] requests per second.
    async fn measure_limited(&self, owned: u32) -> Result<ScaleResult> {
        let owners = owned / 10;
        let object_set = ObjectSet::new(owners, owned, owners + owned);
        println!("{object_set}, at {LIMIT} requests per second");
        let api = ApiServerProcess::start(self.apiserver).await?;
        let client = Http2::connect(&api.administrator(), 1).await?;
        object_set.create(&client).await?;
        object_set::limit_requests(&client, LIMIT).await?;
        let begin = Instant::now();
        let agent = Collector::agent(self.agent, &api.collector()).await?;
        let start = begin.elapsed().as_secs_f64();
        let usage = agent.usage()?;
        wait_until_idle(usage).await?;
        let result = ScaleResult {
            object_set,
            start,
            resident: usage.resident()?,
            peak_start: usage.peak()?,
            peak: usage.peak()?,
            event: Vec::new(),
            rate: None,
        };
        agent.stop().await?;
        Ok(result)
    }

    /// Measures with these objects. With `delete_objects`, the first owner is deleted, and that many of its dependents are waited
    /// for.
    async fn measure_objects(&self, object_set: ObjectSet, delete_objects: Option<u32>) -> Result<ScaleResult> {
        println!("{object_set}");
        let api = ApiServerProcess::start(self.apiserver).await?;
        let client = Http2::connect(&api.administrator(), 1).await?;
        let owners = object_set.create(&client).await?;
        let begin = Instant::now();
        let agent = Collector::agent(self.agent, &api.administrator()).await?;
        let start = begin.elapsed().as_secs_f64();
        let usage = agent.usage()?;
        let result = agent.during(async {
            wait_until_idle(usage).await?;
            let resident = usage.resident()?;
            let peak_start = usage.peak()?;
            usage.forget_peak()?;
            let mut event = Vec::new();
            for time in 0..TIMES {
                event.push(events(&client, usage, &owners, time).await?);
            }
            let rate = match delete_objects {
                Some(dependents) => Some(rate(&client, object_set.objects, dependents).await?),
                None => None,
            };
            let peak = usage.peak()?;
            Ok(ScaleResult {
                object_set,
                start,
                resident,
                peak_start,
                peak,
                event,
                rate,
            })
        });
        let result = result.await.with_context(|| object_set.to_string())?;
        let mib = result.peak.max(result.peak_start);
        println!(
            "  synced after {start:.2} s, {:.1} MiB, {mib:.1} at the peak, {:.1} µs for an event",
            result.resident,
            result.event.first().copied().unwrap_or_default()
        );
        // It may have a million deletions left, so it is not stopped orderly.
        drop(agent);
        Ok(result)
    }
}

/// CPU microseconds of the agent per event, when dependents are created and deleted.
async fn events(client: &Http2, usage: Usage, owners: &[String], time: u32) -> Result<f64> {
    let before = usage.cpu()?;
    let names = object_set::create_dependents(client, owners, EVENTS, time).await?;
    wait_until_idle(usage).await?;
    object_set::delete_objects(client, &names).await?;
    wait_until_idle(usage).await?;
    let spent = usage.cpu()? - before;
    Ok(spent.as_secs_f64() * 1e6 / f64::from(2 * EVENTS))
}

/// Deletes the first owner and waits until this many dependents are deleted; returns dependents per second.
async fn rate(client: &Http2, objects: u32, dependents: u32) -> Result<f64> {
    let begin = Instant::now();
    bench_cluster::delete(client, &object_set::owner_path(0), Policy::Background).await?;
    let rest = objects - 1 - dependents;
    let elapsed = remaining::wait_until_left(client, COLLECTION, objects, rest, begin)
        .await
        .with_context(|| format!("{} dependents", thousands(dependents)))?;
    Ok(f64::from(dependents) / elapsed.as_secs_f64())
}
