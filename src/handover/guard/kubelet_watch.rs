//! Watches for the start of a kubelet, and for the exit of a known one.
//!
//! Both go by events of the kernel where there are some, and by probes at intervals in any case.

use std::{future::pending, sync::Arc, time::Duration};

use futures::{
    FutureExt as _,
    stream::{BoxStream, StreamExt as _},
};
use tokio::time::{Instant, sleep_until};

use super::kubelet::KubeletWatch;
use crate::node::{
    kubelet_process::{self, Started},
    process_events::Execs,
};

/// How often all processes are searched without events.
const SEARCH_INTERVAL: Duration = Duration::from_secs(1);
/// The same while work is in progress: a kubelet needs about a second from its start to its first work on a pod.
const BUSY_SEARCH_INTERVAL: Duration = Duration::from_millis(250);
/// The same with events. The result of a search counts for five seconds, and the next one may take two.
const PROOF_INTERVAL: Duration = Duration::from_secs(2);
/// A new process with a kubelet's name may open a kubelet's sockets within this time.
const START_TIME: Duration = Duration::from_secs(10);
impl KubeletWatch {
    /// Watches for kubelets until it is dropped.
    pub async fn watch(self: Arc<Self>) {
        self.log_process_events();
        loop {
            self.watch_for_change().await;
        }
    }

    /// Returns when a kubelet was found, or another one than the known one, or none.
    async fn watch_for_change(&self) {
        match self.kubelet() {
            Some(known) => self.wait_for_exit(known.pid).await,
            None => self.watch_for_start().await,
        }
    }

    /// Returns when a kubelet was found.
    ///
    /// Events of the kernel show its start at once. Their absence proves nothing: only a search of all processes does. With events,
    /// searches are rarer, and the sockets that a kubelet under any name opens are read in between.
    async fn watch_for_start(&self) {
        // Not while a kubelet is known: its exit shows without them, and a busy node starts many processes.
        let mut execs = self.subscribe();
        // It may have started before the subscription.
        self.probe().await;
        let mut sockets_read_at = self.probed_at();
        // Searches are frequent until one begins after this.
        let mut uncertain_until = None;
        while self.kubelet().is_none() {
            let interval = self.search_interval();
            let searched_at = self.probed_at();
            let search_due = searched_at
                + if uncertain_until >= Some(searched_at) {
                    BUSY_SEARCH_INTERVAL
                } else if execs.is_none() || self.lock().kubelet.is_err() {
                    interval
                } else {
                    PROOF_INTERVAL
                };
            let sockets_due = sockets_read_at.max(searched_at) + interval;
            tokio::select! {
                biased;
                () = self.probe_requested.notified() => {}
                // A kubelet must not be overlooked while there is work in progress.
                () = self.work.begun() => {}
                events = next(&mut execs) => {
                    let now = Instant::now();
                    uncertain_until = uncertain_until.max(match self.check_events(events).await {
                        Some(Started::Kubelet(_) | Started::Other) => None,
                        Some(Started::Candidate) => Some(now + START_TIME),
                        None => Some(now),
                    });
                    continue;
                }
                () = sleep_until(search_due.min(sockets_due)) => {
                    if sockets_due < search_due {
                        sockets_read_at = Instant::now();
                        if !self.has_kubelet_socket().await {
                            continue;
                        }
                    }
                }
            }
            self.probe().await;
        }
    }

    /// Checks the processes that have executed a program; `None` if they are unknown, or there are no more events.
    async fn check_events(&self, events: Option<Execs>) -> Option<Started> {
        match events {
            Some(Execs::Pids(pids)) => self.check_started(pids).await.ok(),
            Some(Execs::Lost) | None => None,
        }
    }

    /// Returns when the kubelet with this pid is not this node's any more.
    async fn wait_for_exit(&self, pid: i32) {
        let exit = self.search.events.as_ref().and_then(|events| events.exit(pid).ok());
        let mut sees_exit = exit.is_some();
        let mut exit = exit.unwrap_or_else(|| pending().boxed());
        // Its pid may have been another process's when the exit began to be watched: the first probe follows soon.
        let mut interval = BUSY_SEARCH_INTERVAL;
        while self.kubelet().is_some_and(|known| known.pid == pid) {
            tokio::select! {
                biased;
                () = self.probe_requested.notified() => {}
                () = self.work.begun() => {}
                () = &mut exit => {
                    // If it is reported while the process still counts, probes at intervals show the rest.
                    (exit, sees_exit) = (pending().boxed(), false);
                }
                // It may execute another program, and is a kubelet no more.
                () = sleep_until(self.probed_at() + interval) => {}
            }
            self.probe().await;
            interval = if sees_exit {
                PROOF_INTERVAL
            } else {
                self.search_interval()
            };
        }
    }

    fn search_interval(&self) -> Duration {
        match self.work.is_busy() {
            true => BUSY_SEARCH_INTERVAL,
            false => SEARCH_INTERVAL,
        }
    }

    /// The kernel's events about programs that are executed from now on, where there are any.
    fn subscribe(&self) -> Option<BoxStream<'static, Execs>> {
        self.search.events.as_ref()?.execs().ok()
    }

    /// Logs how a kubelet's start is seen on this node.
    fn log_process_events(&self) {
        let Some(events) = &self.search.events else { return };
        match events.execs() {
            Ok(_) => {
                tracing::info!(search_interval = ?PROOF_INTERVAL, "The kernel reports each kubelet start; processes are also searched");
            }
            Err(why) => {
                tracing::warn!(%why, search_interval = ?SEARCH_INTERVAL, "The kernel does not report kubelet starts; processes are only searched");
            }
        }
    }

    /// Whether a socket listens that only a kubelet has. `true` if that is unknown.
    async fn has_kubelet_socket(&self) -> bool {
        let proc = Arc::clone(&self.search.proc);
        let listens = self
            .search
            .blocking
            .run(move || kubelet_process::has_kubelet_socket(&proc))
            .await;
        listens.is_ok_and(|listens| listens.unwrap_or(true))
    }

    /// When the last probe began.
    fn probed_at(&self) -> Instant {
        self.lock().probed_during.start
    }
}

/// The next events; `None` when there are no more.
async fn next(execs: &mut Option<BoxStream<'static, Execs>>) -> Option<Execs> {
    let Some(stream) = execs else { return pending().await };
    let heard = stream.next().await;
    if heard.is_none() {
        *execs = None;
    }
    heard
}

#[cfg(test)]
mod tests;
