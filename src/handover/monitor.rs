//! Probes the kubelet until the agent stops, and sets the role of the agent in the guard.

use std::{net::SocketAddr, ops::Range, pin::pin, time::Duration};

use futures::{
    Stream, StreamExt as _,
    stream::{FuturesUnordered, select, unfold},
};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout},
};

use super::{
    fence, healthz,
    probes::{LeaseState, Probe, Probes},
    report::{FenceReport, RoleReport},
    role::{Role, StandbyReason, StandbyReasonName, Thresholds, decide_role, initial_role, may_fence},
    unit_watch::UnitWatch,
};
use crate::{
    api::{ApiClient, ApiError},
    clock::BootClock,
    handover::guard::Guard,
    journal::{Journal, last_active::LastActive},
    node::{kubelet_unit::ReadUnit, systemd::Systemd},
};

/// How often the role is decided while no kubelet process is known, beside each probe.
const DECIDE_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the healthz and Lease probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of the Lease probe.
const LEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of reading the Node, which delays all other probes.
const NODE_TIMEOUT: Duration = Duration::from_secs(3);
/// Process probes that are further apart show nothing about the time between.
const PROCESS_GAP: Duration = Duration::from_secs(5);
/// The same for healthz and Lease: two intervals and the timeouts.
const ENDPOINT_GAP: Duration = Duration::from_secs(15);

/// How often an active agent records its role; more often if `--take-over-after` is short.
const RECORD_INTERVAL: Duration = Duration::from_secs(15);

/// Decides by probes of the kubelet whether this agent is active or on standby.
#[derive(Clone)]
pub struct KubeletMonitor {
    /// Gets the role, and runs the process probe.
    pub guard: Guard,
    /// Records the role for the next run.
    pub journal: Journal,
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
    /// The agent only observes: it never becomes active, and records no role.
    pub only_observes: bool,
    /// For `status`.
    pub report: watch::Sender<RoleReport>,
}

/// Pause between two attempts to stop the unit, and between two reports that it must not be stopped.
const FENCE_RETRY: Duration = Duration::from_secs(60);

/// The result of a slow probe.
enum Answer {
    Health(Probe),
    Lease(Result<LeaseState, String>),
}

// === impl KubeletMonitor ===

impl KubeletMonitor {
    /// Probes until it is dropped.
    pub async fn run(self) {
        let start = Instant::now();
        let mut probes = Probes::new(start, PROCESS_GAP, ENDPOINT_GAP);
        let had = self.journal.last_active();
        let mut role = initial_role(had.as_ref(), self.take_over_after, &self.clock.now());
        if let (Role::Standby(StandbyReason::Resuming), Some(had)) = (&role, had) {
            probes.lease = probes.lease.with_recorded(Some(had.lease));
        }
        let mut ticks = interval(DECIDE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (health_now, lease_now) = (Notify::new(), Notify::new());
        let health = probe_repeatedly(&health_now, || async { Answer::Health(self.health().await) });
        let lease = probe_repeatedly(&lease_now, || async { Answer::Lease(self.lease().await) });
        let mut answers = pin!(select(health, lease));
        let (mut fencing, mut fence_from, mut report_from) = (FuturesUnordered::new(), start, start);
        let mut fenced = FenceReport::default();
        let mut unit = UnitWatch::new(self.read_unit.clone());
        // When all probes were last requested because one had reached the threshold.
        let mut requested_at = start;
        loop {
            let due = probes.next_due(self.take_over_after, requested_at);
            tokio::select! {
                biased;
                // Pods wait: do not wait for the next interval.
                () = sleep_until(due.unwrap_or(start)), if due.is_some() => {
                    requested_at = Instant::now();
                    self.guard.request_probe();
                    health_now.notify_one();
                    lease_now.notify_one();
                }
                () = self.guard.wait_for_probe() => {}
                _ = ticks.tick(), if !matches!(probes.process.result, Probe::Alive(_)) => {}
                Some((over, answer)) = answers.next() => match answer {
                    Answer::Health(probe) => probes.healthz.add(probe, &over),
                    Answer::Lease(state) => probes.lease.add(state, &over),
                },
                Some(stopped) = fencing.next(), if !fencing.is_empty() => {
                    fence_from = Instant::now() + FENCE_RETRY;
                    fenced.add_result(stopped);
                }
                () = unit.finish() => {}
            }
            let (probe, probed_during) = self.guard.take_probes();
            let was_alive = matches!(probes.process.result, Probe::Alive(_));
            probes.add_process(probe, &probed_during, self.take_over_after);
            // The threshold begins when the process exits.
            if was_alive && matches!(probes.process.result, Probe::Down(_)) {
                health_now.notify_one();
                lease_now.notify_one();
            }
            let thresholds = Thresholds {
                take_over_after: self.take_over_after,
                up: self.clock.now().since_boot,
            };
            let mut next = decide_role(&probes, thresholds, &role, Instant::now());
            if next == Role::Active && role != Role::Active {
                next = self.verify_node_before(next, &role).await;
            }
            if next.standby_reason() != Some(StandbyReasonName::KubeletAlive) {
                unit.read_if_due(|| self.journal.kubelet()?.unit);
            } else if probes.present_kubelet_works(Instant::now()) {
                unit.forget();
            }
            self.report_role(&role, &next, &probes, &fenced, &unit);
            self.record_role(&next, &probes);
            role = next;
            if let (Role::Standby(StandbyReason::Unresponsive), Some(systemd)) = (&role, &self.fence)
                && fencing.is_empty()
                && let Some(kubelet) = self.guard.kubelet()
            {
                let now = Instant::now();
                match self.may_fence(&probes) {
                    Ok(()) if now >= fence_from => fencing.push(async move { fence::stop(systemd, &kubelet).await }),
                    Err(why) if now >= report_from => {
                        report_from = now + FENCE_RETRY;
                        fenced.add_result(Err(format!("{kubelet}: {why}")));
                    }
                    _ => {}
                }
            }
        }
    }

    /// Whether an unresponsive kubelet may be stopped now.
    ///
    /// # Errors
    /// Why it may not.
    fn may_fence(&self, probes: &Probes) -> Result<(), String> {
        self.guard.check_may_fence()?;
        Ok(may_fence(probes, self.take_over_after, Instant::now())?)
    }

    /// Reads the Node once more before the agent becomes active: a kubelet may have registered it again since the connection was
    /// opened. `next`, or standby if the Node cannot be read. A mismatch blocks all effects in the guard.
    async fn verify_node_before(&self, next: Role, before: &Role) -> Role {
        let why = match timeout(NODE_TIMEOUT, self.guard.verify(&self.api)).await {
            Ok(Ok(()) | Err(ApiError::Blocked { .. })) => return next,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the API server has not answered within {NODE_TIMEOUT:?}"),
        };
        match before {
            Role::Standby(StandbyReason::Resuming) => before.clone(),
            _ => Role::Standby(StandbyReason::Unknown(format!(
                "whether this is still the right Node: {why}"
            ))),
        }
    }

    async fn health(&self) -> Probe {
        match self.healthz {
            Some(at) => healthz::probe(at, async || self.guard.is_kubelets_answer(at).await).await,
            None => Probe::Down("the kubelet is configured without a health endpoint".to_owned()),
        }
    }

    async fn lease(&self) -> Result<LeaseState, String> {
        match timeout(LEASE_TIMEOUT, self.api.node_lease()).await {
            Ok(state) => state.map_err(|error| error.to_string()),
            Err(_) => Err(format!("the API server has not answered within {LEASE_TIMEOUT:?}")),
        }
    }

    /// Records that this agent is active: at once, and then often enough for a restarted agent to resume the role.
    fn record_role(&self, role: &Role, probes: &Probes) {
        match role {
            _ if self.only_observes => self.journal.set_last_active(None),
            // Keep the record of the earlier run until the role is decided.
            Role::Standby(StandbyReason::Resuming) => {}
            Role::Active if !self.guard.is_handing_over() => {
                let (kept, now) = (self.journal.last_active(), self.clock.now());
                let every = RECORD_INTERVAL.min(self.take_over_after / 3);
                let is_fresh = |kept: &LastActive| kept.at.elapsed(&now).is_some_and(|ago| ago < every);
                if kept.as_ref().is_some_and(is_fresh) {
                    return;
                }
                // Without a state of the Lease, a later renewal could not be detected.
                let lease = probes.lease.state().cloned().flatten();
                if let Some(lease) = lease.or_else(|| Some(kept?.lease)) {
                    self.journal.set_last_active(Some(LastActive { at: now, lease }));
                }
            }
            _ => self.journal.set_last_active(None),
        }
    }

    fn report_role(&self, before: &Role, role: &Role, probes: &Probes, fenced: &FenceReport, unit: &UnitWatch) {
        let wall = self.clock.wall().now();
        let report = RoleReport {
            kubelet_unit: unit.unit().cloned(),
            ..RoleReport::new(role, probes, fenced, &self.report.borrow(), wall)
        };
        if self.only_observes {
            if !before.has_same_reason_as(role) {
                let (seen, would_be) = (report.seen(), report.role);
                tracing::info!(seen, reason = ?report.reason, %would_be, "Only observing: with --pods auto the agent would have this role");
            }
            let report = report.observing(&self.report.borrow(), wall);
            self.report.send_replace(report);
            return;
        }
        if !before.has_same_reason_as(role) {
            let seen = report.seen();
            match role {
                Role::Active if *before == Role::Standby(StandbyReason::Resuming) => {
                    tracing::warn!(seen, "No kubelet ran while this agent restarted; it is active again");
                }
                Role::Active => tracing::warn!(seen, "The kubelet is down: this agent takes over its pods"),
                Role::Standby(why) if role.is_unresponsive() => tracing::error!(%why, seen, "Standing by"),
                Role::Standby(why) => tracing::info!(%why, seen, "Standing by"),
            }
        }
        if !matches!(role, Role::Active | Role::Standby(StandbyReason::Resuming)) {
            self.guard.record_possible_kubelet();
        }
        self.guard.set_role(report.message.clone(), role.is_unresponsive());
        self.report.send_replace(report);
    }
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
