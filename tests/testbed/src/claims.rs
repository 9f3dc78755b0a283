//! Runs the claims of a test binary as tests, with what they share.

use std::{process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures::future::LocalBoxFuture;
pub use libtest_mimic::Arguments;
use libtest_mimic::{Failed, Trial};
use tokio::{runtime::Runtime, time};

/// Fails if the claim does not hold.
pub type Check<S> = Box<dyn for<'s> FnOnce(&'s S) -> LocalBoxFuture<'s, Result<()>> + Send>;

pub struct Claim<S> {
    pub name: String,
    pub check: Check<S>,
}

impl<S> Claim<S> {
    pub fn new(
        name: impl Into<String>,
        check: impl for<'s> FnOnce(&'s S) -> LocalBoxFuture<'s, Result<()>> + Send + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            check: Box::new(check),
        }
    }
}

/// How many claims run at a time, and the limit of each.
pub struct Limits {
    pub at_once: usize,
    pub time: Duration,
}

/// The main function of a test binary. `end` gets what the claims have shared, after the last of them.
pub fn run<S: Send + Sync + 'static>(
    limits: &Limits,
    shared: S,
    claims: Vec<Claim<S>>,
    end: impl AsyncFnOnce(S) -> Result<()>,
) -> Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(limits.at_once);
    let runtime = Arc::new(Runtime::new().context("starting the runtime")?);
    let shared = Arc::new(shared);
    let limit = limits.time;
    let trials = claims.into_iter().map(|claim| {
        let (shared, runtime) = (Arc::clone(&shared), Arc::clone(&runtime));
        Trial::test(claim.name, move || {
            let checked = runtime.block_on(async { time::timeout(limit, (claim.check)(&shared)).await });
            let checked = checked.context("it is not decided in time").flatten();
            checked.map_err(|error| Failed::from(format!("{error:#}")))
        })
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // The exit code is returned: what they shared is dropped before the exit, and needs the runtime.
    let shared = Arc::into_inner(shared).context("a claim goes on after its end")?;
    runtime.block_on(end(shared))?;
    Ok(if conclusion.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
