//! The collector's benchmark. Direct deletion, kube-controller-manager and the agent delete the same ConfigMaps, in
//! turn, on the same control plane. The agent alone also gets a million objects of the in-memory API server.
//!
//! `plan → trial → round (direct ⇄ manager ⇄ agent) → table`, `plan → scale → table`.

#![allow(clippy::print_stdout, reason = "this is the bench's output")]

pub mod bench_cluster;
pub mod collector;
pub mod direct;
pub mod lists;
pub mod objects;
pub mod page;
pub mod progress;
pub mod remaining;
pub mod scale;
pub mod table;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::time::Instant;

use self::bench_cluster::{BenchCluster, Cascade, Policy};
use self::collector::Contender;
use self::direct::Pace;
use self::progress::thousands;
use self::scale::Scale;
use self::table::{Measured, Round};
use crate::bench::{load, processors_and_load};

/// Numbers of connections that are tried with each number of requests in flight.
const CONNECTIONS: [usize; 3] = [1, 2, 4];
/// Dependents of these trials, unless the benchmark never has that many.
const TRIAL: u32 = 5000;
/// Limit of foreground deletions unless `foreground` is set: they take as long again.
const FOREGROUND: u32 = 20_000;

/// A contender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Direct deletion.
    Direct,
    /// kube-controller-manager.
    Kcm,
    /// The agent.
    Agent,
}

/// What is measured, and with which programs.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Numbers of dependents, one size after the other.
    pub objects: Vec<u32>,
    /// Foreground deletion for any size.
    pub foreground: bool,
    /// Rounds per size.
    pub rounds: usize,
    /// The contenders.
    pub only: Vec<Part>,
    /// Requests in flight of direct deletion. Each is tried; the best takes part.
    pub in_flight: Vec<usize>,
    /// Workers of kube-controller-manager.
    pub workers: u16,
    /// Number of objects of the in-memory API server; 0 to skip that part.
    pub scale: u32,
    /// The agent's binary.
    pub agent: PathBuf,
    /// The in-memory API server's binary.
    pub apiserver: PathBuf,
    /// File for the figures as JSON.
    pub json: Option<PathBuf>,
}

// === impl Plan ===

impl Plan {
    /// Measures, and prints the results.
    pub async fn run(&self) -> Result<()> {
        ensure!(
            self.rounds > 0 && !self.only.is_empty() && !self.objects.contains(&0) && !self.in_flight.contains(&0),
            "nothing to measure: set rounds, contenders, objects and requests in flight"
        );
        if self.has(Part::Agent) {
            for program in [&self.agent, &self.apiserver] {
                ensure!(program.is_file(), "there is no {}: build it first", program.display());
            }
        }
        let begin = Instant::now();
        let machine = processors_and_load()?;
        println!("{machine}");
        let (trials, measured) = self.all_sizes().await?;
        let scale = if self.scale > 0 && self.has(Part::Agent) {
            Some(Scale::measure(&self.agent, &self.apiserver, self.scale).await?)
        } else {
            None
        };
        println!("\n{machine}\n{METHOD}");
        for measured in &measured {
            println!("\n{}", measured.tables().trim_end());
        }
        if let Some(scale) = &scale {
            for table in scale.tables() {
                println!("\n{}", table.to_string().trim_end());
            }
        }
        let minutes = begin.elapsed().as_secs_f64() / 60.0;
        println!("\nLoad {} at the end, after {minutes:.1} minutes.", load()?);
        let Some(file) = &self.json else { return Ok(()) };
        let all = json!({
            "machine": machine,
            "trials": trials,
            "sizes": measured.iter().map(summary).collect::<Vec<_>>(),
            "scale": scale.as_ref().map(|scale| json!({"summary": scale.tables(), "figures": scale})),
        });
        write(file, &all)
    }

    fn has(&self, part: Part) -> bool {
        self.only.contains(&part)
    }

    async fn all_sizes(&self) -> Result<(Vec<(Pace, f64)>, Vec<Measured>)> {
        let Some(&least) = self.objects.iter().min() else {
            return Ok((Vec::new(), Vec::new()));
        };
        let few = least.min(TRIAL);
        let bench_cluster = BenchCluster::start().await?;
        let mut trials = Vec::new();
        if self.has(Part::Direct) {
            for &in_flight in &self.in_flight {
                for connections in CONNECTIONS {
                    let pace = Pace { in_flight, connections };
                    let rate = bench_cluster.direct(few, pace).await?;
                    println!("trial: {}", direct_line(few, pace, rate));
                    trials.push((pace, rate));
                }
            }
        }
        let pace = best(&trials);
        let mut measured = Vec::new();
        for &objects in &self.objects {
            let mut rounds = Vec::new();
            for round in 0..self.rounds {
                println!(
                    "{} ConfigMaps, round {} of {}",
                    thousands(objects),
                    round + 1,
                    self.rounds
                );
                rounds.push(self.round(&bench_cluster, objects, pace, round).await?);
            }
            measured.push(Measured { objects, rounds });
        }
        Ok((trials, measured))
    }

    /// Runs all contenders; each round starts with another one.
    async fn round(
        &self,
        bench_cluster: &BenchCluster,
        objects: u32,
        pace: Option<Pace>,
        number: usize,
    ) -> Result<Round> {
        let mut round = Round::default();
        let mut parts = self.only.clone();
        parts.rotate_left(number % self.only.len());
        for part in parts {
            match part {
                Part::Direct => {
                    if let Some(pace) = pace {
                        let rate = bench_cluster.direct(objects, pace).await?;
                        println!("  {}", direct_line(objects, pace, rate));
                        round.direct = Some(rate);
                    }
                }
                Part::Kcm => {
                    let contender = Contender::Manager(self.workers);
                    for policy in self.policies(objects) {
                        let cascade = cascade(bench_cluster, objects, policy, &contender, "manager").await?;
                        round.manager.insert(policy, cascade);
                    }
                }
                Part::Agent => {
                    let contender = Contender::Agent(self.agent.clone(), bench_cluster.agent().clone());
                    for policy in self.policies(objects) {
                        let cascade = cascade(bench_cluster, objects, policy, &contender, "agent").await?;
                        round.agent.insert(policy, cascade);
                    }
                }
            }
        }
        Ok(round)
    }

    fn policies(&self, objects: u32) -> Vec<Policy> {
        if objects <= FOREGROUND || self.foreground {
            vec![Policy::Background, Policy::Foreground]
        } else {
            vec![Policy::Background]
        }
    }
}

async fn cascade(
    bench_cluster: &BenchCluster,
    objects: u32,
    policy: Policy,
    contender: &Contender,
    name: &str,
) -> Result<Cascade> {
    let cascade = bench_cluster.cascade(objects, policy, contender).await;
    let cascade = cascade.with_context(|| format!("{name}, {} {}", thousands(objects), policy.name()))?;
    println!(
        "  {name}, {}: {:.0}/s, {:.2} s CPU, {:.1} MiB, {:.1} at the peak; synced after {:.2} s, plain lists {:.2} s",
        policy.name(),
        cascade.rate,
        cascade.cpu,
        cascade.resident,
        cascade.peak.max(cascade.peak_start),
        cascade.start,
        cascade.lists.seconds
    );
    Ok(cascade)
}

fn direct_line(objects: u32, pace: Pace, rate: f64) -> String {
    let Pace { in_flight, connections } = pace;
    let objects = thousands(objects);
    format!("direct deletion of {objects}, {in_flight} in flight, connections: {connections}: {rate:.0}/s")
}

fn best(trials: &[(Pace, f64)]) -> Option<Pace> {
    let best = trials.iter().max_by(|(_, one), (_, other)| one.total_cmp(other));
    best.map(|(pace, _)| *pace)
}

const METHOD: &str = "\
Direct: a client that deletes by name over HTTP/2, with the requests in flight and connections that were the fastest in
the trials. Manager: kube-controller-manager with its collector alone and no client limits. Agent: its collector alone.
Each under a service account of kube-system, from the first deletion until a list shows none left. CPU: user and system
time of the collector's process, from the owner's deletion until it is quiet. Resident: VmRSS once settled, and at its
peak from the start until then, and from then on. Plain lists: metadata in protobuf, 500 a page, kinds in parallel.";

fn summary(measured: &Measured) -> serde_json::Value {
    let policies = measured.policies().into_iter();
    let summary: Vec<_> = policies
        .map(|policy| json!({"policy": policy, "lines": measured.lines(policy)}))
        .collect();
    json!({"summary": summary, "measured": measured})
}

fn write(file: &Path, all: &serde_json::Value) -> Result<()> {
    let text = serde_json::to_string_pretty(all)?;
    fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))
}
