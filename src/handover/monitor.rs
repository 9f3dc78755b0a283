//! Probes the kubelet until the agent stops, and sets the role of the agent in the guard.

use std::{net::SocketAddr, ops::Range, path::PathBuf, pin::pin, time::Duration};

use futures::{
    FutureExt as _, Stream, StreamExt as _,
    future::BoxFuture,
    stream::{FuturesUnordered, select, unfold},
};
use jiff::Timestamp;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use super::{
    fence, healthz,
    probes::{LeaseState, Probe, Probes, Starts},
    report::{FenceReport, RoleReport, Seen},
    role::{Role, decide_role, failing_starts, initial_role, may_fence},
};
use crate::{
    api::{ApiClient, ErrorKind, expiry::Expiry},
    clock::BootClock,
    handover::{cluster::read_node, guard::Guard},
    journal::LastActive,
    model::{
        blocked::KubeletFault,
        kubelet_unit::KubeletUnit,
        role::{StandbyReason, StandbyReasonName},
    },
    node::{kubelet_unit::ReadUnit, systemd::Systemd, threads::Threads},
    why::Why,
};

/// How often the role is decided while no kubelet process is known, beside each probe.
const DECIDE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the healthz and Lease probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of the Lease probe.
const LEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of reading the kubelet's certificate, which may be on a dead file server.
const CERTIFICATE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of reading the Node, which delays all other probes.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum time between two reads of the kubelet's unit: each one asks systemd and starts journalctl.
const UNIT_INTERVAL: Duration = Duration::from_secs(10);
/// Process probes that are further apart show nothing about the time between.
const PROCESS_GAP: Duration = Duration::from_secs(5);
/// The same for healthz and Lease: two intervals and the timeouts.
const ENDPOINT_GAP: Duration = Duration::from_secs(15);

/// How often an active agent records its role; more often if `--take-over-after` is short.
const RECORD_INTERVAL: Duration = Duration::from_secs(15);

/// Decides by probes of the kubelet whether this agent is active or on standby.
#[derive(Clone)]
pub struct KubeletMonitor {
    /// Gets the role, runs the process probe, and has the journal that records the role for the next run.
    pub guard: Guard,
    /// The kubelet's kubeconfig, unless another one was learned from its flags.
    pub kubeconfig: PathBuf,
    /// Reads it.
    pub reads: Threads,
    /// For the Lease and the Node.
    pub api: ApiClient,
    /// The kubelet's healthz endpoint, if it has one.
    pub healthz: Option<SocketAddr>,
    /// `--take-over-after`.
    pub take_over_after: Duration,
    /// For the uptime of the node.
    pub clock: BootClock,
    /// Stops an unresponsive kubelet (`--fence-kubelet`).
    pub fence: Option<Systemd>,
    /// Reads the kubelet's unit; `None` without systemd.
    pub read_unit: Option<ReadUnit>,
    /// For `status`.
    pub report: watch::Sender<RoleReport>,
}

/// Pause between two attempts to stop the unit, and between two reports that it must not be stopped.
const FENCE_RETRY: Duration = Duration::from_secs(60);

/// The result of a slow probe.
enum Answer {
    Health(Probe),
    Lease(Result<LeaseState, Why>),
    ExpiredCertificate(Option<Timestamp>),
}

/// What is known, and what is in progress.
struct MonitorState {
    probes: Probes,
    role: Role,
    expired_certificate: Option<Timestamp>,
    /// The kubelet's unit, which is read while the kubelet does not work.
    unit: Option<KubeletUnit>,
    reading: FuturesUnordered<BoxFuture<'static, Option<KubeletUnit>>>,
    /// The unit is not read again before.
    read_from: Instant,
    fencing: FuturesUnordered<BoxFuture<'static, Result<String, Why>>>,
    /// The kubelet is not stopped again before.
    fence_from: Instant,
    /// The role is not reported again before.
    report_from: Instant,
    fenced: FenceReport,
}

// === impl KubeletMonitor ===

impl KubeletMonitor {
    /// Probes until it is dropped.
    pub async fn run(self) {
        let start = Instant::now();
        let mut state = self.initial_state(start);
        let (health_now, lease_now, certificate_now) = (Notify::new(), Notify::new(), Notify::new());
        let health = probe_repeatedly(&health_now, || async { Answer::Health(self.health().await) });
        let lease = probe_repeatedly(&lease_now, || async { Answer::Lease(self.lease().await) });
        let certificate = probe_repeatedly(&certificate_now, || async {
            Answer::ExpiredCertificate(self.expired_certificate().await)
        });
        let mut answers = pin!(select(select(health, lease), certificate));
        let mut ticks = interval(DECIDE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // When all probes were last requested because one had reached the threshold.
        let mut requested_at = start;
        loop {
            let due = state.probes.next_due(self.take_over_after, requested_at);
            tokio::select! {
                biased;
                // Pods wait: do not wait for the next interval.
                () = sleep_until(due.unwrap_or(start)), if due.is_some() => {
                    requested_at = Instant::now();
                    self.guard.kubelet.probe_requested.notify_one();
                    health_now.notify_one();
                    lease_now.notify_one();
                }
                () = self.guard.kubelet.probed.notified() => {}
                _ = ticks.tick(), if !matches!(state.probes.process.result, Probe::Alive(_)) => {}
                Some((over, answer)) = answers.next() => match answer {
                    Answer::Health(probe) => state.probes.add_health(probe, &over),
                    Answer::Lease(lease) => state.probes.add_lease(lease, &over),
                    Answer::ExpiredCertificate(expired) => state.expired_certificate = expired,
                },
                Some(stopped) = state.fencing.next(), if !state.fencing.is_empty() => {
                    state.fence_from = Instant::now() + FENCE_RETRY;
                    if state.fenced.add_result(stopped) {
                        state.probes.starts = None;
                        state.reading.clear();
                        state.read_from = Instant::now();
                    }
                }
                Some(read) = state.reading.next(), if !state.reading.is_empty() => {
                    state.unit = unit_after(state.unit.as_ref(), read);
                }
            }
            let (probe, probed_during) = self.guard.kubelet.take_probes();
            let was_down = matches!(state.probes.process.result, Probe::Down(_));
            state.probes.add_process(probe, &probed_during);
            // What it has done up to its exit decides at once whether the agent is active.
            if !was_down && matches!(state.probes.process.result, Probe::Down(_)) {
                health_now.notify_one();
                lease_now.notify_one();
            }
            self.decide(&mut state).await;
        }
    }

    fn initial_state(&self, start: Instant) -> MonitorState {
        let mut probes = Probes::new(start, PROCESS_GAP, ENDPOINT_GAP);
        let had = self.guard.journal.node(|node| node.last_active.clone());
        let role = initial_role(had.as_ref(), self.take_over_after, &self.clock.now());
        if let (Role::Standby(StandbyReason::AgentRestarted), Some(had)) = (&role, had) {
            probes.lease.recorded = Some(Some(had.lease));
        }
        MonitorState {
            probes,
            role,
            expired_certificate: None,
            unit: None,
            reading: FuturesUnordered::new(),
            read_from: start,
            fencing: FuturesUnordered::new(),
            fence_from: start,
            report_from: start,
            fenced: FenceReport::default(),
        }
    }

    /// Decides the role, reports and records it, and begins what follows from it.
    async fn decide(&self, state: &mut MonitorState) {
        let (probes, now) = (&state.probes, Instant::now());
        let mut next = decide_role(
            probes,
            self.take_over_after,
            self.clock.now().since_boot,
            &state.role,
            now,
        );
        if next == Role::Active && state.role != Role::Active {
            next = self.verify_node_before(next, &state.role).await;
        }
        if next.standby_reason() == Some(StandbyReasonName::KubeletAlive) {
            state.reading.clear();
            state.unit = None;
        } else if state.reading.is_empty()
            && now >= state.read_from
            && let Some(read) = &self.read_unit
        {
            state.read_from = now + UNIT_INTERVAL;
            let learned = self.guard.journal.node(|node| node.kubelet.as_ref()?.unit.clone());
            state.reading.push(read(learned));
        }
        let failing = failing_starts(probes, self.take_over_after, now);
        let seen = Seen {
            probes,
            failing,
            expired_certificate: state.expired_certificate,
            unit: state.unit.as_ref(),
        };
        self.report_role(&state.role, &next, &seen, &state.fenced);
        self.record_role(&next, probes);
        state.role = next;
        // A kubelet that never works is stopped between two starts: one that has just started may be repaired.
        let is_between_starts = failing.is_some() && matches!(probes.process.result, Probe::Down(_));
        let does_not_work = state.role.is_unresponsive() || is_between_starts;
        if does_not_work
            && state.fencing.is_empty()
            && let Some(systemd) = self.fence.clone()
            && let Some(kubelet) = self.guard.kubelet.last_kubelet()
        {
            let now = Instant::now();
            match self.may_fence(probes, failing) {
                Ok(()) if now >= state.fence_from => {
                    state
                        .fencing
                        .push(async move { fence::stop(&systemd, &kubelet).await }.boxed());
                }
                Err(why) if now >= state.report_from => {
                    state.report_from = now + FENCE_RETRY;
                    state.fenced.add_result(Err(format!("{kubelet}: {why}").into()));
                }
                _ => {}
            }
        }
    }

    /// Whether a kubelet that does not work may be stopped now.
    ///
    /// # Errors
    /// Why it may not.
    fn may_fence(&self, probes: &Probes, failing: Option<Starts>) -> Result<(), Why> {
        let blocked = self.guard.check_may_fence();
        blocked.map_err(Why::new)?;
        match failing {
            Some(_) => Ok(()),
            None => may_fence(probes).map_err(Why::from),
        }
    }

    /// Reads the Node once more before the agent becomes active: a kubelet may have registered it again since the connection was
    /// opened. `next`, or standby if the Node cannot be read. A mismatch blocks all effects in the guard.
    async fn verify_node_before(&self, next: Role, before: &Role) -> Role {
        let why = match timeout(NODE_TIMEOUT, read_node(&self.guard, &self.api)).await {
            Ok(Ok(_)) => return next,
            Ok(Err(error)) if matches!(error.kind, ErrorKind::Blocked(_)) => return next,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the API server has not answered within {NODE_TIMEOUT:?}"),
        };
        match before {
            Role::Standby(StandbyReason::AgentRestarted) => before.clone(),
            _ => Role::Standby(StandbyReason::KubeletUnknown(format!(
                "whether this is still the right Node: {why}"
            ))),
        }
    }

    async fn health(&self) -> Probe {
        match self.healthz {
            Some(at) => healthz::probe(at, async || self.guard.kubelet.is_kubelets_answer(at).await).await,
            None => Probe::Down("the kubelet is configured without a health endpoint".to_owned()),
        }
    }

    /// When the kubelet's client certificate has expired, if it has. A kubelet that runs with it does not reach the API server.
    async fn expired_certificate(&self) -> Option<Timestamp> {
        let learned = self
            .guard
            .journal
            .node(|node| node.kubelet.as_ref()?.kubeconfig.clone());
        let path = learned.unwrap_or_else(|| self.kubeconfig.clone());
        let read = self.reads.run_blocking(move || Expiry::of_kubeconfig(&path));
        let expiry = timeout(CERTIFICATE_TIMEOUT, read).await.ok()?.ok()??;
        (expiry.expires_at <= self.clock.wall.now()).then_some(expiry.expires_at)
    }

    async fn lease(&self) -> Result<LeaseState, Why> {
        match timeout(LEASE_TIMEOUT, self.api.node_lease()).await {
            Ok(state) => state.map_err(Why::new),
            Err(_) => Err(format!("the API server has not answered within {LEASE_TIMEOUT:?}").into()),
        }
    }

    /// Records that this agent is active: at once, and then often enough for a restarted agent to resume the role.
    fn record_role(&self, role: &Role, probes: &Probes) {
        match role {
            _ if self.guard.only_observes => self.set_last_active(None),
            // Keep the record of the earlier run until the role is decided.
            Role::Standby(StandbyReason::AgentRestarted) => {}
            Role::Active if !self.guard.is_handing_over() => {
                let (kept, now) = (
                    self.guard.journal.node(|node| node.last_active.clone()),
                    self.clock.now(),
                );
                let every = RECORD_INTERVAL.min(self.take_over_after / 3);
                let is_fresh = |kept: &LastActive| kept.at.elapsed(&now).is_some_and(|ago| ago < every);
                if kept.as_ref().is_some_and(is_fresh) {
                    return;
                }
                // Without a state of the Lease, a later renewal could not be detected.
                let lease = probes.lease.last.clone().flatten();
                if let Some(lease) = lease.or_else(|| Some(kept?.lease)) {
                    self.set_last_active(Some(LastActive { at: now, lease }));
                }
            }
            _ => self.set_last_active(None),
        }
    }

    fn set_last_active(&self, last_active: Option<LastActive>) {
        self.guard.journal.change_node(|node| node.last_active = last_active);
    }

    fn report_role(&self, before: &Role, role: &Role, of_kubelet: &Seen<'_>, fenced: &FenceReport) {
        let wall = self.clock.wall.now();
        let report = RoleReport::new(role, of_kubelet, fenced, &self.report.borrow(), wall);
        let failing = report.between_starts_of().map(|failing| failing.fault(wall));
        let starts = failing.map(|failing| failing.to_string());
        let was_between = self.report.borrow().between_starts_of().is_some();
        // Each start and each end of a kubelet that never works would be news.
        let is_news = if starts.is_some() || was_between {
            starts.is_some() != was_between
        } else {
            !before.has_same_reason_as(role)
        };
        let seen = report.seen();
        if self.guard.only_observes {
            if is_news {
                let would_be = report.role;
                tracing::info!(seen, reason = ?report.reason, starts, %would_be, "Only observing: with --mode auto the agent would have this role");
            }
            let report = report.observing(&self.report.borrow(), wall);
            self.report.send_replace(report);
            return;
        }
        match role {
            _ if !is_news => {}
            _ if starts.is_some() => {
                tracing::warn!(
                    starts,
                    seen,
                    "The kubelet starts again and again and never works: this agent is active between its starts"
                );
            }
            Role::Active if *before == Role::Standby(StandbyReason::AgentRestarted) => {
                tracing::warn!(seen, "No kubelet ran while this agent restarted; it is active again");
            }
            Role::Active => tracing::warn!(seen, "The kubelet is down: this agent takes over its pods"),
            Role::Standby(why) if role.is_unresponsive() => tracing::error!(%why, seen, "Standing by"),
            Role::Standby(why) => tracing::info!(%why, seen, "Standing by"),
        }
        if !matches!(role, Role::Active | Role::Standby(StandbyReason::AgentRestarted)) {
            // A kubelet runs, or may run or have run unseen.
            self.guard.journal.cancel_requests();
        }
        let fault = failing.or_else(|| role.is_unresponsive().then_some(KubeletFault::Unresponsive));
        self.guard.kubelet.set_role(role.clone(), fault);
        self.report.send_replace(report);
    }
}

/// The state of the unit by this read. A change is logged.
fn unit_after(before: Option<&KubeletUnit>, read: Option<KubeletUnit>) -> Option<KubeletUnit> {
    let unit = read.map(|unit| unit.after(before));
    let summary = unit.as_ref().map(KubeletUnit::summary);
    if summary.is_some() && summary != before.map(KubeletUnit::summary) {
        tracing::warn!(
            unit = summary,
            "The kubelet does not work; this is the state of its unit"
        );
    }
    unit
}

/// Runs the probe at each interval, and at once when notified. Yields begin and end of each probe and its result.
fn probe_repeatedly<F: Future>(now: &Notify, probe: impl Fn() -> F) -> impl Stream<Item = (Range<Instant>, F::Output)> {
    let mut ticks = interval(PROBE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    unfold((ticks, probe), async |(mut ticks, probe)| {
        tokio::select! {
            biased;
            () = now.notified() => ticks.reset(),
            _ = ticks.tick() => {}
        }
        let began = Instant::now();
        let shown = probe().await;
        Some(((began..Instant::now(), shown), (ticks, probe)))
    })
}
