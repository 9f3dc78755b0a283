//! Detects by its Lease whether kube-controller-manager works. Only the holder of the collectors' Lease watches it.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    conditions::{Conditions, extended},
    requests::{Freshness, Leases},
    view::{StatusRecord, non_empty},
};
use crate::api::ApiError;

const LEASE: &str = "kube-controller-manager";
/// Without a change for so long, three times its duration, the Lease is not renewed.
const IDLE: Duration = Duration::from_secs(45);
/// Interval of reads.
const READ_INTERVAL: Duration = Duration::from_secs(2);
/// How long an answer counts: one lost answer must not end the active role.
const FRESH: Duration = Duration::from_secs(15);

/// The last read state of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// When the last answered request was sent.
    asked: Instant,
    /// Holder, renewTime, transitions and resourceVersion; `None` without a Lease.
    mark: Option<[Value; 4]>,
    /// When this state was first read.
    since: Instant,
    /// An earlier read showed another state.
    changed: bool,
}

/// Watches the Lease and keeps `conditions` up to date. Never returns.
pub(super) async fn monitor(leases: Leases<'_>, conditions: &watch::Sender<Conditions>, status: &StatusRecord) {
    let mut seen = None;
    loop {
        let asked = Instant::now();
        match leases.get(LEASE, Freshness::Latest).await {
            Ok(lease) => {
                let now = seen_after(seen.as_ref(), lease.as_ref().map(mark), asked);
                note(status, seen.as_ref(), &now);
                seen = Some(now);
            }
            Err(error) => note_error(status, &error),
        }
        let now = Instant::now();
        let idle = idle_until(seen.as_ref(), now);
        conditions.send_modify(|conditions| {
            let manager_idle = idle.map(|until| extended(&conditions.manager_idle, Some(until), now));
            conditions.set_manager_idle(manager_idle.map_err(str::to_owned), now);
        });
        sleep(READ_INTERVAL).await;
    }
}

fn seen_after(before: Option<&Seen>, mark: Option<[Value; 4]>, asked: Instant) -> Seen {
    match before {
        Some(before) if before.mark == mark => Seen {
            asked,
            ..before.clone()
        },
        before => Seen {
            asked,
            mark,
            since: Instant::now(),
            changed: before.is_some(),
        },
    }
}

/// Until when the collector may work without another answer, or why it may not.
fn idle_until(seen: Option<&Seen>, now: Instant) -> Result<Instant, &'static str> {
    let age = |of: Instant| now.saturating_duration_since(of);
    let Some(seen) = seen.filter(|seen| age(seen.asked) < FRESH) else {
        return Err("whether kube-controller-manager works is unknown: its Lease cannot be read");
    };
    match (age(seen.since) >= IDLE, seen.changed) {
        (true, _) => Ok(seen.asked + FRESH),
        (false, true) => Err("kube-controller-manager works: it renews its Lease"),
        (false, false) => Err("whether kube-controller-manager renews its Lease is being watched, for 45 s"),
    }
}

/// The fields that change when a Lease is renewed.
fn mark(lease: &Value) -> [Value; 4] {
    let spec = &lease["spec"];
    [
        spec["holderIdentity"].clone(),
        spec["renewTime"].clone(),
        spec["leaseTransitions"].clone(),
        lease["metadata"]["resourceVersion"].clone(),
    ]
}

fn note(status: &StatusRecord, before: Option<&Seen>, now: &Seen) {
    status.update_manager(|view| {
        view.holder = now.mark.as_ref().and_then(|mark| non_empty(mark[0].as_str()?));
        view.looked = Some(Timestamp::now());
        view.error = None;
        if before.is_some_and(|before| before.mark != now.mark) {
            view.changed = view.looked;
        }
    });
}

fn note_error(status: &StatusRecord, error: &ApiError) {
    status.update_manager(|view| view.error = Some(error.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn manager_works_until_its_lease_is_unchanged_for_45_s_and_an_old_answer_does_not_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let seen = |asked, since, changed| {
            Some(Seen {
                asked: at(asked),
                mark: None,
                since: at(since),
                changed,
            })
        };
        for (seen, expected) in [
            (None, Err("cannot be read")),
            (seen(199, 198, true), Err("it renews its Lease")),
            (seen(199, 156, true), Err("it renews its Lease")),
            (seen(199, 156, false), Err("is being watched")),
            (seen(199, 155, true), Ok(at(214))),
            (seen(199, 155, false), Ok(at(214))),
            (seen(186, 100, true), Ok(at(201))),
            (seen(185, 100, true), Err("cannot be read")),
        ] {
            match (idle_until(seen.as_ref(), at(200)), expected) {
                (Ok(until), expected) => assert_eq!(Ok(until), expected, "{seen:?}"),
                (Err(why), Err(expected)) => assert!(why.contains(expected), "{seen:?}: {why}"),
                (Err(why), Ok(_)) => panic!("{seen:?}: {why}"),
            }
        }
    }
}
