//! The role of this agent, active or standby, by the probes of the kubelet. Pure.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::probes::Probes;
use crate::{clock::Mark, journal::last_active::LastActive};

/// This long after the boot the node may still start its kubelet.
pub const BOOT_GRACE: Duration = Duration::from_secs(300);

/// A renewal that is observed this long after the kubelet process has exited comes from another kubelet.
const RENEWAL_DELAY: Duration = Duration::from_secs(15);

/// A kubelet that started while no agent ran is seen within this time after the agent's start.
const START_DELAY: Duration = Duration::from_secs(2);

/// A kubelet that has restarted this often without an answer at healthz does not recover by itself.
const MAX_RESTARTS: u32 = 3;

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
    /// It never does: it only compares its plans with the kubelet's results (`--pods observe`).
    Observing,
}

/// A [`StandbyReason`] without its details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum StandbyReasonName {
    /// The kubelet of this node works.
    KubeletAlive,
    /// A kubelet process exists or restarts again and again, but healthz does not answer and the Lease is not renewed.
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
    /// The kubelet process exists, but healthz does not answer and the Lease is not renewed.
    Unresponsive,
    /// The same with a kubelet that restarts again and again.
    Restarting,
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
    /// `--take-over-after`: how long all probes must be Down.
    pub take_over_after: Duration,
    /// How long the node is up.
    pub up: Duration,
}

/// The role by these probes. An active agent goes to standby only if a probe shows a kubelet; an unreachable API server shows
/// none.
pub fn decide_role(probes: &Probes, thresholds: Thresholds, before: &Role, now: Instant) -> Role {
    let Thresholds { take_over_after, up } = thresholds;
    let long = |down_for: Option<Duration>| down_for.is_some_and(|down_for| down_for >= take_over_after);
    let (process, healthz, lease) = (&probes.process, &probes.healthz, &probes.lease.probe);
    if let Some(why) = process.why_unknown(now) {
        return Role::Standby(StandbyReason::Unknown(format!("whether a kubelet runs here: {why}")));
    }
    let present_since = probes.present_since.map(|since| now.saturating_duration_since(since));
    let does_nothing = long(present_since) && long(healthz.down_for(now)) && long(lease.down_for(now));
    let is_restarting = does_nothing && probes.restarts >= MAX_RESTARTS;
    if process.is_alive(now) {
        // A process that has just restarted may need some time.
        return Role::Standby(match does_nothing && long(probes.same_process_for(now)) {
            true => StandbyReason::Unresponsive,
            false if is_restarting => StandbyReason::Restarting,
            false => StandbyReason::Working,
        });
    }
    // An answer before the process exited came from that process.
    if healthz.is_alive(now) && !healthz.is_older_than(process.since) {
        return Role::Standby(StandbyReason::Unseen("answers at the address of the kubelet's healthz"));
    }
    let by_another_kubelet =
        |renewed: Instant| renewed > process.since + RENEWAL_DELAY && now < renewed + take_over_after;
    if probes.lease.renewed.is_some_and(by_another_kubelet) || lease.is_alive(now) && *before == Role::Active {
        return Role::Standby(StandbyReason::Unseen("renews the Lease of this Node"));
    }
    if *before == Role::Active {
        return Role::Active;
    }
    if *before == Role::Standby(StandbyReason::Resuming) && !lease.is_alive(now) {
        let is_settled = process.down_for(now) >= Some(START_DELAY) && probes.all_are_down(now);
        return if is_settled { Role::Active } else { before.clone() };
    }
    // The next restart is expected.
    if is_restarting {
        return Role::Standby(StandbyReason::Restarting);
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
    let left =
        [process, healthz, lease].map(|probe| take_over_after.saturating_sub(probe.down_for(now).unwrap_or_default()));
    match left.into_iter().max().unwrap_or_default() {
        Duration::ZERO if up < BOOT_GRACE => Role::Standby(StandbyReason::Booting(BOOT_GRACE.saturating_sub(up))),
        Duration::ZERO => Role::Active,
        // Counted until now: the last probes may be some seconds old.
        _ => {
            let left = [process, healthz, lease].map(|probe| match probe.down_for(now) {
                Some(_) => (probe.since + take_over_after).saturating_duration_since(now),
                None => take_over_after,
            });
            Role::Standby(StandbyReason::NotYet(left.into_iter().max().unwrap_or_default()))
        }
    }
}

/// Whether an unresponsive kubelet may be stopped: only if the same process was present all the time, and if healthz has answered
/// before, so that its address is known to be right.
///
/// # Errors
/// Why it may not.
pub fn may_fence(probes: &Probes, take_over_after: Duration, now: Instant) -> Result<(), &'static str> {
    if probes.same_process_for(now).is_none_or(|time| time < take_over_after) {
        return Err("it restarts again and again, and no process runs long enough: repair it, or stop it yourself");
    }
    if !probes.healthz.was_alive {
        return Err(
            "healthz has not answered at the address of --kubelet-config since this agent has started, so the address may be \
             wrong: stop it yourself",
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
        matches!(
            self,
            Self::Standby(StandbyReason::Unresponsive | StandbyReason::Restarting)
        )
    }

    /// Whether both have the same reason, regardless of durations and messages.
    pub fn has_same_reason_as(&self, other: &Self) -> bool {
        let reason = |role: &Self| match role {
            Self::Standby(StandbyReason::Unseen(what)) => Some(*what),
            Self::Standby(StandbyReason::Restarting) => Some("restarting"),
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
            StandbyReason::Working => StandbyReasonName::KubeletAlive,
            StandbyReason::Unresponsive | StandbyReason::Restarting => StandbyReasonName::KubeletUnresponsive,
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
    pub const ALL: [Self; 7] = [
        Self::KubeletAlive,
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
            Self::Unresponsive => f.write_str(
                "the kubelet is unresponsive: its process runs, but healthz does not answer and its Lease is not renewed; restart \
                 it or stop it; no pod is terminated meanwhile",
            ),
            Self::Restarting => f.write_str(
                "the kubelet restarts again and again; healthz does not answer and its Lease is not renewed: repair it, or stop \
                 its unit so that this agent takes over: systemctl stop kubelet; no pod is terminated meanwhile",
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
