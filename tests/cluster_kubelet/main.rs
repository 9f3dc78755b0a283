//! The same pods are terminated by a real kubelet, and by the agent after that kubelet's death. Their final statuses and
//! events are compared field by field.
//!
//! `observe`: an agent that only observes compares the kubelet's terminations itself, and touches nothing.

#![allow(
    clippy::disallowed_methods,
    reason = "tests work in places of their own, and remove what they made"
)]

mod compare;
mod expected;
mod half;
mod machine;
mod observe;
mod outcome;
mod run;
mod runner;
mod scenario;
mod scenarios;
mod sweeps;
mod table;

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    runner::main(scenarios::all())
}
