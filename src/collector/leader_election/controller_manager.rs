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
struct ObservedLease {
    /// When the last answered request was sent.
    requested_at: Instant,
    /// Holder, renewTime, transitions and resourceVersion; `None` without a Lease.
    renewal_fields: Option<[Value; 4]>,
    /// When this state was first read.
    since: Instant,
    /// An earlier read showed another state.
    has_changed: bool,
}

/// Watches the Lease and keeps `conditions` up to date. Never returns.
pub(super) async fn monitor(leases: Leases<'_>, conditions: &watch::Sender<Conditions>, status: &StatusRecord) {
    let mut observed = None;
    loop {
        let requested_at = Instant::now();
        match leases.get(LEASE, Freshness::Latest).await {
            Ok(lease) => {
                let now = observe(observed.as_ref(), lease.as_ref().map(renewal_fields), requested_at);
                record_observation(status, observed.as_ref(), &now);
                observed = Some(now);
            }
            Err(error) => record_error(status, &error),
        }
        let now = Instant::now();
        let idle = valid_until(observed.as_ref(), now);
        conditions.send_modify(|conditions| {
            let manager_idle = idle.map(|until| extended(&conditions.manager_idle, Some(until), now));
            conditions.set_manager_idle(manager_idle.map_err(str::to_owned), now);
        });
        sleep(READ_INTERVAL).await;
    }
}

fn observe(before: Option<&ObservedLease>, renewal_fields: Option<[Value; 4]>, requested_at: Instant) -> ObservedLease {
    match before {
        Some(before) if before.renewal_fields == renewal_fields => ObservedLease {
            requested_at,
            ..before.clone()
        },
        before => ObservedLease {
            requested_at,
            renewal_fields,
            since: Instant::now(),
            has_changed: before.is_some(),
        },
    }
}

/// Until when the collector may work without another answer, or why it may not.
fn valid_until(observed: Option<&ObservedLease>, now: Instant) -> Result<Instant, &'static str> {
    let age = |time: Instant| now.saturating_duration_since(time);
    let Some(observed) = observed.filter(|observed| age(observed.requested_at) < FRESH) else {
        return Err("whether kube-controller-manager works is unknown: its Lease cannot be read");
    };
    match (age(observed.since) >= IDLE, observed.has_changed) {
        (true, _) => Ok(observed.requested_at + FRESH),
        (false, true) => Err("kube-controller-manager works: it renews its Lease"),
        (false, false) => Err("whether kube-controller-manager renews its Lease is being watched, for 45 s"),
    }
}

/// The fields that change when a Lease is renewed.
fn renewal_fields(lease: &Value) -> [Value; 4] {
    let spec = &lease["spec"];
    [
        spec["holderIdentity"].clone(),
        spec["renewTime"].clone(),
        spec["leaseTransitions"].clone(),
        lease["metadata"]["resourceVersion"].clone(),
    ]
}

fn record_observation(status: &StatusRecord, before: Option<&ObservedLease>, now: &ObservedLease) {
    status.update_manager(|view| {
        view.holder = now
            .renewal_fields
            .as_ref()
            .and_then(|renewal_fields| non_empty(renewal_fields[0].as_str()?));
        view.read = Some(Timestamp::now());
        view.error = None;
        if before.is_some_and(|before| before.renewal_fields != now.renewal_fields) {
            view.changed = view.read;
        }
    });
}

fn record_error(status: &StatusRecord, error: &ApiError) {
    status.update_manager(|view| view.error = Some(error.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn manager_works_until_its_lease_is_unchanged_for_45_s_and_an_old_answer_does_not_count() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let observed = |requested_at, since, has_changed| {
            Some(ObservedLease {
                requested_at: at(requested_at),
                renewal_fields: None,
                since: at(since),
                has_changed,
            })
        };
        for (observed, expected) in [
            (None, Err("cannot be read")),
            (observed(199, 198, true), Err("it renews its Lease")),
            (observed(199, 156, true), Err("it renews its Lease")),
            (observed(199, 156, false), Err("is being watched")),
            (observed(199, 155, true), Ok(at(214))),
            (observed(199, 155, false), Ok(at(214))),
            (observed(186, 100, true), Ok(at(201))),
            (observed(185, 100, true), Err("cannot be read")),
        ] {
            match (valid_until(observed.as_ref(), at(200)), expected) {
                (Ok(until), expected) => assert_eq!(Ok(until), expected, "{observed:?}"),
                (Err(why), Err(expected)) => assert!(why.contains(expected), "{observed:?}: {why}"),
                (Err(why), Ok(_)) => panic!("{observed:?}: {why}"),
            }
        }
    }
}
