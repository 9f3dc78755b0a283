//! The role and the probes of the kubelet in `status`.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    probes::{LEASE, Lease, ProbeHistory, ProbeState, Probes, RENEWAL_LIMIT, Starts},
    role::{Role, RoleName, StandbyReason, StandbyReasonName},
};
use crate::{model::kubelet_unit::KubeletUnit, words::age};

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

// === impl RoleReport ===

impl RoleReport {
    /// The report of this role, with the starts of a kubelet that never works. `since` stays that of `before` if the role is the
    /// same.
    pub fn new(
        role: &Role,
        probes: &Probes,
        failing: Option<Starts>,
        fencing: &FenceReport,
        before: &Self,
        wall: Timestamp,
    ) -> Self {
        let (name, reason) = (role.name(), role.standby_reason());
        let since = before.since.filter(|_| (before.role, before.reason) == (name, reason));
        let failing = failing.map(|starts| FailingKubelet::new(starts, wall));
        Self {
            role: name,
            reason,
            since: since.or(Some(wall)),
            message: match (role, &failing) {
                (Role::Active, None) => None,
                (Role::Active, Some(failing)) => Some(format!(
                    "between the starts of a failing kubelet: {}",
                    failing.starts_in(wall)
                )),
                (Role::Standby(StandbyReason::Started | StandbyReason::NotYet(_)), Some(failing)) => Some(format!(
                    "the kubelet starts again and again and never works: {}; this agent continues when that process exits",
                    failing.starts_in(wall)
                )),
                (Role::Standby(why), _) => Some(why.to_string()),
            },
            failing,
            certificate_expired: None,
            probes: probes
                .each()
                .map(|(name, probe)| ProbeReport::new(name, probe, wall).with_renewal_interval(name, &probes.lease))
                .into(),
            fencing: fencing.clone(),
            kubelet_unit: None,
        }
    }

    /// The same if the kubelet's client certificate has expired: that is why a kubelet renews nothing that else works.
    #[must_use]
    pub fn with_expired_certificate(self, expired: Option<Timestamp>) -> Self {
        let is_renewed = |probe: &ProbeReport| probe.probe == LEASE && probe.state == ProbeState::Alive;
        let renews_nothing =
            self.reason == Some(StandbyReasonName::KubeletAlive) && !self.probes.iter().any(is_renewed);
        let Some(expired) = expired.filter(|_| renews_nothing) else {
            return self;
        };
        let message = format!(
            "the kubelet runs, and its client certificate has expired ({expired:.0}): the API server refuses it, so that pods stay Terminating; restart it with a bootstrap kubeconfig, or have a new certificate signed for system:node:NAME of group \
             system:nodes"
        );
        Self {
            message: Some(message),
            certificate_expired: Some(expired),
            ..self
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
    pub fn starts_in(&self, now: Timestamp) -> String {
        let Self { starts, since } = self;
        let seconds = now.duration_since(*since).as_secs().max(0).unsigned_abs();
        let time = age(Duration::from_secs(seconds));
        format!("{starts} starts in {time}, none worked")
    }
}

// === impl FenceReport ===

impl FenceReport {
    /// Adds the result of an attempt: the unit, or why it failed. Returns whether it succeeded.
    pub fn add_result(&mut self, stopped: Result<String, String>) -> bool {
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
                tracing::error!(why, "Kubelet that does not work cannot be stopped");
                self.failed += 1;
                self.last = Some(why);
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
        let has_lease = lease.state().is_some_and(Option::is_some);
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
        let start = Instant::now();
        let mut probes = Probes::new(start, Duration::from_secs(5), Duration::from_secs(15));
        let mut read_after = async |seconds: u64, state: Option<&str>| {
            advance(Duration::from_secs(seconds)).await;
            let now = Instant::now();
            probes.lease.add(Ok(state.map(str::to_owned)), &(now..now));
            let report = RoleReport::new(
                &Role::Active,
                &probes,
                None,
                &FenceReport::default(),
                &RoleReport::default(),
                Timestamp::UNIX_EPOCH,
            );
            let lease = report.probes.into_iter().find(|probe| probe.probe == LEASE);
            lease.unwrap().state
        };
        for (seconds, lease, expected) in [
            (0, Some("1"), ProbeState::Unknown),
            (5, Some("1"), ProbeState::Unknown),
            (5, Some("2"), ProbeState::Alive),
            (5, Some("2"), ProbeState::Alive),
            (5, Some("3"), ProbeState::Alive),
            (14, Some("3"), ProbeState::Alive),
            (1, Some("3"), ProbeState::Down),
            (5, Some("4"), ProbeState::Alive),
            (1, None, ProbeState::Down),
        ] {
            assert_eq!(read_after(seconds, lease).await, expected, "{seconds} {lease:?}");
        }
    }

    #[test]
    fn expired_certificate_is_the_reason_only_of_a_running_kubelet_that_renews_nothing() {
        let report = |reason, lease| {
            let report = RoleReport {
                reason,
                probes: vec![ProbeReport {
                    probe: LEASE.to_owned(),
                    state: lease,
                    ..ProbeReport::default()
                }],
                ..RoleReport::default()
            };
            let report = report.with_expired_certificate(Some(Timestamp::UNIX_EPOCH));
            report
                .message
                .map(|message| message.contains("has expired (1970-01-01T00:00:00Z)"))
        };
        let alive = Some(StandbyReasonName::KubeletAlive);
        assert_eq!(report(alive, ProbeState::Down), Some(true));
        assert_eq!(
            report(alive, ProbeState::Unknown),
            Some(true),
            "the agent may have the same certificate"
        );
        assert_eq!(report(alive, ProbeState::Alive), None);
        assert_eq!(report(Some(StandbyReasonName::KubeletStarted), ProbeState::Down), None);
        assert_eq!(report(None, ProbeState::Down), None);
    }

    #[tokio::test(start_paused = true)]
    async fn lease_that_is_never_renewed_is_down_after_a_while() {
        let start = Instant::now();
        let mut probes = Probes::new(start, Duration::from_secs(5), Duration::from_secs(15));
        for (seconds, expected) in [
            (0, ProbeState::Unknown),
            (14, ProbeState::Unknown),
            (1, ProbeState::Down),
        ] {
            advance(Duration::from_secs(seconds)).await;
            let now = Instant::now();
            probes.lease.add(Ok(Some("1".to_owned())), &(now..now));
            let report = ProbeReport::new(LEASE, &probes.lease.probe, Timestamp::UNIX_EPOCH);
            assert_eq!(
                report.with_renewal_interval(LEASE, &probes.lease).state,
                expected,
                "{seconds}"
            );
        }
    }
}
