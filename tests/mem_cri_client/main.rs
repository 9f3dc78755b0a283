//! The CRI client against a scripted runtime: how it handles answers, errors and missing answers.

mod effects;
mod reads;
mod unreachable;

use std::time::Duration;

use jiff::Timestamp;
use pod_teardown::node::cri::{Cri, CriEndpoint};
use pod_teardown::node::effects::Effects;
use testbed::scripted_cri::{Logged, PodBuilder, ScriptedCri, World};

const MAIN: &str = "container-u1-main-0";
const SANDBOX: &str = "sandbox-u1-0";

/// Timeout of every call without a duration, and extra time of the others.
const PATIENCE: Duration = secs(120);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn one_container() -> World {
    let mut world = World::new();
    world.pod("shop", "web-0", "u1").container("main");
    world
}

fn client(cri: &ScriptedCri, effects: Effects) -> Cri {
    let endpoint: CriEndpoint = cri.endpoint().parse().expect("an endpoint");
    Cri::new(&endpoint, effects)
}

async fn start(world: World) -> (ScriptedCri, Cri) {
    let runtime = ScriptedCri::start(world).await;
    let cri = client(&runtime, Effects::ungated());
    (runtime, cri)
}

/// A runtime with one pod.
async fn start_pod(build: impl for<'a> FnOnce(PodBuilder<'a>) -> PodBuilder<'a>) -> (ScriptedCri, Cri) {
    let mut world = World::new();
    drop(build(world.pod("shop", "web-0", "u1")));
    start(world).await
}

/// How often a read-only call was made.
fn count_reads(runtime: &ScriptedCri, name: &str) -> usize {
    let is_it = |call: &Logged| matches!(call, Logged::Read(called, _) if *called == name);
    runtime.log().iter().filter(|entry| is_it(&entry.call)).count()
}

fn at(time: &str) -> Timestamp {
    format!("2025-12-31T23:{time}Z").parse().expect("a time")
}
