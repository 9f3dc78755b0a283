//! Detects kubelet processes. All effects are blocked while one runs, and while that is unknown.

use std::{io, net::SocketAddr, ops::Range, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Guard, GuardState, KubeletFault, blocked_on_standby};
use crate::{
    handover::probes::Probe,
    node::kubelet_process::{
        self, KubeletProcess, LocalKubelet, MatchReason, Started,
        flags::{self, Difference, KubeletFlags},
    },
};

/// Older results are unknown. A process in uninterruptible sleep may block the probe.
const STALE: Duration = Duration::from_secs(5);
/// How long an answer counts as the known kubelet's after it was checked. The check reads all its descriptors.
const ANSWER_TIME: Duration = Duration::from_secs(30);

impl Guard {
    /// The kubelet of the last process probe.
    pub fn kubelet(&self) -> Option<KubeletProcess> {
        self.lock().kubelet.clone().ok().flatten()
    }

    /// The last kubelet that any probe has found. It may have exited.
    pub fn last_kubelet(&self) -> Option<KubeletProcess> {
        self.lock().last_kubelet.clone()
    }

    /// The result of the process probes since the last call, and begin and end of the last probe. A kubelet that any of these probes
    /// has found counts as alive; that it has exited is the result of the next call, which is due at once.
    pub fn take_probes(&self) -> (Probe, Range<Instant>) {
        let mut state = self.lock();
        let seen = state.seen.take();
        if seen.is_some() && !matches!(state.kubelet, Ok(Some(_))) {
            self.probed.notify_one();
        }
        let probe = match (&state.kubelet, &seen) {
            (Ok(Some(kubelet)), _) | (_, Some(kubelet)) => Probe::Alive(kubelet.to_string()),
            (Ok(None), None) => Probe::Down("there is none".to_owned()),
            (Err(why), None) => Probe::Unknown(why.clone()),
        };
        (probe, state.probed_during.clone())
    }

    /// Whether effects are blocked by a kubelet process and nothing else. Changes of pods on this node are then the kubelet's work.
    pub fn is_blocked_by_kubelet(&self) -> bool {
        let state = self.lock();
        let sees_one = matches!(state.kubelet, Ok(Some(_))) && state.probed_during.start.elapsed() <= STALE;
        sees_one && state.identity.is_ok()
    }

    /// Records that a kubelet runs, or may run or have run unseen. It cancels stop requests.
    pub fn record_possible_kubelet(&self) {
        self.journal.cancel_requests();
    }

    /// Probes the processes once for a kubelet of this node. If the last one still runs, the other processes are not searched.
    pub async fn probe(&self, ours: &LocalKubelet) {
        let (proc, ours) = (Arc::clone(&self.proc), ours.clone());
        let known = self.kubelet();
        let probe = move || {
            let still = known
                .as_ref()
                .map(|known| kubelet_process::with_pid(&proc, known.pid, &ours));
            let found = match still {
                // While it exits, its command line is empty.
                Some(Ok(Some(still))) if still.command.is_empty() => known.clone(),
                Some(Ok(Some(still))) => Some(still),
                Some(Ok(None) | Err(_)) | None => kubelet_process::find(&proc, &ours)?.into_iter().next(),
            };
            // Flags are read once per process.
            let is_new = |kubelet: &&KubeletProcess| known.as_ref() != Some(*kubelet);
            let started = found
                .as_ref()
                .filter(is_new)
                .and_then(|kubelet| flags::read(&proc, kubelet.pid));
            io::Result::Ok((found, started))
        };
        let began = Instant::now();
        let found = self.blocking.run(probe).await;
        let (kubelet, started) = match found {
            Ok(Ok((found, started))) => (Ok(found), started),
            Ok(Err(error)) => (
                Err(format!(
                    "the search for one failed: {error}; the agent has to see all of /proc"
                )),
                None,
            ),
            Err(_) => (Err("the search for one panicked".to_owned()), None),
        };
        self.record_probe(kubelet, started, began);
    }

    /// Checks processes that have just executed a program. A kubelet among them is recorded as by a probe.
    ///
    /// # Errors
    /// When what one of them is cannot be read.
    pub(super) async fn check_started(&self, pids: Vec<i32>, ours: &LocalKubelet) -> io::Result<Started> {
        // Nearly all are of containers that start or end: no thread is needed for them.
        let pids = kubelet_process::with_kubelet_name(&self.proc, pids)?;
        if pids.is_empty() {
            return Ok(Started::Other);
        }
        let (proc, ours) = (Arc::clone(&self.proc), ours.clone());
        let check = move || {
            let started = kubelet_process::check_started(&proc, &pids, &ours)?;
            let flags = match &started {
                Started::Kubelet(kubelet) => flags::read(&proc, kubelet.pid),
                Started::Candidate | Started::Other => None,
            };
            io::Result::Ok((started, flags))
        };
        let began = Instant::now();
        let (started, flags) = self.blocking.run(check).await.map_err(io::Error::other)??;
        if let Started::Kubelet(kubelet) = &started {
            self.record_probe(Ok(Some(kubelet.clone())), flags, began);
        }
        Ok(started)
    }

    /// Records the result of a probe that began then, and the flags of a kubelet that was not known before.
    fn record_probe(
        &self,
        kubelet: Result<Option<KubeletProcess>, String>,
        flags: Option<KubeletFlags>,
        began: Instant,
    ) {
        let mut state = self.lock();
        let is_news = state.kubelet != kubelet;
        if is_news {
            match &kubelet {
                // Each start and each end of a kubelet that never works would be two lines.
                Ok(kubelet) if matches!(state.activity.kubelet_fault, Some(KubeletFault::Failing(_))) => {
                    let kubelet = kubelet.as_ref().map(tracing::field::display);
                    tracing::debug!(kubelet, "Process of a failing kubelet");
                }
                Ok(Some(kubelet)) => {
                    tracing::warn!(%kubelet, "A kubelet process exists; all effects are blocked");
                }
                Err(why) => {
                    tracing::warn!(why, "Kubelet process probe failed; all effects are blocked");
                }
                Ok(None) => tracing::info!("No kubelet process exists"),
            }
        }
        if let Ok(Some(kubelet)) = &kubelet {
            state.activity.kubelet_seen();
            state.seen = Some(kubelet.clone());
            state.last_kubelet = Some(kubelet.clone());
            self.record_possible_kubelet();
        }
        let found = kubelet.clone().ok().flatten();
        state.kubelet = kubelet;
        state.probed_during = began..Instant::now();
        if found.is_some() {
            self.cancel.notify_waiters();
        }
        drop(state);
        self.probed.notify_one();
        if let (Some(kubelet), Some(flags)) = (found, flags) {
            self.record_flags(&kubelet, flags);
        }
    }

    /// Records the flags of a kubelet for the time when it does not run. Logs those that differ from our settings.
    fn record_flags(&self, kubelet: &KubeletProcess, started: KubeletFlags) {
        let expected = self.expected.as_deref();
        for Difference { what, remedy } in expected.map(|ours| started.differences(ours)).unwrap_or_default() {
            tracing::warn!(what, remedy, "The kubelet and the agent have different settings");
        }
        // A kubelet with another root directory may serve another node. `kubelet --version` serves none.
        if kubelet.why == MatchReason::SameDirectory && started.serves_node() {
            self.journal.set_kubelet(started);
        }
    }

    /// Whether the kubelet does not work although its process exists: it is unresponsive, or starts again and again.
    pub fn has_kubelet_fault(&self) -> bool {
        self.lock().activity.kubelet_fault.is_some()
    }

    /// Whether a process that may be a kubelet listens at this address. While the same kubelet runs, this is not checked each time: a
    /// wrong answer only keeps the agent on standby for [`ANSWER_TIME`].
    ///
    /// # Errors
    /// The reason, when that is unknown.
    pub async fn is_kubelets_answer(&self, at: SocketAddr) -> Result<bool, String> {
        let (proc, known) = (Arc::clone(&self.proc), self.kubelet().map(|kubelet| kubelet.pid));
        let is_checked = |(pid, checked): (i32, Instant)| Some(pid) == known && checked.elapsed() < ANSWER_TIME;
        if self.lock().answer_checked.is_some_and(is_checked) {
            return Ok(true);
        }
        let probe = move || kubelet_process::is_kubelets_answer(&proc, at, known);
        let answer = self.blocking.run(probe).await.map_err(|error| error.to_string())?;
        let is_kubelets = answer.map_err(|error| error.to_string())?;
        self.lock().answer_checked = known.filter(|_| is_kubelets).map(|pid| (pid, Instant::now()));
        Ok(is_kubelets)
    }

    /// Requests a process probe at once.
    pub fn request_probe(&self) {
        self.probe_requested.notify_one();
    }

    /// Waits for the next result of a process probe.
    pub async fn wait_for_probe(&self) {
        self.probed.notified().await;
    }
}

// === impl GuardState ===

impl GuardState {
    /// Why a kubelet blocks all effects: it runs, that is unknown, the node is reserved for it, or the agent is on standby.
    pub(super) fn why_kubelet_blocks(&self) -> Option<String> {
        let not_known = |why: &str| format!("whether a kubelet runs on this node is not known: {why}");
        let kubelet = match (&self.kubelet, &self.activity.kubelet_fault) {
            (Ok(None), _) => None,
            (Ok(Some(kubelet)), Some(KubeletFault::Unresponsive)) => Some(format!(
                "the kubelet of this node is unresponsive; repair it or stop it {}",
                kubelet.brief()
            )),
            (Ok(Some(kubelet)), Some(KubeletFault::Failing(starts))) => Some(format!(
                "the kubelet of this node starts again and again and never works: {starts}; this agent continues when that \
                 process exits {}",
                kubelet.brief()
            )),
            (Ok(Some(kubelet)), None) => Some(format!("a kubelet runs on this node {}", kubelet.brief())),
            (Err(why), _) => Some(not_known(why)),
        };
        let since = self.probed_during.start.elapsed();
        let unknown =
            (since > STALE).then(|| not_known(&format!("the search for one has taken {} s so far", since.as_secs())));
        let standby_reason = || Some(blocked_on_standby(self.activity.standby_reason.as_ref()?));
        kubelet
            .or(unknown)
            .or_else(|| self.activity.why_blocked())
            .or_else(standby_reason)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::{
        journal::Journal,
        node::{identity::Identity, kubelet_root::KubeletRoot},
    };

    /// A directory that is both /proc and the kubelet's root directory, and a guard that probes it.
    pub(in super::super) fn machine() -> (tempfile::TempDir, LocalKubelet, Guard) {
        let proc = tempfile::tempdir().unwrap();
        std::fs::create_dir(proc.path().join("pods")).unwrap();
        let ours = LocalKubelet {
            root: KubeletRoot::resolve(proc.path()).unwrap(),
            runtime: "/run/cri.sock".into(),
            healthz: None,
        };
        let guard = Guard::new(Identity::default(), Journal::in_memory(), proc.path().to_owned());
        guard.lock().set_identity(Ok(()));
        (proc, ours, guard)
    }

    #[tokio::test(start_paused = true)]
    async fn old_process_probe_is_unknown() {
        let (_proc, ours, guard) = machine();
        guard.probe(&ours).await;
        assert_eq!(guard.why_blocked(), None);
        advance(STALE + Duration::from_secs(1)).await;
        assert!(guard.why_blocked().unwrap().contains("is not known"));
        guard.probe(&ours).await;
        assert_eq!(guard.why_blocked(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn kubelet_that_ran_between_two_readings_counts_as_alive_once() {
        let (proc, ours, guard) = machine();
        let probe = async || guard.probe(&ours).await;
        probe().await;
        assert!(matches!(guard.take_probes().0, Probe::Down(_)));
        std::fs::create_dir(proc.path().join("77")).unwrap();
        std::fs::write(proc.path().join("77/comm"), "kubelet\n").unwrap();
        probe().await;
        std::fs::write(proc.path().join("77/comm"), "sleep\n").unwrap();
        probe().await;
        assert_eq!(guard.kubelet(), None);
        assert!(matches!(guard.take_probes().0, Probe::Alive(_)));
        assert!(matches!(guard.take_probes().0, Probe::Down(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn answer_of_the_same_kubelet_is_checked_again_after_half_a_minute() {
        let (proc, ours, guard) = machine();
        let at = |name: &str| proc.path().join(name);
        for dir in ["self/net", "77/fd"] {
            std::fs::create_dir_all(at(dir)).unwrap();
        }
        std::fs::write(at("77/comm"), "kubelet\n").unwrap();
        std::os::unix::fs::symlink("socket:[5]", at("77/fd/3")).unwrap();
        let listens = "0: 0100007F:2808 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 5\n";
        std::fs::write(at("self/net/tcp"), listens).unwrap();
        guard.probe(&ours).await;
        let healthz = ([127, 0, 0, 1], 10248).into();
        assert_eq!(guard.is_kubelets_answer(healthz).await, Ok(true));
        // Another process listens there now.
        std::fs::remove_file(at("77/fd/3")).unwrap();
        assert_eq!(guard.is_kubelets_answer(healthz).await, Ok(true));
        advance(ANSWER_TIME).await;
        assert_eq!(guard.is_kubelets_answer(healthz).await, Ok(false));
    }

    #[tokio::test(start_paused = true)]
    async fn kubelet_flags_are_recorded_for_the_time_when_it_does_not_run() {
        let (proc, ours, guard) = machine();
        let at = |name: &str| proc.path().join(name);
        for dir in ["self/ns", "77/ns", "77/task/77"] {
            std::fs::create_dir_all(at(dir)).unwrap();
        }
        for process in ["self", "77"] {
            std::os::unix::fs::symlink("mnt:[1]", at(process).join("ns/mnt")).unwrap();
        }
        std::os::unix::fs::symlink("/", at("77/root")).unwrap();
        std::fs::write(at("77/comm"), "kubelet\n").unwrap();
        for config in ["/first", "/second"] {
            let command = format!("kubelet\0--root-dir={}\0--config={config}\0", proc.path().display());
            std::fs::write(at("77/cmdline"), command).unwrap();
            guard.probe(&ours).await;
            let kept = guard.journal.kubelet().unwrap();
            assert_eq!(kept.config.as_deref(), Some(std::path::Path::new(config)));
        }
        // While it exits.
        let known = guard.kubelet();
        std::fs::write(at("77/cmdline"), "").unwrap();
        guard.probe(&ours).await;
        assert!(known.is_some());
        assert_eq!(guard.kubelet(), known, "it is the same process");
        // A short-lived kubelet that serves no node.
        std::fs::write(at("77/comm"), "sleep\n").unwrap();
        guard.probe(&ours).await;
        assert_eq!(guard.kubelet(), None);
        std::fs::write(at("77/comm"), "kubelet\n").unwrap();
        let command = format!("kubelet\0--root-dir={}\0--version\0", proc.path().display());
        std::fs::write(at("77/cmdline"), command).unwrap();
        guard.probe(&ours).await;
        assert!(guard.kubelet().is_some());
        let kept = guard.journal.kubelet().unwrap();
        assert_eq!(kept.config.as_deref(), Some(std::path::Path::new("/second")));
    }
}
