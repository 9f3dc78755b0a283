//! Random families, deletions and trouble, from a seed. Whenever something was done, nothing may have been deleted by the
//! collector that had a living owner; when all has settled, everything is as the rules ask for.
//!
//! `MEM_GC_SEED=N` plays one world, `MEM_GC_SEEDS=N` so many, `MEM_GC_FIRST=N` from this one on. With
//! `MEM_GC_TRACE` the requests are told.

mod judge;
mod script;

use std::time::Duration;

use tokio::time::sleep;

use self::{judge::Judge, script::Script};
use crate::{things::Things, world::Cluster};

const SEEDS: u64 = 10;
/// Things done in one world.
const STEPS: usize = 60;
/// The longest pause between two tries, and a watch that says nothing, are over by then.
const SETTLED: Duration = Duration::from_secs(900);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
fn nothing_with_a_living_owner_is_deleted_and_in_the_end_all_is_as_the_rules_ask_for() {
    let seeds = match number("MEM_GC_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("MEM_GC_FIRST").unwrap_or_else(|| {
                // Others in each run; a failure names its own.
                u64::try_from(jiff::Timestamp::now().as_second()).unwrap() * 1000
            });
            first..first + number("MEM_GC_SEEDS").unwrap_or(SEEDS)
        }
    };
    for seed in seeds {
        eprintln!("MEM_GC_SEED={seed}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(play(seed));
    }
}

async fn play(seed: u64) {
    let mut cluster = Cluster::new().await;
    cluster.namespace("other");
    Things::define(&cluster, "a.test", true, &["v1", "v1beta1"]).await;
    Things::define(&cluster, "b.test", false, &["v1"]).await;
    let mut script = Script::new(seed);
    let mut judge = Judge::default();
    if script.dice.one_in(2) {
        cluster.start_synced().await;
    } else {
        cluster.start().await;
    }
    judge.look(&cluster);
    for _ in 0..STEPS {
        if script.step(&mut cluster).await {
            // Who has orphaned, only those who saw it know.
            judge.forget();
        }
        judge.deleted = script.deleted.take();
        judge.look(&cluster);
        let pause = script.pause();
        // Seen often enough, nobody loses and finds an owner in between.
        for _ in 0..10 {
            sleep(pause / 10).await;
            judge.look(&cluster);
        }
    }
    cluster.api.faults().clear();
    for _ in 0..20 {
        sleep(SETTLED / 20).await;
        judge.look(&cluster);
    }
    script::let_go(&cluster).await;
    for _ in 0..20 {
        sleep(SETTLED / 20).await;
        judge.look(&cluster);
    }
    judge.complain(&cluster);
}
