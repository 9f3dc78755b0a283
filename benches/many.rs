//! Many pods on one node: what each costs the agent must not grow with their number, and a look at all of them must cost
//! next to nothing.
//!
//! The agent works on a thread of its own, whose CPU time is measured; the API server in memory and the scripted runtime
//! work on another.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "what was measured is told, and the machine is a directory of the bench's own"
)]

mod many {
    pub mod agent;
    pub mod node;
}

use std::time::Duration;

use many::{
    agent::Agent,
    node::{Node, name},
};
use testbed::bench::{
    figures::Figures,
    line::{self, Goal, Line},
};
use tokio::time::Instant;

const FEW: usize = 100;
const MANY: usize = 1_000;
/// Rounds of what is quick.
const ROUNDS: usize = 10;
/// After a watch that lasts so long the agent begins the next one without a pause that grows.
const LASTING: Duration = Duration::from_millis(1200);
/// Milliseconds of CPU for a look at a thousand pods.
const LOOK: f64 = 20.0;
/// What a pod may cost among many, as a multiple of what it costs among few.
const GROWTH: f64 = 1.10;

/// What one node came to.
struct Measured {
    runtime_look: Figures,
    api_look: Figures,
    cpu_per_pod: f64,
    time_per_pod: f64,
}

fn main() {
    // `cargo test` runs benches, too; there is nothing to measure without optimisation.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let few = measured(FEW);
    let many = measured(MANY);
    let once = |value| Figures::of([value]);
    let line = |what: String, unit, figures, goal: Option<f64>| Line {
        what,
        unit,
        figures,
        goal: goal.map(Goal::AtMost),
    };
    let lines = [
        line(
            format!("CPU of a runtime's list, {FEW} pods"),
            "ms",
            few.runtime_look,
            None,
        ),
        line(
            format!("CPU of a runtime's list, {MANY} pods"),
            "ms",
            many.runtime_look,
            Some(LOOK),
        ),
        line(format!("CPU of an API's list, {FEW} pods"), "ms", few.api_look, None),
        line(
            format!("CPU of an API's list, {MANY} pods"),
            "ms",
            many.api_look,
            Some(LOOK),
        ),
        line(
            format!("CPU per pod, {FEW} pods at once"),
            "ms",
            once(few.cpu_per_pod),
            None,
        ),
        line(
            format!("CPU per pod, {MANY} pods at once"),
            "ms",
            once(many.cpu_per_pod),
            None,
        ),
        line(
            "many / few".to_owned(),
            "",
            once(many.cpu_per_pod / few.cpu_per_pod),
            Some(GROWTH),
        ),
        line(
            format!("time per pod, {FEW} pods at once"),
            "ms",
            once(few.time_per_pod),
            None,
        ),
        line(
            format!("time per pod, {MANY} pods at once"),
            "ms",
            once(many.time_per_pod),
            None,
        ),
        line(
            "many / few, the servers' share included".to_owned(),
            "",
            once(many.time_per_pod / few.time_per_pod),
            None,
        ),
    ];
    let title = "Many pods on a scripted runtime: CPU of the agent's own thread, time until the last object is gone";
    println!("{}", line::table(title, &lines));
}

fn measured(pods: usize) -> Measured {
    let node = Node::with(pods);
    let agent = Agent::start(&node);
    node.until("the agent watches", |node| node.listed() > 0);
    let runtime_look = Figures::of(agent.looks_at_runtime(ROUNDS));
    let api_look = Figures::of((0..ROUNDS).map(|_| {
        std::thread::sleep(LASTING);
        let (before, lists) = (agent.cpu(), node.listed());
        node.make_it_list();
        node.until("it has listed", |node| node.listed() > lists);
        // What it makes of the list comes after it.
        std::thread::sleep(Duration::from_millis(300));
        millis(agent.cpu() - before)
    }));
    let (before, began) = (agent.cpu(), Instant::now());
    (0..pods).for_each(|pod| node.delete(&name(pod)));
    node.until("all are gone", |node| node.pods() == 0);
    let took = began.elapsed();
    node.until("the runtime is empty", Node::is_clean);
    let cpu = agent.cpu() - before;
    agent.stop();
    Measured {
        runtime_look,
        api_look,
        cpu_per_pod: millis(cpu) / cast(pods),
        time_per_pod: millis(took) / cast(pods),
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[allow(clippy::cast_precision_loss, reason = "pods on one node are few")]
fn cast(count: usize) -> f64 {
    count as f64
}
