//! Detects kubelet processes. All effects are blocked while one runs, and while that is unknown.

use std::{io, net::SocketAddr, ops::Range, path::Path, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

use crate::{
    handover::{probes::Probe, role::Role},
    journal::Journal,
    model::{
        blocked::{Blocked, KubeletFault},
        role::StandbyReason,
    },
    node::{
        kubelet_process::{
            self, KubeletProcess, LocalKubelet, MatchReason, Started,
            flags::{self, Difference, ExpectedFlags, KubeletFlags},
        },
        process_events::ProcessEvents,
        threads::Blocking,
    },
    teardown::work::Work,
    why::Why,
};

/// Older results are unknown. A process in uninterruptible sleep may block the probe.
const STALE: Duration = Duration::from_secs(5);
/// How long an answer counts as the known kubelet's after it was checked. The check reads all its descriptors.
const ANSWER_TIME: Duration = Duration::from_secs(30);
/// After each handover the agent stays away at least this long: the caller is about to start a kubelet.
const MIN_RESERVATION: Duration = Duration::from_secs(5);

/// How kubelets of this node are found.
#[derive(Clone)]
pub struct KubeletSearch {
    /// `/proc` of this node.
    pub proc: Arc<Path>,
    /// What makes a kubelet this node's.
    pub ours: LocalKubelet,
    /// Runs the probes.
    pub blocking: Blocking,
    /// Events about the processes in `proc`, if there are any.
    pub events: Option<Arc<dyn ProcessEvents>>,
    /// Settings that the flags of a kubelet are compared with. Differences are logged.
    pub expected: Option<Arc<ExpectedFlags>>,
}

/// The kubelet of this node, and the role that its probes have led to.
pub struct KubeletWatch {
    pub(super) search: KubeletSearch,
    pub(super) journal: Journal,
    /// While there is some, kubelets are searched for more often.
    pub(super) work: Work,
    state: Mutex<KubeletState>,
    /// The process probe has to run now.
    pub probe_requested: Notify,
    /// A process probe has run.
    pub probed: Notify,
    /// The answer of [`Self::check`] may have changed.
    changed: Arc<Notify>,
}

pub(super) struct KubeletState {
    /// The kubelet of the last process probe. `Err`: the probe failed.
    pub kubelet: Result<Option<KubeletProcess>, Why>,
    /// Begin and end of the last process probe.
    pub probed_during: Range<Instant>,
    /// A kubelet that any probe has found since [`KubeletWatch::take_probes`] was last called.
    seen: Option<KubeletProcess>,
    /// The last kubelet that any probe has found.
    last_kubelet: Option<KubeletProcess>,
    /// The kubelet's pid when an answer of its healthz endpoint was last checked, and when that was.
    answer_checked: Option<(i32, Instant)>,
    /// The role of this agent; `None` if no probes decide it.
    role: Option<Role>,
    /// How the kubelet fails, if it does not work.
    fault: Option<KubeletFault>,
    reservation: Reservation,
}

/// The time that a kubelet has to start after a handover.
#[derive(Default)]
struct Reservation {
    until: Option<Instant>,
    /// The first and the last handover since a kubelet was seen.
    unseen_since: Option<(Instant, Instant)>,
}

// === impl KubeletWatch ===

impl KubeletWatch {
    /// Nothing is known yet. `changed` is notified when the answer of [`Self::check`] may have changed.
    pub fn new(search: KubeletSearch, journal: Journal, work: Work, changed: Arc<Notify>) -> Self {
        let now = Instant::now();
        Self {
            search,
            journal,
            work,
            state: Mutex::new(KubeletState {
                kubelet: Err("it has not been searched for yet".into()),
                probed_during: now..now,
                seen: None,
                last_kubelet: None,
                answer_checked: None,
                role: None,
                fault: None,
                reservation: Reservation::default(),
            }),
            probe_requested: Notify::new(),
            probed: Notify::new(),
            changed,
        }
    }

    /// Whether neither a kubelet nor the role of this agent blocks effects.
    ///
    /// # Errors
    /// A kubelet runs, that is unknown, the node is reserved for one, or the agent is on standby.
    pub fn check(&self) -> Result<(), Blocked> {
        let state = self.lock();
        let process = match &state.kubelet {
            Ok(kubelet) => kubelet,
            Err(why) => return Err(Blocked::KubeletUnknown(why.to_string())),
        };
        let since = state.probed_during.start.elapsed();
        if since > STALE {
            let why = format!("the search for one has taken {} s so far", since.as_secs());
            return Err(Blocked::KubeletUnknown(why));
        }
        if let Some(process) = process {
            return Err(Blocked::Kubelet {
                process: process.brief(),
                fault: state.fault,
            });
        }
        if let Some(left) = state.reservation.left() {
            return Err(Blocked::HandedOver(left));
        }
        match &state.role {
            Some(Role::Standby(reason)) => Err(Blocked::Standby(Box::new(reason.clone()))),
            Some(Role::Active) | None => Ok(()),
        }
    }

    /// Sets the role, and how the kubelet fails, if it does not work.
    pub fn set_role(&self, role: Role, fault: Option<KubeletFault>) {
        let mut state = self.lock();
        state.fault = fault;
        // A kubelet that was seen since then is not in this decision.
        if role == Role::Active && state.seen.is_some() {
            if state.role.is_none() {
                state.role = Some(just_seen());
            }
            return;
        }
        let is_active = |role: &Role| *role == Role::Active;
        if state.role.as_ref().is_none_or(is_active) != is_active(&role) {
            self.changed.notify_waiters();
        }
        state.role = Some(role);
    }

    /// Reserves the node for `reserve_for` from now on. The handover was requested at `asked`.
    pub(super) fn reserve(&self, asked: Instant, reserve_for: Duration) {
        self.lock().reservation.begin(asked, reserve_for);
        self.changed.notify_waiters();
    }

    /// Whether the node is reserved for a kubelet that has not been seen yet.
    pub(super) fn is_reserved(&self) -> bool {
        self.lock().reservation.left().is_some()
    }

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
            (Err(why), None) => Probe::Unknown(why.to_string()),
        };
        (probe, state.probed_during.clone())
    }

    /// Probes the processes once for a kubelet of this node. If the last one still runs, the other processes are not searched.
    pub async fn probe(&self) {
        let (proc, ours) = (Arc::clone(&self.search.proc), self.search.ours.clone());
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
        let found = self.search.blocking.run(probe).await;
        let (kubelet, started) = match found {
            Ok(Ok((found, started))) => (Ok(found), started),
            Ok(Err(error)) => {
                let why = format!("the search for one failed: {error}; the agent has to see all of /proc");
                (Err(why.into()), None)
            }
            Err(_) => (Err("the search for one panicked".into()), None),
        };
        self.record_probe(kubelet, started, began);
    }

    /// Checks processes that have just executed a program. A kubelet among them is recorded as by a probe.
    ///
    /// # Errors
    /// When what one of them is cannot be read.
    pub(super) async fn check_started(&self, pids: Vec<i32>) -> io::Result<Started> {
        // Nearly all are of containers that start or end: no thread is needed for them.
        let pids = kubelet_process::with_kubelet_name(&self.search.proc, pids)?;
        if pids.is_empty() {
            return Ok(Started::Other);
        }
        let (proc, ours) = (Arc::clone(&self.search.proc), self.search.ours.clone());
        let check = move || {
            let started = kubelet_process::check_started(&proc, &pids, &ours)?;
            let flags = match &started {
                Started::Kubelet(kubelet) => flags::read(&proc, kubelet.pid),
                Started::Candidate | Started::Other => None,
            };
            io::Result::Ok((started, flags))
        };
        let began = Instant::now();
        let (started, flags) = self.search.blocking.run(check).await.map_err(io::Error::other)??;
        if let Started::Kubelet(kubelet) = &started {
            self.record_probe(Ok(Some(kubelet.clone())), flags, began);
        }
        Ok(started)
    }

    /// Records the result of a probe that began then, and the flags of a kubelet that was not known before.
    fn record_probe(&self, kubelet: Result<Option<KubeletProcess>, Why>, flags: Option<KubeletFlags>, began: Instant) {
        let mut state = self.lock();
        let is_news = state.kubelet != kubelet;
        if is_news {
            match &kubelet {
                // Each start and each end of a kubelet that never works would be two lines.
                Ok(kubelet) if matches!(state.fault, Some(KubeletFault::Failing { .. })) => {
                    let kubelet = kubelet.as_ref().map(tracing::field::display);
                    tracing::debug!(kubelet, "Process of a failing kubelet");
                }
                Ok(Some(kubelet)) => {
                    tracing::warn!(%kubelet, "A kubelet process exists; all effects are blocked");
                }
                Err(why) => {
                    tracing::warn!(%why, "Kubelet process probe failed; all effects are blocked");
                }
                Ok(None) => tracing::info!("No kubelet process exists"),
            }
        }
        if let Ok(Some(kubelet)) = &kubelet {
            state.record_seen();
            state.seen = Some(kubelet.clone());
            state.last_kubelet = Some(kubelet.clone());
            self.journal.cancel_requests();
        }
        let found = kubelet.clone().ok().flatten();
        state.kubelet = kubelet;
        state.probed_during = began..Instant::now();
        if is_news && found.is_some() {
            self.changed.notify_waiters();
        }
        drop(state);
        self.probed.notify_one();
        if let (Some(kubelet), Some(flags)) = (found, flags) {
            self.record_flags(&kubelet, flags);
        }
    }

    /// Records the flags of a kubelet for the time when it does not run. Logs those that differ from our settings.
    fn record_flags(&self, kubelet: &KubeletProcess, started: KubeletFlags) {
        let expected = self.search.expected.as_deref();
        for Difference { what, remedy } in expected.map(|ours| started.differences(ours)).unwrap_or_default() {
            tracing::warn!(what, remedy, "The kubelet and the agent have different settings");
        }
        // A kubelet with another root directory may serve another node. `kubelet --version` serves none.
        if kubelet.why == MatchReason::SameDirectory && started.serves_node() {
            self.journal.change_node(|node| node.kubelet = Some(started));
        }
    }

    /// Whether the kubelet does not work although its process exists: it is unresponsive, or starts again and again.
    pub fn has_fault(&self) -> bool {
        self.lock().fault.is_some()
    }

    /// Whether a process that may be a kubelet listens at this address. While the same kubelet runs, this is not checked each time: a
    /// wrong answer only keeps the agent on standby for [`ANSWER_TIME`].
    ///
    /// # Errors
    /// The reason, when that is unknown.
    pub async fn is_kubelets_answer(&self, at: SocketAddr) -> io::Result<bool> {
        let (proc, known) = (Arc::clone(&self.search.proc), self.kubelet().map(|kubelet| kubelet.pid));
        let is_checked = |(pid, checked): (i32, Instant)| Some(pid) == known && checked.elapsed() < ANSWER_TIME;
        if self.lock().answer_checked.is_some_and(is_checked) {
            return Ok(true);
        }
        let probe = move || kubelet_process::is_kubelets_answer(&proc, at, known);
        let is_kubelets = self.search.blocking.run(probe).await.map_err(io::Error::other)??;
        self.lock().answer_checked = known.filter(|_| is_kubelets).map(|pid| (pid, Instant::now()));
        Ok(is_kubelets)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, KubeletState> {
        self.state.lock()
    }
}

/// The role of an active agent after a kubelet was seen, until its probes decide it again.
fn just_seen() -> Role {
    Role::Standby(StandbyReason::KubeletUnknown(
        "whether the kubelet works: its process has just been seen".to_owned(),
    ))
}

// === impl KubeletState ===

impl KubeletState {
    /// A kubelet was seen: its process blocks all effects from now on, and after its exit the probes decide the role again.
    fn record_seen(&mut self) {
        self.reservation = Reservation::default();
        if self.role == Some(Role::Active) {
            self.role = Some(just_seen());
        }
    }
}

// === impl Reservation ===

impl Reservation {
    /// How long it still is.
    fn left(&self) -> Option<Duration> {
        let left = self.until?.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// A kubelet whose starts fail again and again, each with a handover, gets this time only once.
    fn begin(&mut self, asked: Instant, reserve_for: Duration) {
        let now = Instant::now();
        let repeated = self
            .unseen_since
            .filter(|(_, last)| asked.saturating_duration_since(*last) < reserve_for);
        let first = repeated.map_or(now, |(first, _)| first);
        self.unseen_since = Some((first, now));
        self.until = Some((first + reserve_for).max(now + MIN_RESERVATION.min(reserve_for)));
    }
}

#[cfg(test)]
pub(super) mod tests;
