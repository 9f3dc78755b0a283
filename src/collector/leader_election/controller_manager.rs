//! Detects by its Lease whether kube-controller-manager works.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    lease::{Freshness, Leases, holder},
    state::{Conditions, non_empty},
};

const LEASE: &str = "kube-controller-manager";
/// Without a change for so long, three times its duration, the Lease is not renewed.
const IDLE: Duration = Duration::from_secs(45);
/// Interval of reads while it is idle.
const READ_INTERVAL: Duration = Duration::from_secs(2);
/// How long an answer counts: one lost answer must not end the active role.
const FRESH: Duration = Duration::from_secs(15);

/// The last read state of the Lease.
#[derive(Debug, Clone, PartialEq)]
struct ObservedLease {
    /// When the last answered request was sent.
    requested_at: Instant,
    /// Of the last answer. A cache may show an old state for any time.
    freshness: Freshness,
    lease: Option<Lease>,
    /// When this state was first read.
    since: Instant,
    /// An earlier read showed another state.
    has_changed: bool,
}

/// Watches the Lease and keeps `conditions` up to date. Never returns. Agents that wait read the server's cache; a Lease that seems
/// idle is read itself.
pub(super) async fn monitor(leases: Leases<'_>, conditions: &watch::Sender<Conditions>) {
    let mut observed: Option<ObservedLease> = None;
    loop {
        let requested_at = Instant::now();
        let idle_from = observed.as_ref().map(|observed| observed.since + IDLE);
        let freshness = match idle_from {
            Some(idle_from) if requested_at >= idle_from => Freshness::Latest,
            _ => Freshness::Cached,
        };
        let answer = leases.get(LEASE, freshness).await;
        let now = Instant::now();
        conditions.send_modify(|conditions| {
            let view = conditions.view.controller_manager.get_or_insert_default();
            view.error = answer.as_ref().err().map(ToString::to_string);
            if let Ok(lease) = answer {
                view.holder = lease.as_ref().and_then(|lease| non_empty(holder(lease)));
                let (mut since, mut has_changed) = (now, false);
                if let Some(before) = &observed {
                    let is_same = before.lease == lease;
                    since = if is_same { before.since } else { now };
                    has_changed = before.has_changed || !is_same;
                    view.changed = if is_same { view.changed } else { Some(Timestamp::now()) };
                }
                observed = Some(ObservedLease {
                    requested_at,
                    freshness,
                    lease,
                    since,
                    has_changed,
                });
            }
            let idle = valid_until(observed.as_ref(), now);
            conditions.manager_idle = idle.map(Some).map_err(str::to_owned);
        });
        let until_idle = observed
            .as_ref()
            .map_or(IDLE, |observed| (observed.since + IDLE).saturating_duration_since(now));
        let pause = match until_idle {
            Duration::ZERO => READ_INTERVAL,
            until_idle => until_idle.min(leases.wait_interval),
        };
        sleep(pause).await;
    }
}

/// Until when the collector may work without another answer, or why it may not.
fn valid_until(observed: Option<&ObservedLease>, now: Instant) -> Result<Instant, &'static str> {
    let age = |time: Instant| now.saturating_duration_since(time);
    let Some(observed) = observed.filter(|observed| age(observed.requested_at) < FRESH) else {
        return Err("whether kube-controller-manager works is unknown: its Lease cannot be read");
    };
    if age(observed.since) >= IDLE && observed.freshness == Freshness::Latest {
        Ok(observed.requested_at + FRESH)
    } else if observed.has_changed {
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
            Some(ObservedLease {
                requested_at: at(requested_at),
                freshness,
                lease: None,
                since: at(since),
                has_changed,
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
