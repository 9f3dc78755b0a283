//! Deterministic simulation: the agent, the API server in memory and the scripted runtime in one thread on a paused
//! clock, driven by a seed. Every invariant is checked where effects arrive. A failure prints how to reproduce it.
//!
//! `plan → world {agent, outside, disk} → judge → shrink`
//!
//! `SIM_SEED=n` runs only this seed and prints its trace; `SIM_RUNS=n` runs the seeds from 0 to n; `SOAK=1h` runs for this time
//! from a random seed. Invariant 3 is the collector's: see `collector::tests::random`.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "this is a test that prints its results"
)]

mod agent;
mod disk;
mod found;
mod invariants;
mod judge;
mod outside;
mod panics;
mod plan;
mod pods;
mod runner;
mod shrink;
mod state;
mod world;

use std::{env, str::FromStr, time::Duration};

use plan::Plan;
use runner::{Runs, describe_failure, one};

/// Runs of a plain `cargo test`; `make test` runs more.
const FEW: u64 = 300;

fn env_number<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn no_plan_breaks_an_invariant() {
    if let Some(seed) = env_number("SIM_SEED") {
        let plan = Plan::of(seed);
        let outcome = one(&plan);
        println!("{plan}\n{}\n", outcome.trace.join("\n"));
        return assert!(
            outcome.broken.is_none(),
            "{}",
            describe_failure(seed, &outcome.broken.unwrap())
        );
    }
    let soak = env::var("SOAK")
        .ok()
        .map(|text| humantime::parse_duration(&text).expect("SOAK, such as 1h"));
    let runs = match soak {
        Some(lasts) => Runs {
            from: fastrand::u64(1_000_000_000..),
            count: None,
            lasts: Some(lasts),
        },
        None => Runs {
            from: env_number("SIM_FROM").unwrap_or(0),
            count: Some(env_number("SIM_RUNS").unwrap_or(FEW)),
            lasts: None,
        },
    };
    let tally = runner::run(runs, soak.map(|_| Duration::from_secs(60)));
    println!("{tally}, from seed {}", runs.from);
    assert!(tally.runs > 0);
    if let Some((seed, broken)) = tally.broken {
        panic!("{}", describe_failure(seed, &broken));
    }
    if tally.runs >= FEW {
        let met = [tally.shims_died, tally.overruled, tally.unread];
        assert!(
            met.iter().all(|runs| *runs > 0),
            "a runtime fault never occurs: {met:?}"
        );
    }
}

#[test]
fn runs_of_one_seed_are_equal() {
    for seed in 0..25 {
        let plan = Plan::of(seed);
        let (first, second) = (one(&plan), one(&plan));
        let differs = first
            .trace
            .iter()
            .zip(&second.trace)
            .find(|(first, second)| first != second);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(first.trace.len(), second.trace.len(), "seed {seed}");
    }
}
