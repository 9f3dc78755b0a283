//! The real kubelet dies and comes back, again and again, while pods are created and deleted; the agent beside it takes over
//! and lets go. Both reach the runtime through recorders of their own, and the API server writes down who has written to
//! pods; the kernel tells who mounts and unmounts. Two hands on one pod are seen. Some agents are killed while they have the
//! node, and others go on.
//!
//! `DEATHS` says how often (6), `TAKE_OVER_AFTER` is the agent's (2s), `HANDOVER_SEED` chooses another run.

#![allow(
    clippy::disallowed_methods,
    reason = "tests work in places of their own, and remove what they made"
)]

mod judge;
mod middle;
mod mounts;
mod pods;
mod run;
mod scene;

use std::{env, fmt, str::FromStr};

use anyhow::{Result, anyhow};
use run::{Plan, run};
use tokio::sync::Mutex;

/// Two kubelets at a time would be slow on two processors.
static ALONE: Mutex<()> = Mutex::const_new(());

fn said<T: FromStr<Err: fmt::Display>>(name: &str, default: T) -> Result<T> {
    match env::var(name) {
        Ok(text) => text.parse().map_err(|error| anyhow!("{name}={text}: {error}")),
        Err(_) => Ok(default),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_dies_and_comes_back_and_the_agent_are_never_both_on_one_pod() -> Result<()> {
    let plan = Plan {
        deaths: said("DEATHS", 6)?,
        take_over_after: said("TAKE_OVER_AFTER", "2s".to_owned())?,
        seed: said("HANDOVER_SEED", 1)?,
    };
    let _alone = ALONE.lock().await;
    let report = run(&plan).await?;
    eprintln!("{report}");
    report.is_good()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_kubelet_was_in_the_middle_of_is_finished_and_what_was_deleted_by_force_is_stopped_first() -> Result<()>
{
    let _alone = ALONE.lock().await;
    middle::finished_by_the_agent().await
}
