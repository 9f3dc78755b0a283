//! What a turn stands on, and how long it does if nothing more is heard.

use tokio::time::Instant;

use super::lease::{DEADLINE, DURATION};

/// A yes that ends by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leave {
    pub since: Instant,
    /// No end in a dry run, and for what is not asked.
    pub until: Option<Instant>,
}

/// All that a turn needs; each a yes, or why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ground {
    /// The Lease is this agent's.
    pub lease: Result<Leave, String>,
    /// The Lease does not say that its holder stands by: for certain, and so nobody may take it at once.
    pub firm: bool,
    /// kube-controller-manager does not work.
    pub alone: Result<Leave, String>,
    /// When that was last so, if it is not.
    pub rests: Instant,
}

// === impl Leave ===

impl Leave {
    pub fn for_ever(since: Instant) -> Self {
        Self { since, until: None }
    }

    pub fn holds(self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

// === impl Ground ===

impl Ground {
    /// Whether it carries now; by the clock alone.
    pub fn judge(&self, now: Instant) -> Result<Leave, &str> {
        let lease = self.lease.as_ref().map_err(String::as_str)?;
        if !lease.holds(now) {
            return Err("its Lease could not be renewed in time");
        }
        if !self.firm {
            // Why it stands by, if it still does.
            self.alone.as_ref().map_err(String::as_str)?;
            return Err("its Lease says yet that it stands by");
        }
        let alone = self.alone.as_ref().map_err(String::as_str)?;
        if !alone.holds(now) {
            return Err("what was known of kube-controller-manager is too old");
        }
        Ok(Leave {
            since: lease.since.max(alone.since),
            until: [lease.until, alone.until].into_iter().flatten().min(),
        })
    }

    /// What is known of kube-controller-manager now.
    pub fn set_alone(&mut self, alone: Result<Leave, String>, now: Instant) {
        if let Ok(before) = &self.alone {
            self.rests = before.until.map_or(now, |until| until.min(now));
        }
        self.alone = alone;
    }

    /// Whether the Lease is to say that its holder stands by. Not before what was sent in a turn has had the time to
    /// arrive that it has after any other turn, too.
    pub fn stands_by(&self, now: Instant) -> bool {
        let since = match &self.alone {
            Ok(leave) if leave.holds(now) => return false,
            Ok(leave) => leave.until.unwrap_or(now),
            Err(_) => self.rests,
        };
        !self.firm || now >= since + (DURATION - DEADLINE)
    }
}

/// The same leave, or a new one if there was none any more.
pub(super) fn extended(before: &Result<Leave, String>, until: Option<Instant>, now: Instant) -> Leave {
    let since = before.as_ref().ok().filter(|leave| leave.holds(now));
    Leave {
        since: since.map_or(now, |leave| leave.since),
        until,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_carries_as_long_as_both_do_and_begins_with_the_later_one() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let leave = |since, until| {
            Ok(Leave {
                since: at(since),
                until: Some(at(until)),
            })
        };
        let no = |why: &str| Err(why.to_owned());
        let for_ever = Ok(Leave::for_ever(at(0)));
        for (lease, alone, now, expected) in [
            (leave(1, 10), leave(5, 20), 9, Ok((at(5), Some(at(10))))),
            (leave(1, 10), leave(5, 8), 7, Ok((at(5), Some(at(8))))),
            (leave(1, 10), for_ever.clone(), 7, Ok((at(1), Some(at(10))))),
            (for_ever.clone(), for_ever, 900, Ok((at(0), None))),
            (
                leave(1, 10),
                leave(5, 20),
                10,
                Err("its Lease could not be renewed in time"),
            ),
            (
                leave(1, 10),
                leave(5, 8),
                8,
                Err("what was known of kube-controller-manager is too old"),
            ),
            (no("another's"), no("not asked"), 7, Err("another's")),
            (leave(1, 10), no("not asked"), 7, Err("not asked")),
        ] {
            let ground = Ground {
                lease,
                firm: true,
                alone,
                rests: start,
            };
            let judged = ground.judge(at(now)).map(|leave| (leave.since, leave.until));
            assert_eq!(judged, expected, "{ground:?} at {now}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn its_lease_says_that_it_stands_by_only_when_what_it_sent_has_arrived_and_it_works_only_when_it_says_so_no_more()
     {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let leave = |until| {
            Ok(Leave {
                since: start,
                until: Some(at(until)),
            })
        };
        let mut ground = Ground {
            lease: leave(900),
            firm: false,
            alone: Err("not asked".to_owned()),
            rests: start,
        };
        assert!(ground.stands_by(start));
        ground.set_alone(leave(20), at(1));
        assert!(!ground.stands_by(at(1)) && ground.judge(at(1)).is_err());
        ground.firm = true;
        assert!(
            !ground.stands_by(at(24)) && ground.stands_by(at(25)),
            "by the clock alone"
        );
        assert!(ground.judge(at(1)).is_ok());
        ground.set_alone(Err("another works".to_owned()), at(10));
        assert!(!ground.stands_by(at(14)) && ground.stands_by(at(15)));
        ground.set_alone(Err("another works".to_owned()), at(14));
        assert!(ground.stands_by(at(15)));
        ground.firm = false;
        assert_eq!(ground.judge(at(15)), Err("another works"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_leave_that_had_ended_begins_anew() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let before = Ok(Leave {
            since: start,
            until: Some(at(10)),
        });
        assert_eq!(extended(&before, Some(at(12)), at(2)).since, start);
        assert_eq!(extended(&before, Some(at(22)), at(12)).since, at(12));
        assert_eq!(extended(&Err("no".to_owned()), None, at(3)).since, at(3));
    }
}
