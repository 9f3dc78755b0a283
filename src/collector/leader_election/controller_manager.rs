//! Detects by its Lease whether kube-controller-manager works.

use std::time::Duration;

use jiff::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    lease::{Freshness, Leases, ObservedLease, holder},
    state::Conditions,
};

const LEASE: &str = "kube-controller-manager";
/// Without a change for so long, three times its duration, the Lease is not renewed.
const IDLE: Duration = Duration::from_secs(45);
/// Interval of reads while it is idle.
const READ_INTERVAL: Duration = Duration::from_secs(2);
/// How long an answer counts: one lost answer must not end the active role.
const FRESH: Duration = Duration::from_secs(15);

/// The last answer.
#[derive(Debug)]
struct Answer {
    requested_at: Instant,
    /// A cache may show an old state for any time.
    freshness: Freshness,
    observed: ObservedLease,
}

/// Watches the Lease and keeps `conditions` up to date. Never returns. Agents that wait read the server's cache; a Lease that seems
/// idle is read itself.
pub(super) async fn monitor(leases: Leases<'_>, conditions: &watch::Sender<Conditions>) {
    let mut last: Option<Answer> = None;
    loop {
        let requested_at = Instant::now();
        let until_idle = |last: &Option<Answer>, now: Instant| {
            let idle_from = last.as_ref().map_or(now, |last| last.observed.since) + IDLE;
            idle_from.saturating_duration_since(now)
        };
        let freshness = match until_idle(&last, requested_at) {
            Duration::ZERO => Freshness::Latest,
            _ => Freshness::Cached,
        };
        let answer = leases.get(LEASE, freshness).await;
        let now = Instant::now();
        conditions.send_modify(|conditions| {
            let view = conditions.view.controller_manager.get_or_insert_default();
            view.error = answer.as_ref().err().map(ToString::to_string);
            if let Ok(lease) = answer {
                view.holder = holder(lease.as_ref()).map(str::to_owned);
                let observed = match last.take() {
                    Some(Answer { mut observed, .. }) => {
                        if observed.update(lease, now) {
                            view.changed = Some(Timestamp::now());
                        }
                        observed
                    }
                    None => ObservedLease::new(lease, now),
                };
                last = Some(Answer {
                    requested_at,
                    freshness,
                    observed,
                });
            }
            let idle = valid_until(last.as_ref(), now);
            conditions.manager_idle = idle.map(Some).map_err(Into::into);
        });
        let pause = match until_idle(&last, now) {
            Duration::ZERO => READ_INTERVAL,
            until_idle => until_idle.min(leases.wait_interval),
        };
        sleep(pause).await;
    }
}

/// Until when the collector may work without another answer, or why it may not.
fn valid_until(last: Option<&Answer>, now: Instant) -> Result<Instant, &'static str> {
    let age = |time: Instant| now.saturating_duration_since(time);
    let Some(last) = last.filter(|last| age(last.requested_at) < FRESH) else {
        return Err("whether kube-controller-manager works is unknown: its Lease cannot be read");
    };
    if age(last.observed.since) >= IDLE && last.freshness == Freshness::Latest {
        Ok(last.requested_at + FRESH)
    } else if last.observed.has_changed {
        Err("kube-controller-manager works: it renews its Lease")
    } else {
        Err("whether kube-controller-manager renews its Lease is being watched, for 45 s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn manager_works_until_its_lease_is_unchanged_for_45_s_and_an_old_answer_does_not_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let observed = |requested_at, since, has_changed, freshness| {
            Some(Answer {
                requested_at: at(requested_at),
                freshness,
                observed: ObservedLease {
                    lease: None,
                    since: at(since),
                    has_changed,
                },
            })
        };
        use Freshness::{Cached, Latest};
        for (observed, expected) in [
            (None, Err("cannot be read")),
            (observed(199, 198, true, Latest), Err("it renews its Lease")),
            (observed(199, 156, true, Latest), Err("it renews its Lease")),
            (observed(199, 156, false, Latest), Err("is being watched")),
            (observed(199, 155, true, Latest), Ok(at(214))),
            (observed(199, 155, false, Latest), Ok(at(214))),
            (observed(199, 100, true, Cached), Err("it renews its Lease")),
            (observed(199, 100, false, Cached), Err("is being watched")),
            (observed(186, 100, true, Latest), Ok(at(201))),
            (observed(185, 100, true, Latest), Err("cannot be read")),
        ] {
            match (valid_until(observed.as_ref(), at(200)), expected) {
                (Ok(until), expected) => assert_eq!(Ok(until), expected, "{observed:?}"),
                (Err(why), Err(expected)) => assert!(why.contains(expected), "{observed:?}: {why}"),
                (Err(why), Ok(_)) => panic!("{observed:?}: {why}"),
            }
        }
    }
}
