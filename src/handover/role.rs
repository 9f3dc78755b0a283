//! The role of this agent, active or standby, by the probes of the kubelet. Pure.

use std::time::Duration;

use tokio::time::Instant;

use super::probes::{Probes, RENEWAL_LIMIT, Starts};
use crate::{
    clock::Mark,
    journal::LastActive,
    model::role::{RoleName, StandbyReason, StandbyReasonName},
};

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

/// The role by these probes. The agent is active while no kubelet process exists and none has worked for the whole threshold,
/// whatever processes came and went meanwhile. An active agent goes to standby only if a probe shows a kubelet; an unreachable
/// API server shows none. `up`: how long the node is up.
pub fn decide_role(probes: &Probes, take_over_after: Duration, up: Duration, before: &Role, now: Instant) -> Role {
    let (process, healthz, lease) = (&probes.process, &probes.healthz, &probes.lease.probe);
    if let Some(why) = process.why_unknown(now) {
        return Role::Standby(StandbyReason::KubeletUnknown(format!(
            "whether a kubelet runs here: {why}"
        )));
    }
    if process.is_alive(now) {
        return Role::Standby(decide_beside_process(probes, take_over_after, now));
    }
    // An answer before the process exited came from that process.
    if healthz.is_alive(now) && !healthz.is_older_than(process.since) {
        return Role::Standby(StandbyReason::KubeletElsewhere);
    }
    // Nor is a renewal soon after that another kubelet's.
    let by_another_kubelet =
        |renewed: Instant| renewed > process.since + RENEWAL_LIMIT && now < renewed + take_over_after;
    if probes.lease.renewed.is_some_and(by_another_kubelet) {
        return Role::Standby(StandbyReason::KubeletElsewhere);
    }
    if *before == Role::Active && !lease.is_alive(now) {
        return Role::Active;
    }
    if *before == Role::Standby(StandbyReason::AgentRestarted) && !lease.is_alive(now) {
        let is_settled = process.down_for(now) >= Some(START_DELAY) && probes.all_are_down(now);
        return if is_settled { Role::Active } else { before.clone() };
    }
    let required = [
        ("whether healthz answers", healthz),
        ("whether the kubelet renews its Lease", lease),
    ];
    for (what, probe) in required {
        if let Some(why) = probe.why_unknown(now) {
            return Role::Standby(StandbyReason::KubeletUnknown(format!("{what}: {why}")));
        }
    }
    let due = probes.silent_since(now).unwrap_or(now) + take_over_after;
    // What a process has done up to its end shows only in probes after that.
    let endpoints_due = due.max(process.since);
    if process.is_older_than(due) || healthz.is_older_than(endpoints_due) || lease.is_older_than(endpoints_due) {
        return Role::Standby(StandbyReason::TakeoverPending(due.saturating_duration_since(now)));
    }
    if up < BOOT_GRACE {
        return Role::Standby(StandbyReason::NodeBooting);
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
        StandbyReason::KubeletUnresponsive
    } else if !probes.has_worked() {
        StandbyReason::KubeletStarted
    } else if is_not_renewed && probes.healthz.is_alive(now) {
        StandbyReason::KubeletAlive { is_lease_overdue: true }
    } else {
        StandbyReason::KubeletAlive {
            is_lease_overdue: false,
        }
    }
}

/// The starts of a kubelet that starts again and again and never works: at least two since one last worked, and none has worked
/// for the whole threshold. A process that exists for the threshold is not one of them: it may only have another healthz address.
pub fn failing_starts(probes: &Probes, take_over_after: Duration, now: Instant) -> Option<Starts> {
    let starts = probes.recent_starts(now).filter(|starts| starts.count >= 2)?;
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
    match had.and_then(|had| had.at.elapsed(now)) {
        Some(stopped_for) if stopped_for <= take_over_after => Role::Standby(StandbyReason::AgentRestarted),
        _ => Role::unknown(),
    }
}

// === impl Role ===

impl Role {
    /// The role before the first probe.
    pub fn unknown() -> Self {
        Self::Standby(StandbyReason::KubeletUnknown(
            "whether a kubelet runs here: no probe has finished yet".to_owned(),
        ))
    }

    /// Whether pods are terminated neither by the kubelet nor by this agent until the kubelet is repaired.
    pub fn is_unresponsive(&self) -> bool {
        *self == Self::Standby(StandbyReason::KubeletUnresponsive)
    }

    /// Whether both have the same reason, regardless of durations and messages.
    pub fn has_same_reason_as(&self, other: &Self) -> bool {
        // The reason's name does not say whether the Lease is overdue.
        let overdue = Self::Standby(StandbyReason::KubeletAlive { is_lease_overdue: true });
        self.standby_reason() == other.standby_reason() && (*self == overdue) == (*other == overdue)
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
        match self {
            Self::Active => None,
            Self::Standby(reason) => Some(reason.into()),
        }
    }
}

#[cfg(test)]
mod tests;
