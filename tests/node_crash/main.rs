//! The crash matrix: a pod is taken down on a real containerd, once for each step and each fault at it.
//!
//! `ask` starts the termination, `gate` stops the agent at a checkpoint, `run` injects a `fault` there and completes the
//! teardown, `checks` and `storage` verify the invariants, and `matrix` prints the results.

#![allow(
    clippy::disallowed_methods,
    reason = "tests work in places of their own, and remove what they made"
)]
#![allow(clippy::print_stdout, reason = "the matrix is what this prints")]

#[expect(dead_code, reason = "other claims use more of it")]
#[path = "../teardown/drivers.rs"]
mod drivers;
#[expect(dead_code, reason = "other claims use more of it")]
#[path = "../teardown/history.rs"]
mod history;
#[expect(dead_code, reason = "other claims use more of it")]
#[path = "../teardown/pods.rs"]
mod pods;
#[expect(dead_code, reason = "other claims use more of it")]
#[path = "../teardown/scene.rs"]
mod scene;

mod ask;
mod checks;
mod everything;
mod fault;
mod field;
mod gate;
mod matrix;
mod point;
mod run;
mod shared_stage;
mod storage;

use std::{process::ExitCode, time::Duration};

use anyhow::Result;
use testbed::claims::{self, Claim, Limits};

use ask::Cause;

fn main() -> Result<ExitCode> {
    let limits = Limits {
        // Each of them already has many parallel runs.
        at_once: 1,
        time: Duration::from_secs(7200),
    };
    let claim = |name: &str, cause| Claim::new(name, move |_: &()| Box::pin(field::all_survive(cause)));
    let claims = vec![
        claim("a_deletion_survives_every_fault_at_every_step", Cause::Deleted),
        claim("an_eviction_survives_every_fault_at_every_step", Cause::Evicted),
    ];
    claims::run(&limits, (), claims, async |()| Ok(()))
}
