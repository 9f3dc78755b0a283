//! Whose turn it is on this node, by what was seen. Pure.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::signs::Signs;

/// A machine that has started so short a time ago may start its kubelet yet, however long it takes to.
pub const BOOT: Duration = Duration::from_secs(300);

/// A Lease that is seen renewed so long after the end of the process was renewed by somebody else.
const LINGERS: Duration = Duration::from_secs(15);

/// Who takes the pods of this node down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// A kubelet, or nobody.
    StandsBy(Why),
    /// This agent.
    Ours,
}

/// Why this agent stands by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// The kubelet of this node works.
    Works,
    /// It is there, and neither tells its health nor renews its Lease.
    Wedged,
    /// There is no process of one, but something that only a kubelet does.
    Unseen(&'static str),
    /// There is no kubelet, but not for long enough.
    NotYet(Duration),
    /// The machine has only just started.
    Boots(Duration),
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
pub fn judge(signs: &Signs, terms: Terms, before: &Turn, now: Instant) -> Turn {
    let Terms { take_over_after, up } = terms;
    let long = |silent: Option<Duration>| silent.is_some_and(|silent| silent >= take_over_after);
    let (process, healthz, lease) = (&signs.process, &signs.healthz, &signs.lease.sign);
    if let Some(why) = process.unknown(now) {
        return Turn::StandsBy(Why::Unknown(format!("whether a kubelet runs here: {why}")));
    }
    if process.lives(now) {
        let around = signs.around.map(|since| now.saturating_duration_since(since));
        let wedged = long(around) && long(healthz.silent(now)) && long(lease.silent(now));
        return Turn::StandsBy(if wedged { Why::Wedged } else { Why::Works });
    }
    if healthz.lives(now) {
        return Turn::StandsBy(Why::Unseen("answers where a kubelet tells its health"));
    }
    let by_somebody_else = |renewed: Instant| renewed > process.since + LINGERS && now < renewed + take_over_after;
    if signs.lease.renewed.is_some_and(by_somebody_else) || lease.lives(now) && *before == Turn::Ours {
        return Turn::StandsBy(Why::Unseen("renews the Lease of this Node"));
    }
    if *before == Turn::Ours {
        return Turn::Ours;
    }
    let signs = [
        ("whether the kubelet tells its health", healthz),
        ("whether the kubelet renews its Lease", lease),
    ];
    for (what, sign) in signs {
        if let Some(why) = sign.unknown(now) {
            return Turn::StandsBy(Why::Unknown(format!("{what}: {why}")));
        }
    }
    let left =
        [process, healthz, lease].map(|sign| take_over_after.saturating_sub(sign.silent(now).unwrap_or_default()));
    match left.into_iter().max().unwrap_or_default() {
        Duration::ZERO if up < BOOT => Turn::StandsBy(Why::Boots(BOOT.saturating_sub(up))),
        Duration::ZERO => Turn::Ours,
        left => Turn::StandsBy(Why::NotYet(left)),
    }
}

// === impl Turn ===

impl Turn {
    /// In one word, of which there are few.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::StandsBy(Why::Works) => "kubelet",
            Self::StandsBy(Why::Wedged) => "wedged",
            Self::StandsBy(Why::Unseen(_)) => "unseen",
            Self::StandsBy(Why::NotYet(_)) => "not-yet",
            Self::StandsBy(Why::Boots(_)) => "boots",
            Self::StandsBy(Why::Unknown(_)) => "unknown",
        }
    }

    /// Each of them.
    pub const KINDS: [&str; 7] = ["ours", "kubelet", "wedged", "unseen", "not-yet", "boots", "unknown"];
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.write_str("the kubelet is there"),
            Self::Wedged => f.write_str(
                "the kubelet is there, but neither tells its health nor renews its Lease: it is wedged; start it again, or \
                 stop it: pods are taken down by nobody meanwhile",
            ),
            Self::Unseen(what) => write!(
                f,
                "there is no kubelet process to be seen, but something {what}: is it in another PID namespace, or on another \
                 machine of this name?"
            ),
            Self::NotYet(left) => write!(f, "the kubelet is away; taking over in {} s if it stays so", left.as_secs()),
            Self::Boots(left) => write!(f, "the machine has only just started; a kubelet has {} s to start", left.as_secs()),
            Self::Unknown(what) => write!(f, "it is not known {what}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::signs::Look, *};

    const AFTER: Duration = Duration::from_secs(45);
    const LONG: Duration = Duration::from_secs(3600);

    /// What is seen of one sign: a sign of life, nothing for so many seconds, or nothing that counts.
    #[derive(Debug, Clone, Copy)]
    enum Seen {
        Lives,
        Silent(u64),
        Unknown,
    }
    use Seen::{Lives, Silent, Unknown};

    #[derive(Debug, Clone, Copy)]
    struct Case {
        process: Seen,
        around: u64,
        healthz: Seen,
        lease: Seen,
        up: Duration,
        ours: bool,
    }

    /// Dead for long, and nothing else.
    const DEAD: Case = Case {
        process: Silent(45),
        around: 0,
        healthz: Silent(45),
        lease: Silent(45),
        up: LONG,
        ours: false,
    };
    const OURS: Case = Case { ours: true, ..DEAD };

    fn turn(case: Case) -> Turn {
        let start = Instant::now();
        let now = start + LONG;
        let mut signs = Signs::unseen(start, LONG, LONG);
        let seen = |seen: Seen| match seen {
            Lives => (Look::Lives(String::new()), 0),
            Silent(seconds) => (Look::Silent(String::new()), seconds),
            Unknown => (Look::Unknown(String::new()), 0),
        };
        for (sign, of) in [
            (&mut signs.process, case.process),
            (&mut signs.healthz, case.healthz),
            (&mut signs.lease.sign, case.lease),
        ] {
            let (look, seconds) = seen(of);
            let first = now - Duration::from_secs(seconds);
            sign.see(look.clone(), &(first..first));
            sign.see(look, &(now..now));
        }
        if let Lives = case.lease {
            signs.lease.renewed = Some(now);
        }
        signs.around = (case.around > 0).then(|| now - Duration::from_secs(case.around));
        let before = if case.ours {
            Turn::Ours
        } else {
            Turn::StandsBy(Why::Works)
        };
        let terms = Terms {
            take_over_after: AFTER,
            up: case.up,
        };
        judge(&signs, terms, &before, now)
    }

    #[tokio::test(start_paused = true)]
    async fn whose_turn_it_is() {
        let by = Turn::StandsBy;
        let unseen_lease = by(Why::Unseen("renews the Lease of this Node"));
        let unseen_health = by(Why::Unseen("answers where a kubelet tells its health"));
        let not_yet = |seconds| by(Why::NotYet(Duration::from_secs(seconds)));
        let unknown = |what: &str| by(Why::Unknown(format!("{what}: ")));
        let running = Case {
            process: Lives,
            around: 900,
            ..DEAD
        };
        let cases = [
            ("dead in every way, for the whole threshold", DEAD, Turn::Ours),
            // The kubelet is there.
            (
                "all is well",
                Case {
                    healthz: Lives,
                    lease: Lives,
                    ..running
                },
                by(Why::Works),
            ),
            (
                "between two renewals",
                Case {
                    healthz: Lives,
                    lease: Silent(9),
                    ..running
                },
                by(Why::Works),
            ),
            (
                "an outage of the API server",
                Case {
                    healthz: Lives,
                    lease: Unknown,
                    ..running
                },
                by(Why::Works),
            ),
            (
                "unhealthy, and renewing",
                Case {
                    lease: Silent(9),
                    ..running
                },
                by(Why::Works),
            ),
            (
                "healthy, and not renewing",
                Case {
                    healthz: Lives,
                    ..running
                },
                by(Why::Works),
            ),
            ("wedged", running, by(Why::Wedged)),
            (
                "wedged, in an outage: not known",
                Case {
                    lease: Unknown,
                    ..running
                },
                by(Why::Works),
            ),
            (
                "started again a moment ago, after a long time",
                Case { around: 20, ..running },
                by(Why::Works),
            ),
            (
                "came back while it was our turn",
                Case {
                    ours: true,
                    around: 1,
                    ..running
                },
                by(Why::Works),
            ),
            // It is away.
            (
                "restart of the kubelet, 30 s",
                Case {
                    process: Silent(30),
                    healthz: Silent(30),
                    ..DEAD
                },
                not_yet(15),
            ),
            (
                "the process has gone last",
                Case {
                    process: Silent(44),
                    ..DEAD
                },
                not_yet(1),
            ),
            (
                "its health was told until a moment ago",
                Case {
                    healthz: Silent(3),
                    ..DEAD
                },
                not_yet(42),
            ),
            (
                "its Lease was renewed until a moment ago",
                Case {
                    lease: Silent(40),
                    ..DEAD
                },
                not_yet(5),
            ),
            (
                "its last renewal is seen after its end",
                Case {
                    process: Silent(10),
                    lease: Lives,
                    ..DEAD
                },
                not_yet(45),
            ),
            // Something else is wrong.
            (
                "renewed by nobody to be seen",
                Case { lease: Lives, ..DEAD },
                unseen_lease.clone(),
            ),
            (
                "health told by nobody to be seen",
                Case { healthz: Lives, ..DEAD },
                unseen_health.clone(),
            ),
            (
                "outage of the API server, the kubelet dead",
                Case { lease: Unknown, ..DEAD },
                unknown("whether the kubelet renews its Lease"),
            ),
            (
                "healthz not seen yet",
                Case {
                    healthz: Unknown,
                    ..DEAD
                },
                unknown("whether the kubelet tells its health"),
            ),
            (
                "processes cannot be seen",
                Case {
                    process: Unknown,
                    ..DEAD
                },
                unknown("whether a kubelet runs here"),
            ),
            // The machine, or the kubelet, starts.
            (
                "boot",
                Case {
                    up: Duration::from_secs(100),
                    ..DEAD
                },
                by(Why::Boots(Duration::from_secs(200))),
            ),
            (
                "boot, not seen for long",
                Case {
                    up: Duration::from_secs(20),
                    process: Silent(10),
                    ..DEAD
                },
                not_yet(35),
            ),
            ("boot is over", Case { up: BOOT, ..DEAD }, Turn::Ours),
            // It is ours, and stays so.
            ("outage while it is ours", Case { lease: Unknown, ..OURS }, Turn::Ours),
            (
                "healthz cannot be asked while it is ours",
                Case {
                    healthz: Unknown,
                    ..OURS
                },
                Turn::Ours,
            ),
            (
                "processes cannot be seen while it is ours",
                Case {
                    process: Unknown,
                    ..OURS
                },
                unknown("whether a kubelet runs here"),
            ),
            (
                "somebody renews while it is ours",
                Case { lease: Lives, ..OURS },
                unseen_lease,
            ),
            (
                "somebody answers while it is ours",
                Case { healthz: Lives, ..OURS },
                unseen_health,
            ),
        ];
        for (what, case, expected) in cases {
            assert_eq!(turn(case), expected, "{what}: {case:?}");
        }
    }
}
