//! Many pods on one node: what each costs the agent must not grow with their number, and a look at all of them must cost
//! next to nothing.
//!
//! The agent works on a thread of its own, whose CPU time is measured; the API server in memory and the scripted runtime
//! work on another.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "the results are printed, and the machine is a directory of the bench's own"
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
use testbed::bench::{Figures, Table};
use tokio::time::Instant;

const FEW: usize = 100;
const MANY: usize = 1_000;
/// Looks at one node.
const LOOKS: usize = 3;
/// Nodes of few pods for one of many: what differs from one to the next must not look like growth.
const FEW_NODES: usize = 10;
const MANY_NODES: usize = 3;
/// After a watch that lasts so long the agent begins the next one without a pause that grows.
const LASTING: Duration = Duration::from_millis(1200);
/// Milliseconds of CPU for a look at a thousand pods.
const LOOK: f64 = 20.0;
/// What a pod may cost among many, as a multiple of what it costs among few.
const GROWTH: f64 = 1.10;

/// What some nodes came to.
#[derive(Default)]
struct Measured {
    runtime_looks: Vec<f64>,
    api_looks: Vec<f64>,
    cpu_per_pod: Vec<f64>,
    time_per_pod: Vec<f64>,
}

fn main() {
    // `cargo test` runs benches, too; there is nothing to measure without optimization.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let (mut few, mut many) = (Measured::default(), Measured::default());
    for _ in 0..MANY_NODES {
        (0..FEW_NODES).for_each(|_| few.measure(FEW));
        many.measure(MANY);
    }
    let mut table = Table::default();
    let mut growth = Vec::new();
    for (pods, measured, goal) in [(FEW, few, None), (MANY, many, Some(LOOK))] {
        let medians = [&measured.cpu_per_pod, &measured.time_per_pod].map(|it| Figures::of(it.iter().copied()).median);
        growth.push(medians);
        let mut add =
            |what: &str, goal, values| table.add_with_goal(format!("{what}, {pods} pods"), "ms", goal, values);
        add("CPU of a runtime's list", goal, measured.runtime_looks);
        add("CPU of an API's list", goal, measured.api_looks);
        add("CPU per pod at once", None, measured.cpu_per_pod);
        add(
            "time per pod at once, the servers' share included",
            None,
            measured.time_per_pod,
        );
    }
    let [cpu, time] = [0, 1].map(|which| growth[1][which] / growth[0][which]);
    table.add_with_goal("CPU per pod: many / few", "", Some(GROWTH), [cpu]);
    table.add("time per pod: many / few", "", [time]);
    let title = "Many pods on a scripted runtime: CPU of the agent's own thread, time until the last object is gone";
    println!("{}", table.text(title));
}

// === impl Measured ===

impl Measured {
    /// One more node.
    fn measure(&mut self, pods: usize) {
        let node = Node::with(pods);
        let agent = Agent::start(&node);
        node.until("the agent watches", |node| node.listed() > 0);
        self.runtime_looks.extend(agent.looks_at_runtime(LOOKS));
        for _ in 0..LOOKS {
            std::thread::sleep(LASTING);
            let (before, lists) = (agent.cpu(), node.listed());
            node.make_it_list();
            node.until("it has listed", |node| node.listed() > lists);
            // What it makes of the list comes after it.
            std::thread::sleep(Duration::from_millis(300));
            self.api_looks.push(millis(agent.cpu() - before));
        }
        let (before, began) = (agent.cpu(), Instant::now());
        (0..pods).for_each(|pod| node.delete(&name(pod)));
        node.until("all are gone", |node| node.pods() == 0);
        let took = began.elapsed();
        node.until("the runtime is empty", Node::is_clean);
        let cpu = agent.cpu() - before;
        agent.stop();
        self.cpu_per_pod.push(millis(cpu) / cast(pods));
        self.time_per_pod.push(millis(took) / cast(pods));
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

#[allow(clippy::cast_precision_loss, reason = "pods on one node are few")]
fn cast(count: usize) -> f64 {
    count as f64
}
