//! Runs the claims against one server, each as a test of its own name.

use std::{future::Future, process::ExitCode, sync::Arc, time::Duration};

use anyhow::Context;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::{runtime::Runtime, time};

use super::{Claim, scene::Scene};
use crate::api::ApiServer;

/// The slowest claims wait for a server that waits 3 s.
const LIMIT: Duration = Duration::from_secs(60);

/// The main function of a test binary: starts a server, checks the claims, ends the server.
pub fn main<S, F>(tables: &[&'static [Claim]], start: impl FnOnce() -> F) -> anyhow::Result<ExitCode>
where
    S: ApiServer + 'static,
    F: Future<Output = anyhow::Result<S>>,
{
    let mut arguments = Arguments::from_args();
    // One after another: some claims make the server forget its history, under everybody.
    arguments.test_threads = Some(1);
    let runtime = Arc::new(Runtime::new().context("starting the runtime")?);
    let server = if arguments.list {
        None
    } else {
        Some(Arc::new(runtime.block_on(start())?))
    };
    let trials = tables
        .iter()
        .copied()
        .flatten()
        .enumerate()
        .map(|(index, claim)| trial(index, claim, server.clone(), runtime.clone()));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    // The exit code is returned, not exited with: the server has to be dropped first.
    Ok(if conclusion.has_failed() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn trial<S: ApiServer + 'static>(
    index: usize,
    claim: &'static Claim,
    server: Option<Arc<S>>,
    runtime: Arc<Runtime>,
) -> Trial {
    Trial::test(claim.name, move || {
        let server = server.ok_or("no server was started to list the claims")?;
        let check = async {
            let scene = Scene::new(server.as_ref(), index).await?;
            (claim.check)(&scene).await
        };
        let checked = runtime.block_on(async { time::timeout(LIMIT, check).await });
        checked
            .map_err(|_| Failed::from("not decided in time"))?
            .map_err(|e| Failed::from(format!("{e:#}")))
    })
}
