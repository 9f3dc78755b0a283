//! The role of this agent, active or standby, by the probes of the kubelet. Pure.

use std::{fmt, time::Duration};

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
        return Role::Standby(StandbyReason::Unseen("answers where a kubelet tells its health"));
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
        ("whether the kubelet tells its health", healthz),
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
        left => Role::Standby(StandbyReason::NotYet(left)),
    }
}

/// Whether an unresponsive kubelet may be stopped: only if the same process was present all the time, and if healthz has answered
/// before, so that its address is known to be right.
///
/// # Errors
/// Why it may not.
pub fn may_fence(probes: &Probes, take_over_after: Duration, now: Instant) -> Result<(), &'static str> {
    if probes.same_process_for(now).is_none_or(|time| time < take_over_after) {
        return Err("it is started again and again, and no process stays for long: mend it, or stop it by hand");
    }
    if !probes.healthz.was_alive {
        return Err(
            "its health was never told where --kubelet-config says since it is seen here, so that it may be told elsewhere: stop \
             it by hand",
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
            StandbyReason::Unknown("whether a kubelet runs here: it was not looked at yet".to_owned())
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
        self.kind() == other.kind() && reason(self) == reason(other)
    }

    /// Its label in `status` and metrics: one of [`Self::KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Standby(StandbyReason::Working) => "kubelet-alive",
            Self::Standby(StandbyReason::Unresponsive | StandbyReason::Restarting) => "kubelet-unresponsive",
            Self::Standby(StandbyReason::Unseen(_)) => "kubelet-elsewhere",
            Self::Standby(StandbyReason::NotYet(_)) => "takeover-pending",
            Self::Standby(StandbyReason::Booting(_)) => "node-booting",
            Self::Standby(StandbyReason::Resuming) => "agent-restarted",
            Self::Standby(StandbyReason::Unknown(_)) => "kubelet-unknown",
        }
    }

    /// All values of [`Self::kind`].
    pub const KINDS: [&str; 8] = [
        "active",
        "kubelet-alive",
        "kubelet-unresponsive",
        "kubelet-elsewhere",
        "takeover-pending",
        "node-booting",
        "agent-restarted",
        "kubelet-unknown",
    ];
}

impl fmt::Display for StandbyReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Working => f.write_str("the kubelet is there"),
            Self::Unresponsive => f.write_str(
                "the kubelet is there, but neither tells its health nor renews its Lease: it is wedged; start it again, or \
                 stop it: pods are taken down by nobody meanwhile",
            ),
            Self::Restarting => f.write_str(
                "the kubelet is started again and again, and never comes to tell its health or to renew its Lease: mend it, or \
                 stop its unit, such as with systemctl stop kubelet, for this agent to take its pods down; nobody does \
                 meanwhile",
            ),
            Self::Unseen(what) => write!(
                f,
                "there is no kubelet process to be seen, but something {what}: is it in another PID namespace, or on another \
                 machine of this name?"
            ),
            Self::NotYet(left) => write!(f, "the kubelet is away; taking over in {} s if it stays so", left.as_secs()),
            Self::Booting(left) => write!(f, "the machine has only just started; a kubelet has {} s to start", left.as_secs()),
            Self::Resuming => f.write_str(
                "this agent had taken over before it was started again, and goes on as soon as it is seen that no kubelet was \
                 there meanwhile",
            ),
            Self::Unknown(what) => write!(f, "it is not known {what}"),
        }
    }
}

#[cfg(test)]
mod tests;
