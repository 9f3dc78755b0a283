//! Reports the agent's state to systemd, if it runs as a service of `Type=notify`.

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
    model::{foreign::ForeignText, problem::Problem},
    node::host::PROC,
};

/// How often the status in `systemctl status` is updated.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// How often what prevents the start is checked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum length of a status. systemd ignores a message of more than 4096 bytes.
const MAX_STATUS: usize = 1024;

/// Problems that a service waits for: its package is installed before the node joins a cluster, a file is just being written, a
/// disk fails for some time. A user at a terminal gets them at once.
#[derive(Debug, Default)]
pub struct Waiting {
    reported: Vec<Problem>,
}

// === impl Waiting ===

impl Waiting {
    /// Validates the flags until no problem is left that may be repaired.
    ///
    /// # Errors
    /// All problems.
    pub async fn for_settings(&mut self, flags: &NodeFlags) -> Result<Settings, Vec<Problem>> {
        loop {
            let completed_flags = layout::complete_flags(flags, Path::new("/"), Path::new(PROC));
            match config::validate(&completed_flags).await {
                Err(problems) => self.for_repair(problems).await?,
                Ok(settings) => return Ok(settings),
            }
        }
    }

    /// Reports new problems, and returns when it is time to look at them again.
    ///
    /// # Errors
    /// The problems, if one of them cannot be repaired, or if this is no service.
    pub async fn for_repair(&mut self, problems: Vec<Problem>) -> Result<(), Vec<Problem>> {
        if !is_service() || !problems.iter().all(Problem::may_be_repaired) {
            return Err(problems);
        }
        if problems != self.reported {
            for Problem { what, remedy, .. } in &problems {
                tracing::warn!(
                    what,
                    remedy,
                    "Agent cannot start yet; it tries again every {RETRY_INTERVAL:?}"
                );
            }
            let first = problems.first().map_or_else(String::new, Problem::to_string);
            send(&[NotifyState::Ready], Some(&format!("waiting: {first}"))).await;
            self.reported = problems;
        }
        let watchdog = watchdog_enabled();
        if watchdog.is_some() {
            send(&[NotifyState::Watchdog], None).await;
        }
        sleep(watchdog.map_or(RETRY_INTERVAL, |interval| RETRY_INTERVAL.min(interval / 3))).await;
        Ok(())
    }
}

/// Reports that the agent has started, and then its status until the future is dropped. The watchdog is only notified while
/// all parts of the agent answer: otherwise systemd restarts it.
pub async fn report_status(admin: Arc<Admin>) {
    if !is_service() {
        return;
    }
    let watchdog = watchdog_enabled();
    let interval = watchdog.map_or(REPORT_INTERVAL, |interval| REPORT_INTERVAL.min(interval / 3));
    send(&[NotifyState::Ready], None).await;
    let mut reported = String::new();
    loop {
        if let Ok(Some(report)) = timeout(interval, admin.report()).await {
            let line = status::line(&report);
            if line != reported {
                send(&[], Some(&line)).await;
                reported = line;
            }
            if watchdog.is_some() {
                send(&[NotifyState::Watchdog], None).await;
            }
        }
        sleep(interval).await;
    }
}

/// Reports that the agent stops.
pub fn report_stopping() {
    if is_service() {
        // The message is sent even if the future is dropped.
        let status = "stopping; pods may come to their end";
        drop(send(&[NotifyState::Stopping], Some(status)));
    }
}

fn is_service() -> bool {
    env::var_os("NOTIFY_SOCKET").is_some()
}

/// Escapes and truncates a status for systemd.
pub(crate) fn escaped_status(status: &str) -> ForeignText {
    ForeignText::within(status, MAX_STATUS)
}

/// Sends a message to systemd. A newline in the status would begin another assignment, such as `MAINPID=`. A separate thread
/// sends it, because an unresponsive systemd blocks the call.
fn send(state: &[NotifyState<'static>], status: Option<&str>) -> impl Future<Output = ()> {
    let (state, status) = (state.to_vec(), status.map(escaped_status));
    let sent = spawn_blocking(move || {
        let status = status.as_deref().map(NotifyState::Status);
        let state: Vec<_> = state.into_iter().chain(status).collect();
        notify(&state)
    });
    async {
        if let Ok(Err(error)) = sent.await {
            tracing::warn!(%error, "Cannot report the agent's state to systemd");
        }
    }
}
