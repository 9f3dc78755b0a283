//! The role of this agent, active or standby, by the probes of the kubelet. Pure.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::probes::Probes;
use crate::{clock::Mark, journal::turn::OwnTurn};

/// This long after the boot the node may still start its kubelet.
pub const BOOT: Duration = Duration::from_secs(300);

/// A renewal that is observed this long after the kubelet process has exited comes from another kubelet.
const LINGERS: Duration = Duration::from_secs(15);

/// A kubelet that started while no agent ran is seen within this time after the agent's start.
const SETTLES: Duration = Duration::from_secs(2);

/// A kubelet that has restarted this often without an answer at healthz does not recover by itself.
const TRIES: u32 = 3;

/// Whether this agent terminates the pods of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// A kubelet does, or nothing does.
    Standby(Why),
    /// This agent does.
    Active,
}

/// Why the agent is on standby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The kubelet of this node works.
    Works,
    /// The kubelet process exists, but healthz does not answer and the Lease is not renewed.
    Wedged,
    /// The same with a kubelet that restarts again and again.
    InVain,
    /// There is no kubelet process, but healthz answers or the Lease is renewed.
    Unseen(&'static str),
    /// The kubelet is down, but not long enough.
    NotYet(Duration),
    /// The node has just booted.
    Boots(Duration),
    /// The agent was active before its restart, and no probe has yet shown whether a kubelet ran meanwhile.
    Resumes,
    /// A probe fails.
    Unknown(String),
}

/// The thresholds.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// `--take-over-after`: how long all probes must be Down.
    pub take_over_after: Duration,
    /// How long the node is up.
    pub up: Duration,
}

/// The role by these probes. An active agent goes to standby only if a probe shows a kubelet; an unreachable API server shows
/// none.
pub fn judge(probes: &Probes, terms: Terms, before: &Role, now: Instant) -> Role {
    let Terms { take_over_after, up } = terms;
    let long = |down_for: Option<Duration>| down_for.is_some_and(|down_for| down_for >= take_over_after);
    let (process, healthz, lease) = (&probes.process, &probes.healthz, &probes.lease.probe);
    if let Some(why) = process.unknown(now) {
        return Role::Standby(Why::Unknown(format!("whether a kubelet runs here: {why}")));
    }
    let around = probes.around.map(|since| now.saturating_duration_since(since));
    let does_nothing = long(around) && long(healthz.down_for(now)) && long(lease.down_for(now));
    let in_vain = does_nothing && probes.tries >= TRIES;
    if process.is_alive(now) {
        // One that was started again a moment ago may need some time yet.
        return Role::Standby(match does_nothing && long(probes.one_process(now)) {
            true => Why::Wedged,
            false if in_vain => Why::InVain,
            false => Why::Works,
        });
    }
    // What answered before the process was seen to be gone was that process.
    if healthz.is_alive(now) && !healthz.is_older_than(process.since) {
        return Role::Standby(Why::Unseen("answers where a kubelet tells its health"));
    }
    let by_somebody_else = |renewed: Instant| renewed > process.since + LINGERS && now < renewed + take_over_after;
    if probes.lease.renewed.is_some_and(by_somebody_else) || lease.is_alive(now) && *before == Role::Active {
        return Role::Standby(Why::Unseen("renews the Lease of this Node"));
    }
    if *before == Role::Active {
        return Role::Active;
    }
    if *before == Role::Standby(Why::Resumes) && !lease.is_alive(now) {
        let is_settled = process.down_for(now) >= Some(SETTLES) && probes.all_are_down(now);
        return if is_settled { Role::Active } else { before.clone() };
    }
    // The next one is on its way.
    if in_vain {
        return Role::Standby(Why::InVain);
    }
    let asked = [
        ("whether the kubelet tells its health", healthz),
        ("whether the kubelet renews its Lease", lease),
    ];
    for (what, probe) in asked {
        if let Some(why) = probe.unknown(now) {
            return Role::Standby(Why::Unknown(format!("{what}: {why}")));
        }
    }
    let left =
        [process, healthz, lease].map(|probe| take_over_after.saturating_sub(probe.down_for(now).unwrap_or_default()));
    match left.into_iter().max().unwrap_or_default() {
        Duration::ZERO if up < BOOT => Role::Standby(Why::Boots(BOOT.saturating_sub(up))),
        Duration::ZERO => Role::Active,
        left => Role::Standby(Why::NotYet(left)),
    }
}

/// Whether an unresponsive kubelet may be stopped: only if the same process was present all the time, and if healthz has answered
/// before, so that its address is known to be right.
///
/// # Errors
/// Why it may not.
pub fn may_fence(probes: &Probes, take_over_after: Duration, now: Instant) -> Result<(), &'static str> {
    if probes.one_process(now).is_none_or(|time| time < take_over_after) {
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
pub fn first(had: Option<&OwnTurn>, take_over_after: Duration, now: &Mark) -> Role {
    let away = had.and_then(|had| had.at.elapsed(now));
    Role::Standby(if away.is_some_and(|away| away <= take_over_after) {
        Why::Resumes
    } else {
        Why::Unknown("whether a kubelet runs here: it was not looked at yet".to_owned())
    })
}

// === impl Role ===

impl Role {
    /// Whether pods are terminated neither by the kubelet nor by this agent until the kubelet is repaired.
    pub fn is_wedged(&self) -> bool {
        self.kind() == "wedged"
    }

    /// Whether both have the same reason, whatever its duration and words.
    pub fn is_as(&self, other: &Self) -> bool {
        let reason = |turn: &Self| match turn {
            Self::Standby(Why::Unseen(what)) => Some(*what),
            Self::Standby(Why::InVain) => Some("in vain"),
            _ => None,
        };
        self.kind() == other.kind() && reason(self) == reason(other)
    }

    /// In one of [`Self::KINDS`].
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Active => "ours",
            Self::Standby(Why::Works) => "kubelet",
            Self::Standby(Why::Wedged | Why::InVain) => "wedged",
            Self::Standby(Why::Unseen(_)) => "unseen",
            Self::Standby(Why::NotYet(_)) => "not-yet",
            Self::Standby(Why::Boots(_)) => "boots",
            Self::Standby(Why::Resumes) => "resumes",
            Self::Standby(Why::Unknown(_)) => "unknown",
        }
    }

    /// All words of [`Self::kind`].
    pub const KINDS: [&str; 8] = [
        "ours", "kubelet", "wedged", "unseen", "not-yet", "boots", "resumes", "unknown",
    ];
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.write_str("the kubelet is there"),
            Self::Wedged => f.write_str(
                "the kubelet is there, but neither tells its health nor renews its Lease: it is wedged; start it again, or \
                 stop it: pods are taken down by nobody meanwhile",
            ),
            Self::InVain => f.write_str(
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
            Self::Boots(left) => write!(f, "the machine has only just started; a kubelet has {} s to start", left.as_secs()),
            Self::Resumes => f.write_str(
                "this agent had taken over before it was started again, and goes on as soon as it is seen that no kubelet was \
                 there meanwhile",
            ),
            Self::Unknown(what) => write!(f, "it is not known {what}"),
        }
    }
}

#[cfg(test)]
mod tests;
