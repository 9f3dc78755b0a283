//! Runs many seeds on all CPUs, and describes the first failure.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    panics,
    plan::Plan,
    shrink::shrink,
    state::Met,
    world::{self, Outcome},
};

/// The seeds to run.
#[derive(Debug, Clone, Copy)]
pub struct Runs {
    pub from: u64,
    /// Their number; `None`: until the time is over.
    pub count: Option<u64>,
    pub lasts: Option<Duration>,
}

/// Totals of all runs.
#[derive(Debug, Default)]
pub struct Tally {
    pub runs: u64,
    pub took: Duration,
    /// Virtual time.
    pub virtual_time: Duration,
    /// Runs in which a shim died, the agent overruled the runtime, or an exit status could not be read.
    pub shims_died: u64,
    pub overruled: u64,
    pub unread: u64,
    /// The first seed that broke an invariant, and the message.
    pub broken: Option<(u64, String)>,
}

/// Runs the seeds until one breaks an invariant.
pub fn run(runs: Runs, report_every: Option<Duration>) -> Tally {
    let begun = Instant::now();
    let (next, stop) = (AtomicU64::new(runs.from), AtomicBool::new(false));
    let tally = Mutex::new(Tally::default());
    let last_report = Mutex::new(begun);
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let enough = runs.count.is_some_and(|count| seed >= runs.from + count);
            if enough || runs.lasts.is_some_and(|lasts| begun.elapsed() >= lasts) {
                return;
            }
            let Outcome { broken, took, met, .. } = one(&Plan::of(seed));
            let mut tally = tally.lock().unwrap();
            tally.runs += 1;
            tally.virtual_time += took;
            tally.shims_died += u64::from(met.shim_died);
            tally.overruled += u64::from(met.concluded);
            tally.unread += u64::from(met.unread);
            if let Some(broken) = broken {
                stop.store(true, Ordering::Relaxed);
                tally.broken.get_or_insert((seed, broken));
            }
            let mut last_report = last_report.lock().unwrap();
            if report_every.is_some_and(|every| last_report.elapsed() >= every) {
                *last_report = Instant::now();
                println!("{:>6} s: {} runs", begun.elapsed().as_secs(), tally.runs);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let mut tally = tally.into_inner().unwrap();
    tally.took = begun.elapsed();
    tally
}

/// Runs a plan. A panic is an outcome, too.
pub fn one(plan: &Plan) -> Outcome {
    let (played, panic) = panics::catch_panics(|| catch_unwind(AssertUnwindSafe(|| world::play(plan))));
    let mut outcome = played.unwrap_or_else(|_| Outcome {
        trace: Vec::new(),
        broken: None,
        took: Duration::ZERO,
        met: Met::default(),
    });
    if let Some(panic) = panic {
        outcome
            .broken
            .get_or_insert_with(|| format!("a panic at some time: {panic}"));
    }
    outcome
}

/// Describes a failure: its trace, and the smallest plan that reproduces it.
pub fn describe_failure(seed: u64, broken: &str) -> String {
    let plan = shrink(&Plan::of(seed), broken);
    let Outcome {
        trace, broken: last, ..
    } = one(&plan);
    format!(
        "seed {seed}: {broken}\n\nthe smallest plan that was found:\n{plan}\nits run: {}\n{}\n\nagain: SIM_SEED={seed} cargo \
         test --test sim\n",
        last.unwrap_or_default(),
        trace.join("\n"),
    )
}

// === impl Tally ===

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (runs, took) = (self.runs, self.took);
        let (shims_died, overruled, unread) = (self.shims_died, self.overruled, self.unread);
        let rate = runs * 60_000 / u64::try_from(took.as_millis()).unwrap_or(1).max(1);
        let each = self
            .virtual_time
            .checked_div(u32::try_from(runs).unwrap_or(u32::MAX))
            .unwrap_or_default();
        write!(
            f,
            "{runs} runs in {took:.1?}, {rate} a minute, each of {each:.1?} in its own time; in {shims_died} a shim died, in \
             {overruled} the runtime was overruled, in {unread} an end could not be read"
        )
    }
}
