//! A real kubelet dies and returns repeatedly while pods are created and deleted, and the agent takes over each time.
//! Recorders, the audit log and the kernel's mount events show which side acted. Acts of both on one pod at the same time
//! fail the test. Some active agents are killed and restarted.
//!
//! Others start again and again and never work: `LOOPS` starts (3).
//!
//! `DEATHS`: number of deaths (6). `TAKE_OVER_AFTER`: the agent's flag (2s). `HANDOVER_SEED`: another random run.

#![allow(
    clippy::disallowed_methods,
    reason = "tests work in places of their own, and remove what they made"
)]

mod in_progress;
mod judge;
mod loops;
mod mounts;
mod pods;
mod run;
mod scene;
mod why;

use std::{env, fmt, str::FromStr};

use anyhow::{Result, anyhow};
use run::{Plan, run};
use tokio::sync::Mutex;

/// Two simultaneous kubelets would be slow on two processors.
static ALONE: Mutex<()> = Mutex::const_new(());

fn said<T: FromStr<Err: fmt::Display>>(name: &str, default: T) -> Result<T> {
    match env::var(name) {
        Ok(text) => text.parse().map_err(|error| anyhow!("{name}={text}: {error}")),
        Err(_) => Ok(default),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kubelet_and_agent_are_never_both_on_one_pod() -> Result<()> {
    let plan = Plan {
        deaths: said("DEATHS", 6)?,
        take_over_after: said("TAKE_OVER_AFTER", "2s".to_owned())?,
        seed: said("HANDOVER_SEED", 1)?,
    };
    let _alone = ALONE.lock().await;
    let report = run(&plan).await?;
    eprintln!("{report:#?}");
    report.is_good()
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_works_between_the_starts_of_a_kubelet_that_never_works_and_no_step_is_done_twice() -> Result<()> {
    let plan = loops::Plan {
        loops: said("LOOPS", 3)?,
        seed: said("HANDOVER_SEED", 1)?,
    };
    let _alone = ALONE.lock().await;
    let report = loops::run(&plan).await?;
    eprintln!("{report:#?}");
    report.is_good()
}

#[tokio::test(flavor = "multi_thread")]
async fn work_of_a_killed_kubelet_is_finished_and_pods_deleted_by_force_are_stopped_first() -> Result<()> {
    let _alone = ALONE.lock().await;
    in_progress::run().await
}

#[tokio::test(flavor = "multi_thread")]
async fn why_and_plan_beside_a_living_kubelet_name_what_holds_each_pod_and_touch_nothing() -> Result<()> {
    let _alone = ALONE.lock().await;
    why::run().await
}
