//! Watches for the start of a kubelet, and for the exit of a known one.
//!
//! Both go by events of the kernel where there are some, and by probes at intervals in any case.

use std::{future::pending, sync::Arc, time::Duration};

use futures::{
    FutureExt as _,
    stream::{BoxStream, StreamExt as _},
};
use tokio::time::{Instant, sleep_until};

use super::{
    Guard,
    schedule::{BUSY_SEARCH_INTERVAL, PROOF_INTERVAL, SEARCH_INTERVAL, Schedule, Search},
};
use crate::node::{
    kubelet_process::{self, LocalKubelet, Started},
    process_events::{Execs, ProcessEvents},
};

/// How often a process that has not exited is probed. It may execute another program, and is a kubelet no more.
const SAME_PROCESS_INTERVAL: Duration = Duration::from_secs(30);

/// How a kubelet is known to be this node's no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KubeletEnd {
    /// Its process has exited. No probe has followed.
    Exited,
    /// A probe has found another one, or none.
    Replaced,
}

impl Guard {
    /// Sees by these events when a kubelet starts and exits. They must be about the processes of the guard's `proc`.
    #[must_use]
    pub fn with_process_events(self, events: Arc<dyn ProcessEvents>) -> Self {
        Self {
            process_events: Some(events),
            ..self
        }
    }

    /// Watches for kubelets until it is dropped.
    pub async fn watch_for_kubelet(self, ours: LocalKubelet) {
        self.log_process_events();
        loop {
            self.watch_for_change(&ours).await;
        }
    }

    /// Returns when a kubelet was found, or another one than the known one.
    async fn watch_for_change(&self, ours: &LocalKubelet) {
        let known = self.kubelet().map(|known| known.pid);
        if let Some(pid) = known
            && self.wait_for_exit(ours, pid).await == KubeletEnd::Replaced
        {
            return;
        }
        self.watch_for_start(ours).await;
        // An exit that is reported while the process still counts would be reported again at once.
        if known.is_some() && self.kubelet().map(|known| known.pid) == known {
            sleep_until(Instant::now() + BUSY_SEARCH_INTERVAL).await;
        }
    }

    /// Returns when a kubelet was found.
    async fn watch_for_start(&self, ours: &LocalKubelet) {
        // Not while a kubelet is known: its exit shows without them, and a busy node starts many processes.
        let mut execs = self.subscribe();
        // It may have started before the subscription.
        self.probe(ours).await;
        let mut schedule = Schedule::new(self.probed_at(), execs.is_some());
        while self.kubelet().is_none() {
            let (due, search) = schedule.next(self.lock().activity.is_busy());
            let has_to_search = tokio::select! {
                biased;
                () = self.probe_requested.notified() => true,
                events = next(&mut execs) => {
                    schedule.has_events = execs.is_some();
                    self.handle_events(events, &mut schedule, ours).await;
                    false
                }
                () = sleep_until(due) => match search {
                    Search::Processes => true,
                    Search::Sockets => {
                        schedule.sockets_read_at = Instant::now();
                        self.has_kubelet_socket().await
                    }
                },
            };
            if has_to_search {
                schedule.has_lost_events = false;
                self.probe(ours).await;
                schedule.searched_at = self.probed_at();
                schedule.has_failed = self.lock().kubelet.is_err();
            }
        }
    }

    /// Checks the processes that have executed a program; `None` if there are no more events.
    async fn handle_events(&self, events: Option<Execs>, schedule: &mut Schedule, ours: &LocalKubelet) {
        let started = match events {
            Some(Execs::Pids(pids)) => self.check_started(pids, ours).await.ok(),
            Some(Execs::Lost) | None => None,
        };
        let now = Some(Instant::now());
        match started {
            Some(Started::Kubelet(_)) => {}
            Some(Started::Candidate) => (schedule.started_at, schedule.candidate_at) = (now, now),
            Some(Started::Other) => schedule.started_at = now,
            None => schedule.has_lost_events = true,
        }
    }

    /// Returns when the kubelet with this pid is not this node's any more.
    async fn wait_for_exit(&self, ours: &LocalKubelet, pid: i32) -> KubeletEnd {
        let exit = self.process_events.as_ref().and_then(|events| events.exit(pid).ok());
        let sees_exit = exit.is_some();
        let mut exit = exit.unwrap_or_else(|| pending().boxed());
        // Its pid may have been another process's when the exit began to be watched: the first probe follows soon.
        let mut proven_at = None;
        while self.kubelet().is_some_and(|known| known.pid == pid) {
            let interval = if sees_exit && proven_at.is_some() {
                PROOF_INTERVAL
            } else if sees_exit || self.lock().activity.is_busy() {
                BUSY_SEARCH_INTERVAL
            } else {
                SEARCH_INTERVAL
            };
            tokio::select! {
                biased;
                () = self.probe_requested.notified() => {}
                () = &mut exit => return KubeletEnd::Exited,
                () = sleep_until(self.probed_at() + interval) => {
                    let is_proven = |at: Instant| at.elapsed() < SAME_PROCESS_INTERVAL;
                    if sees_exit && proven_at.is_some_and(is_proven) {
                        self.record_same_process();
                        continue;
                    }
                }
            }
            self.probe(ours).await;
            proven_at = Some(Instant::now());
        }
        KubeletEnd::Replaced
    }

    /// Records that the known kubelet has not exited. As long as it has not, no effect is allowed.
    fn record_same_process(&self) {
        let now = Instant::now();
        self.lock().probed_during = now..now;
        self.probed.notify_one();
    }

    /// The kernel's events about programs that are executed from now on, where there are any.
    fn subscribe(&self) -> Option<BoxStream<'static, Execs>> {
        self.process_events.as_ref()?.execs().ok()
    }

    /// Logs how a kubelet's start is seen on this node.
    fn log_process_events(&self) {
        let Some(events) = &self.process_events else { return };
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
        let proc = Arc::clone(&self.proc);
        let listens = self
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
