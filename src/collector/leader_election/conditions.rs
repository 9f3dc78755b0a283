//! Conditions of the active role, and when they expire.

use tokio::time::Instant;

use super::lease::{DURATION, RENEW_DEADLINE};

/// Period in which a condition is met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub since: Instant,
    /// `None`: unlimited, since the mode does not need the condition.
    pub until: Option<Instant>,
}

/// Conditions of the active role; an error is the reason why one is not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conditions {
    /// This agent holds the Lease.
    pub lease: Result<Validity, String>,
    /// The Lease certainly does not show its holder as standby, so that no agent may take it at once.
    pub lease_shows_active: bool,
    /// kube-controller-manager does not work.
    pub manager_idle: Result<Validity, String>,
    /// When `manager_idle` was last met, if it is not.
    pub manager_idle_until: Instant,
}

// === impl Validity ===

impl Validity {
    pub fn unlimited(since: Instant) -> Self {
        Self { since, until: None }
    }

    pub fn is_valid(self, now: Instant) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

// === impl Conditions ===

impl Conditions {
    /// When the active role began and expires, or why it may not be active now.
    pub fn check(&self, now: Instant) -> Result<Validity, &str> {
        let lease = self.lease.as_ref().map_err(String::as_str)?;
        if !lease.is_valid(now) {
            return Err("its Lease could not be renewed in time");
        }
        if !self.lease_shows_active {
            // If it is still standby, the reason is this one.
            self.manager_idle.as_ref().map_err(String::as_str)?;
            return Err("its Lease still shows it as standby");
        }
        let manager_idle = self.manager_idle.as_ref().map_err(String::as_str)?;
        if !manager_idle.is_valid(now) {
            return Err("the last read of kube-controller-manager's Lease is too old");
        }
        Ok(Validity {
            since: lease.since.max(manager_idle.since),
            until: [lease.until, manager_idle.until].into_iter().flatten().min(),
        })
    }

    pub fn set_manager_idle(&mut self, manager_idle: Result<Validity, String>, now: Instant) {
        if let Ok(before) = &self.manager_idle {
            self.manager_idle_until = before.until.map_or(now, |until| until.min(now));
        }
        self.manager_idle = manager_idle;
    }

    /// Whether the Lease has to show its holder as standby. Requests sent in the active role first get the time to arrive
    /// that they have before any other takeover.
    pub fn must_show_standby(&self, now: Instant) -> bool {
        let since = match &self.manager_idle {
            Ok(validity) if validity.is_valid(now) => return false,
            Ok(validity) => validity.until.unwrap_or(now),
            Err(_) => self.manager_idle_until,
        };
        !self.lease_shows_active || now >= since + (DURATION - RENEW_DEADLINE)
    }
}

/// The same period with a later end, or a new one if the last has expired.
pub(super) fn extended(before: &Result<Validity, String>, until: Option<Instant>, now: Instant) -> Validity {
    let since = before.as_ref().ok().filter(|validity| validity.is_valid(now));
    Validity {
        since: since.map_or(now, |validity| validity.since),
        until,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn active_role_lasts_while_both_conditions_do_and_begins_with_the_later_one() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let validity = |since, until| {
            Ok(Validity {
                since: at(since),
                until: Some(at(until)),
            })
        };
        let no = |why: &str| Err(why.to_owned());
        let unlimited = Ok(Validity::unlimited(at(0)));
        for (lease, manager_idle, now, expected) in [
            (validity(1, 10), validity(5, 20), 9, Ok((at(5), Some(at(10))))),
            (validity(1, 10), validity(5, 8), 7, Ok((at(5), Some(at(8))))),
            (validity(1, 10), unlimited.clone(), 7, Ok((at(1), Some(at(10))))),
            (unlimited.clone(), unlimited, 900, Ok((at(0), None))),
            (
                validity(1, 10),
                validity(5, 20),
                10,
                Err("its Lease could not be renewed in time"),
            ),
            (
                validity(1, 10),
                validity(5, 8),
                8,
                Err("the last read of kube-controller-manager's Lease is too old"),
            ),
            (no("another's"), no("not asked"), 7, Err("another's")),
            (validity(1, 10), no("not asked"), 7, Err("not asked")),
        ] {
            let conditions = Conditions {
                lease,
                lease_shows_active: true,
                manager_idle,
                manager_idle_until: start,
            };
            let judged = conditions
                .check(at(now))
                .map(|validity| (validity.since, validity.until));
            assert_eq!(judged, expected, "{conditions:?} at {now}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lease_shows_standby_after_sent_requests_had_time_to_arrive_and_active_before_it_works() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let validity = |until| {
            Ok(Validity {
                since: start,
                until: Some(at(until)),
            })
        };
        let mut conditions = Conditions {
            lease: validity(900),
            lease_shows_active: false,
            manager_idle: Err("not asked".to_owned()),
            manager_idle_until: start,
        };
        assert!(conditions.must_show_standby(start));
        conditions.set_manager_idle(validity(20), at(1));
        assert!(!conditions.must_show_standby(at(1)) && conditions.check(at(1)).is_err());
        conditions.lease_shows_active = true;
        assert!(
            !conditions.must_show_standby(at(24)) && conditions.must_show_standby(at(25)),
            "by the clock alone"
        );
        assert!(conditions.check(at(1)).is_ok());
        conditions.set_manager_idle(Err("another works".to_owned()), at(10));
        assert!(!conditions.must_show_standby(at(14)) && conditions.must_show_standby(at(15)));
        conditions.set_manager_idle(Err("another works".to_owned()), at(14));
        assert!(conditions.must_show_standby(at(15)));
        conditions.lease_shows_active = false;
        assert_eq!(conditions.check(at(15)), Err("another works"));
    }

    #[tokio::test(start_paused = true)]
    async fn expired_condition_restarts() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let before = Ok(Validity {
            since: start,
            until: Some(at(10)),
        });
        assert_eq!(extended(&before, Some(at(12)), at(2)).since, start);
        assert_eq!(extended(&before, Some(at(22)), at(12)).since, at(12));
        assert_eq!(extended(&Err("no".to_owned()), None, at(3)).since, at(3));
    }
}
