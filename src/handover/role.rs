//! The role of this agent, active or standby, by the probes of the kubelet. Pure.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::probes::{Probes, RENEWAL_LIMIT, Starts};
use crate::{clock::Mark, journal::last_active::LastActive};

/// This long after the boot the node may still start its kubelet.
pub const BOOT_GRACE: Duration = Duration::from_secs(300);

/// A kubelet that started while no agent ran is seen within this time after the agent's start.
const START_DELAY: Duration = Duration::from_secs(2);

/// Whether this agent terminates the pods of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// A kubelet does, or nothing does.
    Standby(StandbyReason),
    /// This agent does.
    Active,
}

/// A [`Role`] without its reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum RoleName {
    /// It terminates the pods of this node.
    Active,
    /// It does not.
    #[default]
    Standby,
    /// It never does: it only compares its plans with the kubelet's results (`--mode observe`).
    Observing,
}

/// A [`StandbyReason`] without its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StandbyReasonName {
    /// The kubelet of this node works.
    KubeletAlive,
    /// A kubelet process exists, but has neither answered at healthz nor renewed the Lease so far.
    KubeletStarted,
    /// A kubelet process exists all the time, but healthz does not answer and the Lease is not renewed.
    KubeletUnresponsive,
    /// There is no kubelet process here, but healthz answers or the Lease is renewed.
    KubeletElsewhere,
    /// The kubelet is down, but not long enough.
    TakeoverPending,
    /// The node has just booted.
    NodeBooting,
    /// The agent was active before its restart, and no probe has yet shown whether a kubelet ran meanwhile.
    AgentRestarted,
    /// A probe fails.
    KubeletUnknown,
}

/// Why the agent is on standby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StandbyReason {
    /// The kubelet of this node works.
    Working,
    /// The kubelet answers at healthz, but its Lease is not renewed.
    NotRenewing,
    /// A kubelet process exists, which has neither answered at healthz nor renewed the Lease so far.
    Started,
    /// The same kubelet process exists all the time, but healthz does not answer and the Lease is not renewed.
    Unresponsive,
    /// There is no kubelet process, but healthz answers or the Lease is renewed.
    Unseen(&'static str),
    /// The kubelet is down, but not long enough.
    NotYet(Duration),
    /// The node has just booted.
    Booting(Duration),
    /// The agent was active before its restart, and no probe has yet shown whether a kubelet ran meanwhile.
    Resuming,
    /// A probe fails.
    Unknown(String),
}

/// The thresholds.
#[derive(Debug, Clone, Copy)]
pub struct Thresholds {
    /// `--take-over-after`: how long no kubelet must have worked.
    pub take_over_after: Duration,
    /// How long the node is up.
    pub up: Duration,
}

/// The role by these probes. The agent is active while no kubelet process exists and none has worked for the whole threshold,
/// whatever processes came and went meanwhile. An active agent goes to standby only if a probe shows a kubelet; an unreachable
/// API server shows none.
pub fn decide_role(probes: &Probes, thresholds: Thresholds, before: &Role, now: Instant) -> Role {
    let Thresholds { take_over_after, up } = thresholds;
    let (process, healthz, lease) = (&probes.process, &probes.healthz, &probes.lease.probe);
    if let Some(why) = process.why_unknown(now) {
        return Role::Standby(StandbyReason::Unknown(format!("whether a kubelet runs here: {why}")));
    }
    if process.is_alive(now) {
        return Role::Standby(decide_beside_process(probes, take_over_after, now));
    }
    // An answer before the process exited came from that process.
    if healthz.is_alive(now) && !healthz.is_older_than(process.since) {
        return Role::Standby(StandbyReason::Unseen("answers at the address of the kubelet's healthz"));
    }
    // Nor is a renewal soon after that another kubelet's.
    let by_another_kubelet =
        |renewed: Instant| renewed > process.since + RENEWAL_LIMIT && now < renewed + take_over_after;
    if probes.lease.renewed.is_some_and(by_another_kubelet) {
        return Role::Standby(StandbyReason::Unseen("renews the Lease of this Node"));
    }
    if *before == Role::Active && !lease.is_alive(now) {
        return Role::Active;
    }
    if *before == Role::Standby(StandbyReason::Resuming) && !lease.is_alive(now) {
        let is_settled = process.down_for(now) >= Some(START_DELAY) && probes.all_are_down(now);
        return if is_settled { Role::Active } else { before.clone() };
    }
    let required = [
        ("whether healthz answers", healthz),
        ("whether the kubelet renews its Lease", lease),
    ];
    for (what, probe) in required {
        if let Some(why) = probe.why_unknown(now) {
            return Role::Standby(StandbyReason::Unknown(format!("{what}: {why}")));
        }
    }
    let due = probes.silent_since(now).unwrap_or(now) + take_over_after;
    // What a process has done up to its end shows only in probes after that.
    let endpoints_due = due.max(process.since);
    if process.is_older_than(due) || healthz.is_older_than(endpoints_due) || lease.is_older_than(endpoints_due) {
        return Role::Standby(StandbyReason::NotYet(due.saturating_duration_since(now)));
    }
    if up < BOOT_GRACE {
        return Role::Standby(StandbyReason::Booting(BOOT_GRACE.saturating_sub(up)));
    }
    Role::Active
}

/// Why the agent is on standby beside a kubelet process. A process counts as a working kubelet only once it has shown that.
fn decide_beside_process(probes: &Probes, take_over_after: Duration, now: Instant) -> StandbyReason {
    let long = |time: Option<Duration>| time.is_some_and(|time| time >= take_over_after);
    let (is_silent, is_not_renewed) = (
        long(probes.healthz.down_for(now)),
        long(probes.lease.probe.down_for(now)),
    );
    if is_silent && is_not_renewed && long(probes.same_process_for(now)) {
        StandbyReason::Unresponsive
    } else if !probes.has_worked() {
        StandbyReason::Started
    } else if is_not_renewed && probes.healthz.is_alive(now) {
        StandbyReason::NotRenewing
    } else {
        StandbyReason::Working
    }
}

/// The starts of a kubelet that starts again and again and never works: at least two since one last worked, and none has worked
/// for the whole threshold. A process that exists for the threshold is not one of them: it may only have another healthz address.
pub fn failing_starts(probes: &Probes, take_over_after: Duration, now: Instant) -> Option<Starts> {
    let starts = probes.starts(now).filter(|starts| starts.count >= 2)?;
    if probes.same_process_for(now).is_some_and(|time| time >= take_over_after) {
        return None;
    }
    (now >= probes.silent_since(now)? + take_over_after).then_some(starts)
}

/// Whether an unresponsive kubelet may be stopped: only if healthz has answered before, so that its address is known to be right.
///
/// # Errors
/// Why it may not.
pub fn may_fence(probes: &Probes) -> Result<(), &'static str> {
    if !probes.healthz.was_alive {
        return Err(
            "healthz has not answered at the address of --kubelet-config since this agent has started, so the address may be wrong, and the kubelet is not stopped: stop it by hand",
        );
    }
    Ok(())
}

/// The role of an agent that has just started. If its earlier run in this boot was active, and ended not longer ago than
/// `take_over_after`, it becomes active again unless a probe shows a kubelet.
pub fn initial_role(had: Option<&LastActive>, take_over_after: Duration, now: &Mark) -> Role {
    let stopped_for = had.and_then(|had| had.at.elapsed(now));
    Role::Standby(
        if stopped_for.is_some_and(|stopped_for| stopped_for <= take_over_after) {
            StandbyReason::Resuming
        } else {
            StandbyReason::Unknown("whether a kubelet runs here: no probe has finished yet".to_owned())
        },
    )
}

// === impl Role ===

impl Role {
    /// Whether pods are terminated neither by the kubelet nor by this agent until the kubelet is repaired.
    pub fn is_unresponsive(&self) -> bool {
        *self == Self::Standby(StandbyReason::Unresponsive)
    }

    /// Whether both have the same reason, regardless of durations and messages.
    pub fn has_same_reason_as(&self, other: &Self) -> bool {
        let reason = |role: &Self| match role {
            Self::Standby(StandbyReason::Unseen(what)) => Some(*what),
            Self::Standby(StandbyReason::NotRenewing) => Some("not renewing"),
            _ => None,
        };
        (self.name(), self.standby_reason()) == (other.name(), other.standby_reason()) && reason(self) == reason(other)
    }

    /// Its name in `status` and metrics.
    pub fn name(&self) -> RoleName {
        match self {
            Self::Active => RoleName::Active,
            Self::Standby(_) => RoleName::Standby,
        }
    }

    /// The reason for standby in `status` and metrics; `None` if the agent is active.
    pub fn standby_reason(&self) -> Option<StandbyReasonName> {
        let Self::Standby(reason) = self else { return None };
        Some(match reason {
            StandbyReason::Working | StandbyReason::NotRenewing => StandbyReasonName::KubeletAlive,
            StandbyReason::Started => StandbyReasonName::KubeletStarted,
            StandbyReason::Unresponsive => StandbyReasonName::KubeletUnresponsive,
            StandbyReason::Unseen(_) => StandbyReasonName::KubeletElsewhere,
            StandbyReason::NotYet(_) => StandbyReasonName::TakeoverPending,
            StandbyReason::Booting(_) => StandbyReasonName::NodeBooting,
            StandbyReason::Resuming => StandbyReasonName::AgentRestarted,
            StandbyReason::Unknown(_) => StandbyReasonName::KubeletUnknown,
        })
    }
}

// === impl RoleName ===

impl RoleName {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Active, Self::Standby, Self::Observing];
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Active => "active",
            Self::Standby => "standby",
            Self::Observing => "observing",
        })
    }
}

// === impl StandbyReasonName ===

impl StandbyReasonName {
    /// All reasons.
    pub const ALL: [Self; 8] = [
        Self::KubeletAlive,
        Self::KubeletStarted,
        Self::KubeletUnresponsive,
        Self::KubeletElsewhere,
        Self::TakeoverPending,
        Self::NodeBooting,
        Self::AgentRestarted,
        Self::KubeletUnknown,
    ];
}

impl fmt::Display for StandbyReasonName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::KubeletAlive => "kubelet-alive",
            Self::KubeletStarted => "kubelet-started",
            Self::KubeletUnresponsive => "kubelet-unresponsive",
            Self::KubeletElsewhere => "kubelet-elsewhere",
            Self::TakeoverPending => "takeover-pending",
            Self::NodeBooting => "node-booting",
            Self::AgentRestarted => "agent-restarted",
            Self::KubeletUnknown => "kubelet-unknown",
        })
    }
}

impl fmt::Display for StandbyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Working => f.write_str("the kubelet works"),
            Self::NotRenewing => f.write_str(
                "the kubelet answers at healthz, but does not renew its Lease: the API server is unreachable or refuses it; this agent leaves its pods to it; see journalctl -u kubelet",
            ),
            Self::Started => {
                f.write_str("a kubelet process exists, which has neither answered at healthz nor renewed its Lease so far")
            }
            Self::Unresponsive => f.write_str(
                "the kubelet is unresponsive: its process runs, but healthz does not answer and its Lease is not renewed; restart \
                 it or stop it; no pod is terminated meanwhile",
            ),
            Self::Unseen(what) => write!(
                f,
                "there is no kubelet process on this node, but something {what}: is the kubelet in another PID namespace, or on \
                 another machine of this name?"
            ),
            Self::NotYet(left) => write!(f, "the kubelet is down; takeover in {} s if it stays down", left.as_secs()),
            Self::Booting(left) => write!(f, "the node has just booted; the kubelet has {} s to start", left.as_secs()),
            Self::Resuming => f.write_str(
                "this agent was active before its restart, and continues once the probes show that no kubelet has run \
                 meanwhile",
            ),
            Self::Unknown(what) => write!(f, "unknown {what}"),
        }
    }
}

#[cfg(test)]
mod tests;
