//! All runs: which there are, several at a time, and what came of them.

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
    fault::{Fault, Strike},
    matrix::{Cell, Matrix},
    place::Place,
    run::{JOURNAL, NeverCame, run},
};

/// Runs at a time: each waits much more than it works.
const PLACES: usize = 6;
/// Of the cells beside the first column of deletions, one in so many is drawn where not all are asked for.
const ONE_IN: usize = 8;
/// Longest life of an agent after the change was let go; most changes take less.
const MOMENT: u64 = 12;
/// How often a run is tried whose point did not come: what goes on side by side has no order.
const TRIES: usize = 3;

type Queue = Arc<Mutex<VecDeque<Strike>>>;

/// `CRASH_MATRIX=all` takes every cell, `CRASH_SEED` draws those of an earlier run; `CRASH_STEP` and `CRASH_FAULT` take only
/// those whose name contains this text.
pub async fn all_survive(cause: Cause) -> Result<()> {
    let start = Instant::now();
    let all = env::var("CRASH_MATRIX").is_ok_and(|it| it == "all");
    let seed = env::var("CRASH_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()));
    let places = env::var("CRASH_PLACES").ok().and_then(|it| it.parse().ok());

    let mut place = Place::set("crash-0").await?;
    let points = run(&mut place, cause, None, "undisturbed".to_owned()).await;
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
    let mut first = Some(place);
    for number in 0..places.unwrap_or(PLACES) {
        let (first, queue, runtime) = (first.take(), Arc::clone(&queue), Handle::current());
        // On a thread of its own: it also looks at the kernel's files, which blocks.
        workers.spawn_blocking(move || runtime.block_on(work(cause, number, first, queue)));
    }
    while let Some(done) = workers.join_next().await {
        for (strike, cell) in done.context("a worker panicked")? {
            matrix.set(strike.step, strike.fault, cell);
        }
    }
    println!("{matrix}{} runs in {} s", matrix.count(), start.elapsed().as_secs());
    let broken = matrix.broken();
    ensure!(broken.is_empty(), "{}", broken.join("\n"));
    Ok(())
}

/// The whole first column of deletions, and some of the others, in the order of the steps.
fn drawn(matrix: &Matrix, cause: Cause, seed: u64, all: bool) -> Vec<Strike> {
    let only = |variable: &str| env::var(variable).unwrap_or_default();
    let (only_step, only_fault) = (only("CRASH_STEP"), only("CRASH_FAULT"));
    let mut dice = Dice::new(seed);
    let mut strikes = Vec::new();
    for step in matrix.steps() {
        for fault in Fault::ALL {
            let moment = dice.millis(MOMENT);
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

async fn work(cause: Cause, number: usize, mut place: Option<Place>, queue: Queue) -> Vec<(Strike, Cell)> {
    let mut done = Vec::new();
    let mut runs = 0;
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    while let Some(strike) = next() {
        let mut cell = Cell::Broke(String::new());
        for _ in 0..TRIES {
            runs += 1;
            let tried = attempt(&mut place, cause, &strike, format!("run-{number}-{runs}")).await;
            let Err(error) = tried else {
                cell = Cell::Survived;
                break;
            };
            // What a failed run has left is in nobody's way at a new place.
            place = None;
            let never_came = error.is::<NeverCame>() || error.root_cause().is::<NeverCame>();
            // How many attempts there are is a matter of when news comes, and of nothing else.
            let another = strike.step.is(JOURNAL, "begun") && strike.step.nth > 1;
            cell = if never_came && another {
                Cell::Missed
            } else {
                Cell::Broke(error.root_cause().to_string())
            };
            if !never_came {
                eprintln!("--- {strike} BROKE: {error:?}");
                break;
            }
        }
        done.push((strike, cell));
    }
    done
}

async fn attempt(place: &mut Option<Place>, cause: Cause, strike: &Strike, name: String) -> Result<()> {
    let taken = match place.take() {
        Some(place) => place,
        None => Place::set(&format!("crash-{name}")).await?,
    };
    let taken = place.insert(taken);
    run(taken, cause, Some(strike.clone()), name).await?;
    Ok(())
}
