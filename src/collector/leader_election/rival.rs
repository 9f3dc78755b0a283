//! Whether a collector works that is not an agent's, such as kube-controller-manager's: two at once would be one too many.

use std::time::Duration;

use tokio::time::Instant;

/// A Lease that does not change for so long is nobody's: three times what its holder has.
pub const IDLE: Duration = Duration::from_secs(45);
/// A collector deletes a canary within so long.
pub const SURVIVES: Duration = Duration::from_secs(30);
/// How often a canary is laid.
pub const AGAIN: Duration = Duration::from_secs(60);
/// How often all this is looked at.
pub const LOOK_EVERY: Duration = Duration::from_secs(2);
/// What was seen counts for so long, whatever fails afterwards: one answer that is lost should cost no turn.
pub const FRESH: Duration = Duration::from_secs(15);

/// All that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The controller manager's Lease, if it was ever looked at.
    pub manager: Option<Manager>,
    /// The canary.
    pub canary: Bird,
}

/// What the last look at the controller manager's Lease has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manager {
    /// When that look was sent.
    pub looked: Instant,
    /// What it has shown.
    pub lease: ManagerLease,
}

/// The controller manager's Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagerLease {
    /// There is none.
    Absent,
    /// It has been the same since then.
    Same {
        /// When it was first seen so.
        since: Instant,
        /// It was seen otherwise before.
        changed: bool,
    },
}

/// The canary that was last laid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bird {
    /// None since the Lease was last in use.
    None,
    /// It is there.
    Lives {
        /// When it was there for certain.
        laid: Instant,
        /// When the last look that showed it was sent.
        looked: Instant,
        /// One before it survived, and it is watched since then.
        follows: bool,
    },
    /// It went, and not by this agent's hand.
    Gone {
        /// When that was seen.
        seen: Instant,
    },
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opinion {
    /// Until when this agent's collector may work if nothing more is heard, or why not.
    pub free: Result<Instant, Why>,
    /// What becomes of the canary.
    pub wish: Wish,
}

/// Why to stand by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The controller manager's Lease was not looked at lately.
    ManagerUnknown,
    /// It changes.
    ManagerWorks,
    /// It has not been watched for long enough.
    ManagerAsked,
    /// No canary is laid.
    NoCanary,
    /// The canary was not looked at lately.
    CanaryUnknown,
    /// The canary has not been there for long enough.
    CanaryAsked,
    /// The canary went.
    CanaryGone,
}

/// What becomes of the canary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    Keep,
    /// It proves nothing any more.
    Remove,
    /// The next one is due.
    Lay,
}

// === impl Why ===

impl Why {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::ManagerUnknown => "whether kube-controller-manager works is unknown: its Lease cannot be read",
            Self::ManagerWorks => "kube-controller-manager works: it renews its Lease",
            Self::ManagerAsked => "whether kube-controller-manager renews its Lease is being watched, for 45 s",
            Self::NoCanary => "whether some collector works is unknown: no canary is laid",
            Self::CanaryUnknown => "whether some collector works is unknown: the canary cannot be read",
            Self::CanaryAsked => "whether some collector works is being asked: a canary has to survive 30 s",
            Self::CanaryGone => "some collector works: it deleted a canary",
        }
    }
}

/// What follows from what is known.
pub fn opinion(facts: &Facts, now: Instant) -> Opinion {
    let age = |of: Instant| now.saturating_duration_since(of);
    let stand_by = |why, wish| Opinion { free: Err(why), wish };
    let Some(manager) = facts.manager.filter(|manager| age(manager.looked) < FRESH) else {
        return stand_by(Why::ManagerUnknown, Wish::Keep);
    };
    match manager.lease {
        ManagerLease::Same { since, changed } if age(since) < IDLE => {
            let why = if changed { Why::ManagerWorks } else { Why::ManagerAsked };
            return stand_by(why, Wish::Remove);
        }
        ManagerLease::Absent | ManagerLease::Same { .. } => {}
    }
    match facts.canary {
        Bird::None => stand_by(Why::NoCanary, Wish::Lay),
        Bird::Gone { seen } => {
            let again = age(seen) >= AGAIN;
            stand_by(Why::CanaryGone, if again { Wish::Lay } else { Wish::Keep })
        }
        Bird::Lives { laid, looked, follows } => {
            let survives = follows || looked.saturating_duration_since(laid) >= SURVIVES;
            // Only one that survived may be followed by the next without beginning anew.
            let wish = if survives && age(laid) >= AGAIN {
                Wish::Lay
            } else {
                Wish::Keep
            };
            let free = match (survives, age(looked) < FRESH) {
                (true, true) => Ok(manager.looked.min(looked) + FRESH),
                (false, true) => Err(Why::CanaryAsked),
                (true | false, false) => Err(Why::CanaryUnknown),
            };
            Opinion { free, wish }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_follows() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let manager = |looked, lease| {
            Some(Manager {
                looked: at(looked),
                lease,
            })
        };
        let same = |since, changed| ManagerLease::Same {
            since: at(since),
            changed,
        };
        let lives = |laid, looked, follows| Bird::Lives {
            laid: at(laid),
            looked: at(looked),
            follows,
        };
        let gone = |seen| Bird::Gone { seen: at(seen) };
        let absent = ManagerLease::Absent;
        for (manager, canary, expected, wish) in [
            (None, Bird::None, Err(Why::ManagerUnknown), Wish::Keep),
            (
                manager(199, same(198, true)),
                Bird::None,
                Err(Why::ManagerWorks),
                Wish::Remove,
            ),
            (
                manager(199, same(156, false)),
                Bird::None,
                Err(Why::ManagerAsked),
                Wish::Remove,
            ),
            (manager(199, same(155, true)), Bird::None, Err(Why::NoCanary), Wish::Lay),
            (
                manager(199, same(155, false)),
                Bird::None,
                Err(Why::NoCanary),
                Wish::Lay,
            ),
            (manager(199, absent), Bird::None, Err(Why::NoCanary), Wish::Lay),
            // A look that is too old shows neither that it rests nor that it works.
            (
                manager(185, absent),
                lives(150, 199, true),
                Err(Why::ManagerUnknown),
                Wish::Keep,
            ),
            (manager(186, absent), lives(150, 199, true), Ok(at(201)), Wish::Keep),
            // It survives from being there for certain to the sending of a look that shows it.
            (
                manager(199, absent),
                lives(170, 199, false),
                Err(Why::CanaryAsked),
                Wish::Keep,
            ),
            (manager(199, absent), lives(169, 199, false), Ok(at(214)), Wish::Keep),
            (manager(199, absent), lives(199, 198, true), Ok(at(213)), Wish::Keep),
            (
                manager(199, absent),
                lives(150, 185, true),
                Err(Why::CanaryUnknown),
                Wish::Keep,
            ),
            (manager(199, absent), lives(140, 199, true), Ok(at(214)), Wish::Lay),
            (
                manager(199, absent),
                lives(100, 110, false),
                Err(Why::CanaryUnknown),
                Wish::Keep,
            ),
            (
                manager(199, absent),
                lives(100, 180, false),
                Err(Why::CanaryUnknown),
                Wish::Lay,
            ),
            (
                manager(199, same(190, true)),
                lives(150, 199, true),
                Err(Why::ManagerWorks),
                Wish::Remove,
            ),
            (manager(199, absent), gone(141), Err(Why::CanaryGone), Wish::Keep),
            (manager(199, absent), gone(140), Err(Why::CanaryGone), Wish::Lay),
        ] {
            let facts = Facts { manager, canary };
            let opinion = opinion(&facts, at(200));
            assert_eq!((opinion.free, opinion.wish), (expected, wish), "{facts:?}");
        }
    }
}
