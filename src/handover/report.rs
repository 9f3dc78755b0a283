//! The role and the probes of the kubelet in `status`.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    probes::{LEASE, Lease, ProbeHistory, ProbeState, Probes, RENEWAL_LIMIT, Starts},
    role::Role,
};
use crate::{
    model::{
        blocked::KubeletFault,
        kubelet_unit::KubeletUnit,
        role::{RoleName, StandbyReason, StandbyReasonName},
    },
    why::Why,
};

/// The role of this agent, and the probes that it is decided by.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct RoleReport {
    /// The role.
    pub role: RoleName,
    /// Why this agent is on standby; `None` if it is active.
    pub reason: Option<StandbyReasonName>,
    /// Since when the agent has this role.
    pub since: Option<Timestamp>,
    /// The same as a message for the user.
    pub message: Option<String>,
    /// The last results of the probes.
    pub probes: Vec<ProbeReport>,
    /// The kubelet starts again and again and never works. The agent is active between its starts.
    #[serde(default)]
    pub failing: Option<FailingKubelet>,
    /// When the client certificate of a kubelet that runs and renews nothing has expired.
    #[serde(default)]
    pub certificate_expired: Option<Timestamp>,
    /// Attempts to stop a kubelet that does not work.
    #[serde(default)]
    pub fencing: FenceReport,
    /// The kubelet's systemd unit, while the kubelet does not work; `None` without systemd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_unit: Option<KubeletUnit>,
}

/// A kubelet that starts again and again and never works: no start has led to an answer at healthz or a renewal of the Lease, for
/// all of `--take-over-after`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FailingKubelet {
    /// Starts that the agent has seen since the kubelet last worked.
    pub starts: u32,
    /// When it saw the first of them.
    pub since: Timestamp,
}

/// Attempts to stop a kubelet that does not work.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct FenceReport {
    /// Successful attempts in this run.
    pub stopped: u64,
    /// Failed attempts in this run, and reports that a stop is not allowed, at most one a minute.
    pub failed: u64,
    /// The result of the last attempt.
    pub last: Option<String>,
}

/// One probe of the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ProbeReport {
    /// Which one: `process`, `healthz` or `lease`.
    pub probe: String,
    /// The last result.
    pub state: ProbeState,
    /// Since when all results are the same, without a gap.
    pub since: Option<Timestamp>,
    /// Details of the last result.
    pub seen: String,
}

/// What is known of the kubelet.
pub(super) struct Seen<'a> {
    pub probes: &'a Probes,
    pub failing: Option<Starts>,
    pub expired_certificate: Option<Timestamp>,
    pub unit: Option<&'a KubeletUnit>,
}

// === impl RoleReport ===

impl RoleReport {
    /// The report of this role. `since` stays that of `before` if the role is the same.
    pub(super) fn new(role: &Role, seen: &Seen<'_>, fencing: &FenceReport, before: &Self, wall: Timestamp) -> Self {
        let (name, reason) = (role.name(), role.standby_reason());
        let since = before.since.filter(|_| (before.role, before.reason) == (name, reason));
        let failing = seen.failing.map(|starts| FailingKubelet::new(starts, wall));
        let probes = seen
            .probes
            .each()
            .map(|(name, probe)| ProbeReport::new(name, probe, wall).with_renewal_interval(name, &seen.probes.lease));
        // An expired certificate is why a kubelet renews nothing that else works.
        let is_renewed = |probe: &ProbeReport| probe.probe == LEASE && probe.state == ProbeState::Alive;
        let renews_nothing = reason == Some(StandbyReasonName::KubeletAlive) && !probes.iter().any(is_renewed);
        let expired = seen.expired_certificate.filter(|_| renews_nothing);
        Self {
            role: name,
            reason,
            since: since.or(Some(wall)),
            message: match (role, &failing, expired) {
                (_, _, Some(expired)) => Some(format!(
                    "the kubelet runs, and its client certificate has expired ({expired:.0}): the API server refuses it, so that \
                     pods stay Terminating; restart it with a bootstrap kubeconfig, or have a new certificate signed for \
                     system:node:NAME of group system:nodes"
                )),
                (Role::Active, None, _) => None,
                (Role::Active, Some(failing), _) => Some(format!(
                    "between the starts of a failing kubelet: {}",
                    failing.fault(wall)
                )),
                (
                    Role::Standby(StandbyReason::KubeletStarted | StandbyReason::TakeoverPending(_)),
                    Some(failing),
                    _,
                ) => Some(format!(
                    "the kubelet starts again and again and never works: {}; this agent continues when that process exits",
                    failing.fault(wall)
                )),
                (Role::Standby(why), ..) => Some(why.to_string()),
            },
            failing,
            certificate_expired: expired,
            probes: probes.into(),
            fencing: fencing.clone(),
            kubelet_unit: seen.unit.cloned(),
        }
    }

    /// The kubelet of this report if the agent is active between its starts. A process that exists for a moment changes nothing of
    /// that.
    pub fn between_starts_of(&self) -> Option<&FailingKubelet> {
        let between = matches!(
            self.reason,
            None | Some(StandbyReasonName::KubeletStarted | StandbyReasonName::TakeoverPending)
        );
        self.failing.as_ref().filter(|_| between)
    }

    /// The report before the first probe.
    pub fn before_first_probe(only_observes: bool) -> Self {
        if !only_observes {
            return Self::default();
        }
        Self {
            role: RoleName::Observing,
            message: Some("it touches nothing; the kubelet is not probed yet".to_owned()),
            ..Self::default()
        }
    }

    /// The same probes for an agent that only observes. The message has the role that it would have. `since` stays that of
    /// `before` if the message is the same.
    #[must_use]
    pub fn observing(self, before: &Self, wall: Timestamp) -> Self {
        let would_be = match self.reason {
            _ if self.between_starts_of().is_some() => "active between the starts of a failing kubelet".to_owned(),
            Some(reason) => format!("{} ({reason})", self.role),
            None => self.role.to_string(),
        };
        let message = Some(format!("it touches nothing; with --mode auto it would be {would_be}"));
        let since = before.since.filter(|_| before.message == message);
        Self {
            role: RoleName::Observing,
            reason: None,
            since: since.or(Some(wall)),
            message,
            failing: self.between_starts_of().cloned(),
            ..self
        }
    }

    /// The probes on one line.
    pub fn seen(&self) -> String {
        let probes = self
            .probes
            .iter()
            .map(|probe| format!("{} {}: {}", probe.probe, probe.state, probe.seen));
        probes.collect::<Vec<_>>().join("; ")
    }
}

// === impl FailingKubelet ===

impl FailingKubelet {
    fn new(starts: Starts, wall: Timestamp) -> Self {
        let ago = Instant::now().saturating_duration_since(starts.first);
        Self {
            starts: starts.count,
            since: wall.checked_sub(ago).unwrap_or(wall),
        }
    }

    /// Such as `14 starts in 3m, none worked`.
    pub fn fault(&self, now: Timestamp) -> KubeletFault {
        let seconds = now.duration_since(self.since).as_secs().max(0).unsigned_abs();
        KubeletFault::Failing {
            starts: self.starts,
            period: Duration::from_secs(seconds),
        }
    }
}

// === impl FenceReport ===

impl FenceReport {
    /// Adds the result of an attempt: the unit, or why it failed. Returns whether it succeeded.
    pub(super) fn add_result(&mut self, stopped: Result<String, Why>) -> bool {
        let is_stopped = stopped.is_ok();
        match stopped {
            Ok(unit) => {
                tracing::warn!(unit, "Unit of the kubelet stopped; start it when it is repaired");
                self.stopped += 1;
                self.last = Some(format!(
                    "{unit} was stopped because its kubelet did not work; start it when it is repaired: systemctl start {unit}"
                ));
            }
            Err(why) => {
                tracing::error!(%why, "Kubelet that does not work cannot be stopped");
                self.failed += 1;
                self.last = Some(why.to_string());
            }
        }
        is_stopped
    }
}

// === impl ProbeReport ===

impl ProbeReport {
    fn new(name: &str, probe: &ProbeHistory, wall: Timestamp) -> Self {
        let duration = Instant::now().saturating_duration_since(probe.since);
        Self {
            probe: name.to_owned(),
            state: probe.result.state(),
            since: wall.checked_sub(duration).ok(),
            seen: probe.result.detail().to_owned(),
        }
    }

    /// The Lease does not count as down before the next renewal is overdue.
    fn with_renewal_interval(self, name: &str, lease: &Lease) -> Self {
        let has_lease = lease.last.as_ref().is_some_and(Option::is_some);
        let is_recent = Instant::now().saturating_duration_since(lease.probe.since) < RENEWAL_LIMIT;
        if name != LEASE || self.state != ProbeState::Down || !has_lease || !is_recent {
            return self;
        }
        let (state, seen) = match lease.renewed {
            Some(_) => (ProbeState::Alive, "was renewed"),
            None => (ProbeState::Unknown, "no renewal has been seen yet"),
        };
        let seen = seen.to_owned();
        Self { state, seen, ..self }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lease_is_down_once_a_renewal_is_overdue() {
        let renewed = [
            (0, Some("1"), ProbeState::Unknown),
            (5, Some("1"), ProbeState::Unknown),
            (5, Some("2"), ProbeState::Alive),
            (5, Some("2"), ProbeState::Alive),
            (5, Some("3"), ProbeState::Alive),
            (14, Some("3"), ProbeState::Alive),
            (1, Some("3"), ProbeState::Down),
            (5, Some("4"), ProbeState::Alive),
            (1, None, ProbeState::Down),
        ];
        let never_renewed = [
            (0, Some("1"), ProbeState::Unknown),
            (14, Some("1"), ProbeState::Unknown),
            (1, Some("1"), ProbeState::Down),
        ];
        for reads in [&renewed[..], &never_renewed] {
            let mut lease = Lease::new(Instant::now(), Duration::from_secs(15));
            for (seconds, state, expected) in reads {
                advance(Duration::from_secs(*seconds)).await;
                let now = Instant::now();
                lease.add(Ok(state.map(str::to_owned)), &(now..now));
                let report = ProbeReport::new(LEASE, &lease.probe, Timestamp::UNIX_EPOCH);
                let report = report.with_renewal_interval(LEASE, &lease);
                assert_eq!(report.state, *expected, "{seconds} {state:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn expired_certificate_is_the_reason_only_of_a_running_kubelet_that_renews_nothing() {
        let alive = || {
            Role::Standby(StandbyReason::KubeletAlive {
                is_lease_overdue: false,
            })
        };
        let renewed: &[_] = &[Some("1"), Some("2")];
        for (role, lease, expected) in [
            (alive(), &[None][..], true),
            // The agent may have the same certificate.
            (alive(), &[], true),
            (alive(), renewed, false),
            (Role::Standby(StandbyReason::KubeletStarted), &[None], false),
            (Role::Active, &[None], false),
        ] {
            let now = Instant::now();
            let mut probes = Probes::new(now, Duration::from_secs(5), Duration::from_secs(15));
            for state in lease {
                probes.add_lease(Ok(state.map(str::to_owned)), &(now..now));
            }
            let seen = Seen {
                probes: &probes,
                failing: None,
                expired_certificate: Some(Timestamp::UNIX_EPOCH),
                unit: None,
            };
            let (fencing, before) = (FenceReport::default(), RoleReport::default());
            let report = RoleReport::new(&role, &seen, &fencing, &before, Timestamp::UNIX_EPOCH);
            let message = report.message.unwrap_or_default();
            let is_expired = message.contains("has expired (1970-01-01T00:00:00Z)");
            assert_eq!(
                (is_expired, report.certificate_expired.is_some()),
                (expected, expected),
                "{role:?} {lease:?}"
            );
        }
    }
}
