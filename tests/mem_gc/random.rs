//! Random owner references, deletions and faults, from a seed. The collector must never delete an object with a living
//! owner. When everything has settled, every object is as the rules require.
//!
//! `MEM_GC_SEED=N` runs one seed, `MEM_GC_SEEDS=N` that many, `MEM_GC_FIRST=N` starts at this one. `MEM_GC_TRACE`
//! prints the requests.

mod rules;
mod script;

use std::time::Duration;

use tokio::time::sleep;

use self::{rules::Rules, script::Script};
use crate::{things::Things, world::Cluster};

const SEEDS: u64 = 10;
/// Steps per seed.
const STEPS: usize = 60;
/// Longer than the maximum backoff and than the timeout of a silent watch.
const SETTLE_TIME: Duration = Duration::from_secs(900);

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
fn no_object_with_a_living_owner_is_deleted_and_the_rules_hold_in_the_end() {
    let seeds = match number("MEM_GC_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("MEM_GC_FIRST").unwrap_or_else(|| {
                // New seeds in each run; a failure prints its seed.
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
    if std::env::var_os("MEM_GC_TRACE").is_some() {
        let start = tokio::time::Instant::now();
        cluster.api.set_witness(Box::new(move |asked, body, code| {
            if asked.name.is_empty() {
                return;
            }
            let body = String::from_utf8_lossy(body);
            eprintln!(
                "{:?} {} {} {} {code:?} {body}",
                start.elapsed(),
                asked.user,
                asked.verb,
                asked.path
            );
        }));
    }
    let mut script = Script::new(seed);
    let mut rules = Rules::default();
    if script.dice.one_in(2) {
        cluster.start_synced().await;
    } else {
        cluster.start().await;
    }
    rules.check(&cluster);
    for _ in 0..STEPS {
        if script.step(&mut cluster).await {
            // The new collector does not know which owners have orphaned.
            rules.forget_orphaned();
        }
        rules.deleted = script.deleted.take();
        rules.check(&cluster);
        let pause = script.pause();
        // Checked this often, an object cannot lose and regain an owner unseen.
        for _ in 0..10 {
            sleep(pause / 10).await;
            rules.check(&cluster);
        }
    }
    cluster.api.faults().clear();
    for _ in 0..20 {
        sleep(SETTLE_TIME / 20).await;
        rules.check(&cluster);
    }
    script::remove_test_finalizers(&cluster).await;
    for _ in 0..20 {
        sleep(SETTLE_TIME / 20).await;
        rules.check(&cluster);
    }
    rules.check_settled(&cluster);
}
