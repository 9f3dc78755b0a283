//! Tells systemd how the agent is, where that has started it as a service of `Type=notify`.

use std::{env, sync::Arc, time::Duration};

use sd_notify::{NotifyState, notify, watchdog_enabled};
use tokio::time::{sleep, timeout};

use super::{admin::Admin, status};

/// How often what `systemctl status` shows is brought up to date.
const EVERY: Duration = Duration::from_secs(10);

/// Says that the agent has started, and from then on how it is, until it is dropped. The watchdog is fed only by an agent whose
/// parts answer: systemd starts one anew that does not, which loses nothing.
pub async fn tell(answers: Arc<Admin>) {
    if env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let watchdog = watchdog_enabled();
    let every = watchdog.map_or(EVERY, |within| EVERY.min(within / 3));
    send(&[NotifyState::Ready]);
    let mut told = String::new();
    loop {
        if let Ok(Some(report)) = timeout(every, answers.report()).await {
            let line = status::line(&report);
            if line != told {
                send(&[NotifyState::Status(&line)]);
                told = line;
            }
            if watchdog.is_some() {
                send(&[NotifyState::Watchdog]);
            }
        }
        sleep(every).await;
    }
}

/// Says that the agent stops, and may take a while for that.
pub fn stopping() {
    if env::var_os("NOTIFY_SOCKET").is_some() {
        send(&[
            NotifyState::Stopping,
            NotifyState::Status("stopping; pods may come to their end"),
        ]);
    }
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = notify(state) {
        tracing::warn!(%error, "systemd cannot be told how the agent is");
    }
}
