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

use memory::{LIMIT, Terminal, Terminals, evicted, peak_with_large};
use testbed::bench::{
    figures::Figures,
    line::{self, Goal, Line},
};

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
    let (mut large, mut terminal, mut deleted) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        large.push(runtime.block_on(peak_with_large(LARGE)).all);
        terminal.push(runtime.block_on(evicted(Terminals::Kept, TERMINAL)));
        deleted.push(runtime.block_on(evicted(Terminals::Deleted, DELETED)));
    }
    let of = |value: &dyn Fn(&Terminal) -> f64| Figures::of(terminal.iter().map(value));
    let of_deleted = |value: &dyn Fn(&Terminal) -> f64| Figures::of(deleted.iter().map(value));
    let line = |what: String, unit, figures, goal| Line {
        what,
        unit,
        figures,
        goal: Some(Goal::AtMost(goal)),
    };
    let lines = [
        line(
            format!("peak, {LARGE} large pods"),
            "MiB",
            Figures::of(large.iter().copied()),
            LIMIT,
        ),
        line(
            format!("peak, {TERMINAL} terminal pods"),
            "MiB",
            of(&|it| it.peak.all),
            LIMIT,
        ),
        line("each terminal pod".to_owned(), "B", of(&|it| it.bytes), BYTES),
        line(
            "a deleted pod beside them".to_owned(),
            "s",
            of(&|it| it.seconds),
            SECONDS,
        ),
        line(
            format!("peak, {DELETED} deleted ones held by a finalizer"),
            "MiB",
            of_deleted(&|it| it.peak.all),
            LIMIT,
        ),
        line(
            "a deleted pod beside these".to_owned(),
            "s",
            of_deleted(&|it| it.seconds),
            SECONDS,
        ),
    ];
    println!(
        "{}",
        line::table("Memory of the agent, API server and runtime in another process", &lines)
    );
}
