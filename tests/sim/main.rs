//! Deterministic simulation: the agent, the API server in memory and the scripted runtime in one thread on a paused
//! clock, driven by a seed. Every invariant is looked after where effects arrive, and a failure prints what repeats it.
//!
//! `plan → world {agent, outside, disk} → judge → shrink`
//!
//! `SIM_SEED=n` runs this seed alone, and prints what happened; `SIM_RUNS=n` so many from 0 on; `SOAK=1h` for so long,
//! from a seed that nobody has chosen. Invariant 3 is the collector's: `collector::tests::random` sees to it.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "what a run came to is told, and all of this is a test"
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
use runner::{Runs, explained, one};

/// Enough to see that everything still plays together; `make test` asks for more.
const FEW: u64 = 300;

fn asked<T: FromStr>(name: &str) -> Option<T> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn whatever_happens_no_invariant_is_broken() {
    if let Some(seed) = asked("SIM_SEED") {
        let plan = Plan::of(seed);
        let outcome = one(&plan);
        println!("{plan}\n{}\n", outcome.trace.join("\n"));
        return assert!(
            outcome.broken.is_none(),
            "{}",
            explained(seed, &outcome.broken.unwrap())
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
            from: asked("SIM_FROM").unwrap_or(0),
            count: Some(asked("SIM_RUNS").unwrap_or(FEW)),
            lasts: None,
        },
    };
    let tally = runner::run(runs, soak.map(|_| Duration::from_secs(60)));
    println!("{tally}, from seed {}", runs.from);
    assert!(tally.runs > 0);
    if let Some((seed, broken)) = tally.broken {
        panic!("{}", explained(seed, &broken));
    }
    if tally.runs >= FEW {
        let met = [tally.shims_died, tally.overruled, tally.unread];
        assert!(
            met.iter().all(|runs| *runs > 0),
            "a fault of the runtime is never met: {met:?}"
        );
    }
}

#[test]
fn one_seed_is_one_run() {
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
