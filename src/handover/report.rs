//! The role and the probes of the kubelet in `status`.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::{
    probes::{LEASE, Lease, ProbeHistory, ProbeState, Probes},
    role::{Role, RoleName, StandbyReasonName},
};
use crate::model::kubelet_unit::KubeletUnit;

/// A kubelet renews its Lease every 10 s, and the agent reads it every 5 s.
const RENEWAL_LIMIT: Duration = Duration::from_secs(15);

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
    /// Attempts to stop an unresponsive kubelet.
    #[serde(default)]
    pub fencing: FenceReport,
    /// The kubelet's systemd unit, while the kubelet does not work; `None` without systemd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_unit: Option<KubeletUnit>,
}

/// Attempts to stop an unresponsive kubelet.
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
    /// The report of this role. `since` stays that of `before` if the role is the same.
    pub fn new(role: &Role, probes: &Probes, fencing: &FenceReport, before: &Self, wall: Timestamp) -> Self {
        let (name, reason) = (role.name(), role.standby_reason());
        let since = before.since.filter(|_| (before.role, before.reason) == (name, reason));
        Self {
            role: name,
            reason,
            since: since.or(Some(wall)),
            message: match role {
                Role::Active => None,
                Role::Standby(why) => Some(why.to_string()),
            },
            probes: probes
                .each()
                .map(|(name, probe)| ProbeReport::new(name, probe, wall).with_renewal_interval(name, &probes.lease))
                .into(),
            fencing: fencing.clone(),
            kubelet_unit: None,
        }
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
            Some(reason) => format!("{} ({reason})", self.role),
            None => self.role.to_string(),
        };
        let message = Some(format!("it touches nothing; with --pods auto it would be {would_be}"));
        let since = before.since.filter(|_| before.message == message);
        Self {
            role: RoleName::Observing,
            reason: None,
            since: since.or(Some(wall)),
            message,
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

// === impl FenceReport ===

impl FenceReport {
    /// Adds the result of an attempt: the unit, or why it failed.
    pub fn add_result(&mut self, stopped: Result<String, String>) {
        match stopped {
            Ok(unit) => {
                tracing::warn!(
                    unit,
                    "Unit of the unresponsive kubelet stopped; start it when it is repaired"
                );
                self.stopped += 1;
                self.last = Some(format!(
                    "{unit} was stopped because its kubelet was unresponsive; start it when it is repaired: systemctl start {unit}"
                ));
            }
            Err(why) => {
                tracing::error!(why, "Unresponsive kubelet cannot be stopped");
                self.failed += 1;
                self.last = Some(why);
            }
        }
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
