//! Whether kube-controller-manager's collector works, by its Lease. The agent that holds the collectors' Lease watches it.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    ground::{Ground, extended},
    requests::{Exact, Leases},
    view::{Notes, named},
};
use crate::api::ApiError;

const LEASE: &str = "kube-controller-manager";
/// A Lease that does not change for so long is not renewed: three times its own duration.
const IDLE: Duration = Duration::from_secs(45);
/// How often it is read.
const READ_EVERY: Duration = Duration::from_secs(2);
/// An answer counts for so long, whatever fails afterwards: one lost answer must not end a turn.
const FRESH: Duration = Duration::from_secs(15);

/// What was seen of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    /// When the last answered request was sent.
    asked: Instant,
    /// Holder, renewTime, transitions and resourceVersion; `None` without a Lease.
    mark: Option<[Value; 4]>,
    /// When it was first seen so.
    since: Instant,
    /// It was seen otherwise before.
    changed: bool,
}

/// Watches the Lease and keeps `ground` up to date. Never returns.
pub(super) async fn monitor(leases: Leases<'_>, ground: &watch::Sender<Ground>, notes: &Notes) {
    let mut seen = None;
    loop {
        let asked = Instant::now();
        match leases.get(LEASE, Exact::Now).await {
            Ok(lease) => {
                let now = seen_after(seen.as_ref(), lease.as_ref().map(mark), asked);
                note(notes, seen.as_ref(), &now);
                seen = Some(now);
            }
            Err(error) => note_error(notes, &error),
        }
        let now = Instant::now();
        let idle = idle_until(seen.as_ref(), now);
        ground.send_modify(|ground| {
            let alone = idle.map(|until| extended(&ground.alone, Some(until), now));
            ground.set_alone(alone.map_err(str::to_owned), now);
        });
        sleep(READ_EVERY).await;
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

/// Until when the collector may work if nothing more is heard of kube-controller-manager, or why it may not.
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

/// What shows that a Lease changes.
fn mark(lease: &Value) -> [Value; 4] {
    let spec = &lease["spec"];
    [
        spec["holderIdentity"].clone(),
        spec["renewTime"].clone(),
        spec["leaseTransitions"].clone(),
        lease["metadata"]["resourceVersion"].clone(),
    ]
}

fn note(notes: &Notes, before: Option<&Seen>, now: &Seen) {
    notes.manager(|view| {
        view.holder = now.mark.as_ref().and_then(|mark| named(mark[0].as_str()?));
        view.looked = Some(Timestamp::now());
        view.error = None;
        if before.is_some_and(|before| before.mark != now.mark) {
            view.changed = view.looked;
        }
    });
}

fn note_error(notes: &Notes, error: &ApiError) {
    notes.manager(|view| view.error = Some(error.to_string()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_works_until_its_lease_was_seen_unchanged_for_45_s_and_an_old_answer_shows_nothing() {
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
