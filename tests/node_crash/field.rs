//! All runs: their selection, parallel execution and results.

use std::{
    collections::VecDeque,
    env,
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, ensure};
use testbed::dice::Dice;
use tokio::{runtime::Handle, task::JoinSet, time::Instant};

use super::{
    ask::Cause,
    checks::TooLate,
    fault::{Fault, Strike},
    matrix::{Cell, Matrix},
    run::{JOURNAL, PointNotReached, run},
    shared_stage::SharedStage,
};

/// Parallel runs: each waits much more than it works.
const PARALLEL_RUNS: usize = 6;
/// By default, one cell in this many is drawn, except in the first column of deletions.
const ONE_IN: usize = 8;
/// Longest life of an agent after the start of a change, in milliseconds; most changes take less.
const MAX_LIFE_MS: u64 = 12;
/// How often a run is repeated if its point was not reached, or if it took too long: concurrent steps have no fixed
/// order, and the machine may be busy.
const TRIES: usize = 3;
/// At most one cell in this many may have taken too long at first.
const CELLS_PER_LATE: usize = 20;

type Queue = Arc<Mutex<VecDeque<Strike>>>;

/// `CRASH_MATRIX=all` selects every cell, `CRASH_SEED` repeats the selection of an earlier run; `CRASH_STEP` and
/// `CRASH_FAULT` select cells whose name contains the text.
pub async fn all_survive(cause: Cause) -> Result<()> {
    let start = Instant::now();
    let all = env::var("CRASH_MATRIX").is_ok_and(|it| it == "all");
    let seed = env::var("CRASH_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let places = env::var("CRASH_PLACES").ok().and_then(|it| it.parse().ok());

    let mut shared = SharedStage::set("crash-0").await?;
    let points = run(&mut shared, cause, None, "undisturbed".to_owned()).await;
    let mut matrix = Matrix::of(points.context("an undisturbed run fails")?);
    let forgotten = matrix.without_after();
    ensure!(
        forgotten.is_empty(),
        "changes without a checkpoint::after: {forgotten:?}"
    );
    let strikes = drawn(&matrix, cause, seed, all);
    ensure!(!strikes.is_empty(), "nothing is as CRASH_STEP and CRASH_FAULT say");
    println!(
        "\n{cause:?}: {} steps, {} runs, CRASH_SEED={seed}{}",
        matrix.steps().len(),
        strikes.len(),
        if all { ", all cells" } else { "" }
    );

    let queue: Queue = Arc::new(Mutex::new(strikes.into()));
    let mut workers = JoinSet::new();
    let mut first = Some(shared);
    for number in 0..places.unwrap_or(PARALLEL_RUNS) {
        let (first, queue, runtime) = (first.take(), Arc::clone(&queue), Handle::current());
        // On a separate thread: it also reads kernel files, which blocks.
        workers.spawn_blocking(move || runtime.block_on(work(cause, number, first, queue)));
    }
    let mut late = Vec::new();
    while let Some(done) = workers.join_next().await {
        for (strike, cell, was_late) in done.context("a worker panicked")? {
            if was_late {
                late.push(strike.to_string());
            }
            matrix.set(strike.step, strike.fault, cell);
        }
    }
    println!("{matrix}{} runs in {} s", matrix.count(), start.elapsed().as_secs());
    let broken = matrix.broken();
    ensure!(broken.is_empty(), "{}", broken.join("\n"));
    let allowed = matrix.count().div_ceil(CELLS_PER_LATE);
    ensure!(
        late.len() <= allowed,
        "more than {allowed} cells took too long at first:\n{}",
        late.join("\n")
    );
    Ok(())
}

/// The whole first column of deletions and some of the other cells, in the order of the steps.
fn drawn(matrix: &Matrix, cause: Cause, seed: u64, all: bool) -> Vec<Strike> {
    let only = |variable: &str| env::var(variable).unwrap_or_default();
    let (only_step, only_fault) = (only("CRASH_STEP"), only("CRASH_FAULT"));
    let mut dice = Dice::new(seed);
    let mut strikes = Vec::new();
    for step in matrix.steps() {
        for fault in Fault::ALL {
            let moment = dice.millis(MAX_LIFE_MS);
            let always = all || (cause == Cause::Deleted && fault == Fault::KilledBefore);
            let drawn = dice.one_in(ONE_IN) || always;
            let wanted = step.to_string().contains(&only_step) && fault.to_string().contains(&only_fault);
            if drawn && matrix.applies(step, fault) && wanted {
                strikes.push(Strike {
                    step: step.clone(),
                    fault,
                    moment,
                });
            }
        }
    }
    strikes
}

/// Results of cells, each with whether a run of it took too long.
async fn work(cause: Cause, number: usize, mut shared: Option<SharedStage>, queue: Queue) -> Vec<(Strike, Cell, bool)> {
    let mut done = Vec::new();
    let mut runs = 0;
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    while let Some(strike) = next() {
        let mut cell = Cell::Broke(String::new());
        let mut was_late = false;
        for _ in 0..TRIES {
            runs += 1;
            let tried = attempt(&mut shared, cause, &strike, format!("run-{number}-{runs}")).await;
            let Err(error) = tried else {
                cell = Cell::Survived;
                break;
            };
            // Leftovers of a failed run do not disturb a new stage.
            shared = None;
            let never_came = error.is::<PointNotReached>() || error.root_cause().is::<PointNotReached>();
            let is_late = error.root_cause().is::<TooLate>();
            was_late |= is_late;
            // The number of attempts depends only on the timing of events. The pod's status is sent twice before it is complete.
            let again = |verb, target, times| strike.step.is(verb, target) && strike.step.nth > times;
            let another = again(JOURNAL, "begun", 1) || again("PATCH", "pods/web/status", 2);
            cell = if never_came && another {
                Cell::Missed
            } else {
                Cell::Broke(error.root_cause().to_string())
            };
            if is_late {
                eprintln!("--- {strike} was too late: {error:?}");
            } else if !never_came {
                eprintln!("--- {strike} BROKE: {error:?}");
                break;
            }
        }
        done.push((strike, cell, was_late));
    }
    done
}

async fn attempt(shared: &mut Option<SharedStage>, cause: Cause, strike: &Strike, name: String) -> Result<()> {
    let taken = match shared.take() {
        Some(shared) => shared,
        None => SharedStage::set(&format!("crash-{name}")).await?,
    };
    let taken = shared.insert(taken);
    run(taken, cause, Some(strike.clone()), name).await?;
    Ok(())
}
