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

use std::process::ExitCode;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};

use ask::Cause;

fn main() -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // Each of them already has many parallel runs.
    arguments.test_threads = Some(1);
    let claim = |name: &str, cause| {
        Trial::test(name, move || {
            let runtime = tokio::runtime::Runtime::new()?;
            let survived = runtime.block_on(field::all_survive(cause));
            survived.map_err(|error| Failed::from(format!("{error:#}")))
        })
    };
    let claims = vec![
        claim("a_deletion_survives_whatever_happens_at_whichever_step", Cause::Deleted),
        claim(
            "an_eviction_survives_whatever_happens_at_whichever_step",
            Cause::Evicted,
        ),
    ];
    Ok(libtest_mimic::run(&arguments, claims).exit_code())
}
