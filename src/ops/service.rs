//! Tells systemd how the agent is, where that has started it as a service of `Type=notify`.

use std::{env, path::Path, sync::Arc, time::Duration};

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{admin::Admin, status};
use crate::{
    cli::NodeFlags,
    config::{self, Settings, layout},
    model::{
        foreign::ForeignText,
        problem::{Problem, ProblemKind},
    },
    node::host::PROC,
};

/// How often what `systemctl status` shows is brought up to date.
const EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether what is not there has come.
const LOOK: Duration = Duration::from_secs(5);
/// systemd ignores a message of more than 4096 bytes.
const LONGEST: usize = 1024;

/// What the flags say. A service waits for files that are not there yet: the package is installed before its node has joined a
/// cluster, and nobody starts it again when that is done. A person at a terminal is told at once.
pub async fn settings(flags: &NodeFlags, mistakes: &[Problem]) -> Result<Settings, Vec<Problem>> {
    let mut told = Vec::new();
    let mut half_written = false;
    loop {
        let all = layout::complete(flags, Path::new("/"), Path::new(PROC));
        let is_to_come = |it: &Problem| matches!(it.kind, ProblemKind::Absent | ProblemKind::NotGiven);
        match config::validate_all(&all, mistakes).await {
            Err(problems) if is_service() && problems.iter().all(is_to_come) => {
                if problems != told {
                    waits(&problems).await;
                    told = problems;
                }
                half_written = true;
            }
            // Whoever writes these files may be in the middle of one.
            Err(_) if half_written => half_written = false,
            settled => return settled,
        }
        let watchdog = watchdog_enabled();
        if watchdog.is_some() {
            send(&[NotifyState::Watchdog], None).await;
        }
        sleep(watchdog.map_or(LOOK, |within| LOOK.min(within / 3))).await;
    }
}

async fn waits(problems: &[Problem]) {
    for problem in problems {
        let Problem { what, remedy, .. } = problem;
        tracing::warn!(what, remedy, "Not there yet; waiting for it");
    }
    let first = problems.first().map_or_else(String::new, Problem::to_string);
    send(&[NotifyState::Ready], Some(&format!("waiting: {first}"))).await;
}

/// Says that the agent has started, and from then on how it is, until it is dropped. The watchdog is fed only by an agent whose
/// parts answer: systemd starts one anew that does not, which loses nothing.
pub async fn tell(answers: Arc<Admin>) {
    if !is_service() {
        return;
    }
    let watchdog = watchdog_enabled();
    let every = watchdog.map_or(EVERY, |within| EVERY.min(within / 3));
    send(&[NotifyState::Ready], None).await;
    let mut told = String::new();
    loop {
        if let Ok(Some(report)) = timeout(every, answers.report()).await {
            let line = status::line(&report);
            if line != told {
                send(&[], Some(&line)).await;
                told = line;
            }
            if watchdog.is_some() {
                send(&[NotifyState::Watchdog], None).await;
            }
        }
        sleep(every).await;
    }
}

/// Says that the agent stops, and may take a while for that.
pub fn stopping() {
    if is_service() {
        // It is sent without being awaited.
        drop(send(
            &[NotifyState::Stopping],
            Some("stopping; pods may come to their end"),
        ));
    }
}

fn is_service() -> bool {
    env::var_os("NOTIFY_SOCKET").is_some()
}

/// A status as systemd may hear it.
pub(crate) fn shown(status: &str) -> ForeignText {
    ForeignText::within(status, LONGEST)
}

/// The only way to systemd. A newline in the status would begin an assignment of its own, such as `MAINPID=`. It is sent by a
/// thread of its own: a systemd that takes nothing blocks no other task.
fn send(state: &[NotifyState<'static>], status: Option<&str>) -> impl Future<Output = ()> {
    let (state, status) = (state.to_vec(), status.map(shown));
    let sent = spawn_blocking(move || {
        let status = status.as_deref().map(NotifyState::Status);
        let state: Vec<_> = state.into_iter().chain(status).collect();
        notify(&state)
    });
    async {
        if let Ok(Err(error)) = sent.await {
            tracing::warn!(%error, "systemd cannot be told how the agent is");
        }
    }
}
