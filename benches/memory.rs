//! Memory of the agent on a node with pods of the largest size that an API server stores, and on one with thousands of
//! terminal pods; and how long one deleted pod takes beside those. The agent is the program itself, in a process of its own.
#![allow(
    dead_code,
    unused_imports,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "what was measured is printed, and the modules are those of the tests"
)]

#[path = "../tests/cli/command.rs"]
mod command;
#[path = "../tests/cli/memory.rs"]
mod memory;
#[path = "../tests/cli/run.rs"]
mod run;

use memory::{LIMIT, Terminals, evicted, peak_with_large};
use testbed::bench::Table;

const LARGE: usize = 250;
const TERMINAL: usize = 3_000;
/// Each takes some requests until only its finalizer holds it.
const DELETED: usize = 1_000;
/// Bytes of one terminal pod of which nothing is on the node.
const BYTES: f64 = 500.0;
/// Seconds until the object of a deleted pod is removed beside them.
const SECONDS: f64 = 1.0;
const ROUNDS: usize = 3;

fn main() {
    // `cargo test` runs benches, too; there is nothing to measure without optimization.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut table = Table::default();
    let mut add = |what: String, unit, goal, value| table.add_with_goal(what, unit, Some(goal), [value]);
    for _ in 0..ROUNDS {
        let large = runtime.block_on(peak_with_large(LARGE));
        add(format!("peak, {LARGE} large pods"), "MiB", LIMIT, large.all);
        let terminal = runtime.block_on(evicted(Terminals::Kept, TERMINAL));
        add(
            format!("peak, {TERMINAL} terminal pods"),
            "MiB",
            LIMIT,
            terminal.peak.all,
        );
        add("each terminal pod".to_owned(), "B", BYTES, terminal.bytes);
        add("a deleted pod beside them".to_owned(), "s", SECONDS, terminal.seconds);
        let deleted = runtime.block_on(evicted(Terminals::Deleted, DELETED));
        let what = format!("peak, {DELETED} deleted ones held by a finalizer");
        add(what, "MiB", LIMIT, deleted.peak.all);
        add("a deleted pod beside these".to_owned(), "s", SECONDS, deleted.seconds);
    }
    let title = "Memory of the agent, API server and runtime in another process";
    println!("{}", table.text(title));
}
