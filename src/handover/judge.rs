//! Whose turn it is on this node, by what was seen. Pure.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::probes::Probes;
use crate::{clock::Mark, journal::turn::OwnTurn};

/// A machine that has started so short a time ago may start its kubelet yet, however long it takes to.
pub const BOOT: Duration = Duration::from_secs(300);

/// A Lease that is seen renewed so long after the end of the process was renewed by somebody else.
const LINGERS: Duration = Duration::from_secs(15);

/// A kubelet that was started while no agent was there to be asked for the node is seen within this, however short a time
/// after its start an agent starts, too.
const SETTLES: Duration = Duration::from_secs(2);

/// A kubelet that is started again tells its health after a while; one that so many times has not gets no further.
const TRIES: u32 = 3;

/// Who takes the pods of this node down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// A kubelet, or nobody.
    Standby(Why),
    /// This agent.
    Active,
}

/// Why this agent stands by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The kubelet of this node works.
    Works,
    /// It is there, and neither tells its health nor renews its Lease.
    Wedged,
    /// The same of one that is started again and again, whether it is there just now or not.
    InVain,
    /// There is no process of one, but something that only a kubelet does.
    Unseen(&'static str),
    /// There is no kubelet, but not for long enough.
    NotYet(Duration),
    /// The machine has only just started.
    Boots(Duration),
    /// It was an agent's turn before this one was started, and nothing is known yet of what was meanwhile.
    Resumes,
    /// It cannot be told.
    Unknown(String),
}

/// The operator's word on it.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// `--take-over-after`: how long a kubelet must be away, in every way.
    pub take_over_after: Duration,
    /// How long this machine has been up.
    pub up: Duration,
}

/// Whose turn it is. Once it is ours, only a sign of life takes it from us: that an API server cannot be reached any more is
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

/// Whether a kubelet that is wedged may be stopped: only one and the same process that was there all the time, and whose health
/// was told where it is asked for, so that it is not told somewhere else.
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

/// The turn of an agent that has only just started: where it was that of the agent before it in this boot, and that agent has
/// not been away for longer than a kubelet is waited for, nothing but a sign of life since takes it away.
pub fn first(had: Option<&OwnTurn>, take_over_after: Duration, now: &Mark) -> Role {
    let away = had.and_then(|had| had.at.elapsed(now));
    Role::Standby(if away.is_some_and(|away| away <= take_over_after) {
        Why::Resumes
    } else {
        Why::Unknown("whether a kubelet runs here: it was not looked at yet".to_owned())
    })
}

// === impl Turn ===

impl Role {
    /// Nobody takes pods down until somebody mends the kubelet.
    pub fn is_wedged(&self) -> bool {
        self.kind() == "wedged"
    }

    /// Whether it is for the same reason, however long that lasts yet or however it is worded just now.
    pub fn is_as(&self, other: &Self) -> bool {
        let reason = |turn: &Self| match turn {
            Self::Standby(Why::Unseen(what)) => Some(*what),
            Self::Standby(Why::InVain) => Some("in vain"),
            _ => None,
        };
        self.kind() == other.kind() && reason(self) == reason(other)
    }

    /// In one word, of which there are few.
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

    /// Each of them.
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
