//! The Lease of the collectors, how long an agent that reads it has to wait, and requests for Leases in kube-system. They pass no
//! gate, since they write only the collectors' Lease.

use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::core::PartialObjectMeta;
use tokio::time::Instant;

use crate::api::{ApiError, Lane, MetadataClient, read, with_timeout};

/// Name of the Lease.
pub const NAME: &str = "pod-teardown-gc";
/// No other agent takes a Lease within this time after its renewal.
const DURATION: Duration = Duration::from_secs(DURATION_SECONDS as u64);
const DURATION_SECONDS: i32 = 15;
/// Interval of the holder's renewals.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(2);
/// Without a renewal for so long the holder stops. Requests sent by then have until [`DURATION`] to arrive.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// A holder that reaches the API server creates a deleted Lease again within this time: at its next renewal.
const RECREATION: Duration = RENEW_INTERVAL.saturating_mul(2);

/// Limit of a request: half of the renew deadline, so that a second one fits in.
const TIMEOUT: Duration = Duration::from_secs(5);
const PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const JSON: &str = "application/json";

/// The Leases of kube-system.
#[derive(Clone, Copy)]
pub(super) struct Leases<'a> {
    pub client: &'a MetadataClient,
    /// Interval of reads by a waiting agent. There may be one on every node.
    pub wait_interval: Duration,
}

/// How recent an answer has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freshness {
    /// The present state.
    Latest,
    /// From the server's cache: cheap, for waiting agents.
    Cached,
}

/// The last read state of a Lease, and its age.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ObservedLease {
    /// Result of the last read; `None` without a Lease.
    pub lease: Option<Lease>,
    /// When this state was first read.
    pub since: Instant,
    /// An earlier read showed another state.
    pub has_changed: bool,
}

// === impl Leases ===

impl Leases<'_> {
    /// The Lease; `None` if its absence is proven.
    pub async fn get(&self, name: &str, freshness: Freshness) -> Result<Option<Lease>, ApiError> {
        let path = match freshness {
            Freshness::Latest => format!("{PATH}/{name}"),
            Freshness::Cached => format!("{PATH}/{name}?resourceVersion=0"),
        };
        let answer = self.client.json(Lane::Election, &path, JSON);
        match with_timeout(TIMEOUT, "GET", &path, answer).await {
            Err(error) if error.is_absence_of("coordination.k8s.io", "leases", name) => Ok(None),
            lease => lease.map(Some),
        }
    }

    /// Creates the collectors' Lease, or replaces the version in its metadata. Returns it with the new metadata.
    pub async fn write(&self, lease: Lease) -> Result<Lease, ApiError> {
        let (verb, path) = match lease.metadata.resource_version {
            None => ("POST", PATH.to_owned()),
            Some(_) => ("PUT", format!("{PATH}/{NAME}")),
        };
        let body = serde_json::to_vec(&lease).map_err(|error| ApiError::unreadable(verb, &path, error))?;
        let lane = Lane::Election;
        let sent = self.client.send_ungated(lane, verb, &path, JSON, Bytes::from(body));
        let answer = with_timeout(TIMEOUT, verb, &path, sent).await?;
        // The client requests only the metadata.
        let PartialObjectMeta::<Lease> { metadata, .. } = read(verb, &path, &answer)?;
        if metadata.resource_version.is_none() {
            return Err(ApiError::unreadable(verb, &path, "it has no resourceVersion"));
        }
        Ok(Lease { metadata, ..lease })
    }
}

/// The holder of a Lease, if it has one.
pub(super) fn holder(lease: Option<&Lease>) -> Option<&str> {
    let holder = lease?.spec.as_ref()?.holder_identity.as_deref();
    holder.filter(|holder| !holder.is_empty())
}

/// The Lease of `identity` that replaces `before`.
pub(super) fn for_holder(identity: &str, before: Option<&Lease>, now: Timestamp) -> Lease {
    // As precise as it is stored.
    let now = MicroTime(Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now));
    let is_own = holder(before) == Some(identity);
    let spec = before.and_then(|before| before.spec.clone()).unwrap_or_default();
    let acquired = spec.acquire_time.filter(|_| is_own);
    let transitions = spec.lease_transitions.unwrap_or_default();
    let mut metadata = before.map_or_else(ObjectMeta::default, |before| before.metadata.clone());
    // Large, and kept by the server.
    metadata.managed_fields = None;
    metadata.name = Some(NAME.to_owned());
    Lease {
        metadata,
        spec: Some(LeaseSpec {
            holder_identity: Some(identity.to_owned()),
            lease_duration_seconds: Some(DURATION_SECONDS),
            acquire_time: Some(acquired.unwrap_or_else(|| now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(transitions.saturating_add((before.is_some() && !is_own).into())),
            ..LeaseSpec::default()
        }),
    }
}

/// The released Lease, which another agent may take at once.
pub(super) fn released(lease: &Lease) -> Lease {
    let mut lease = lease.clone();
    lease.metadata.managed_fields = None;
    let spec = lease.spec.get_or_insert_default();
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    lease
}

// === impl ObservedLease ===

impl ObservedLease {
    /// The first read state.
    pub fn new(lease: Option<Lease>, now: Instant) -> Self {
        Self {
            lease,
            since: now,
            has_changed: false,
        }
    }

    /// Its holder, if it has one.
    pub fn holder(&self) -> Option<&str> {
        holder(self.lease.as_ref())
    }

    /// Applies another read; `true` if it shows another state. The same resourceVersion means no change in between.
    pub fn update(&mut self, lease: Option<Lease>, now: Instant) -> bool {
        let is_change = self.lease != lease;
        if is_change {
            *self = Self {
                lease,
                since: now,
                has_changed: true,
            };
        }
        is_change
    }

    /// Counts the age of a missing Lease from now on: while it was not read, it may have been created and deleted.
    pub fn restart_absence(&mut self, now: Instant) {
        if self.lease.is_none() {
            self.since = now;
        }
    }

    /// How long this agent has to wait before it writes the Lease, if it does not change; zero if it may at once.
    ///
    /// A Lease that names this agent after it was lost is taken like any other: the store may have been restored, and another
    /// agent may not know yet. A missing Lease may have been deleted while its holder's deadline has not passed. An agent that has
    /// seen the Lease knows that it was deleted. Any other agent waits until a holder would have created it again.
    pub fn wait(&self, identity: &str, holds_lease: bool, now: Instant) -> Duration {
        let holder = self.holder();
        let duration = match &self.lease {
            None if holds_lease => Duration::ZERO,
            None if self.has_changed => DURATION,
            None => RECREATION,
            Some(_) if holder.is_none() || (holds_lease && holder == Some(identity)) => Duration::ZERO,
            Some(lease) => {
                let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
                seconds.map_or(DURATION, |seconds| Duration::from_secs(seconds.try_into().unwrap_or(0)))
            }
        };
        duration.saturating_sub(now.saturating_duration_since(self.since))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn lease(holder: &str, duration: u64, version: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": { "name": NAME, "resourceVersion": version, "labels": { "kept": "yes" } },
            "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": duration, "renewTime": "1999-01-01T00:00:00.000000Z",
                "acquireTime": "1998-01-01T00:00:00.000000Z", "leaseTransitions": 3,
            },
        }))
        .unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn wait_follows_from_holder_and_age() {
        let start = Instant::now();
        let held = |holder, duration| Some(lease(holder, duration, "1"));
        for (lease, unchanged, holds_lease, wait) in [
            (held("other", 15), 0, false, 15),
            (held("other", 15), 14, false, 1),
            (held("other", 15), 15, false, 0),
            (held("other", 15), 14, true, 1),
            (held("other", 40), 15, false, 25),
            (held("", 15), 0, false, 0),
            (held("me", 15), 0, true, 0),
            (held("me", 15), 3, false, 12),
            (held("me", 15), 15, false, 0),
            (None, 0, false, 4),
            (None, 3, false, 1),
            (None, 4, false, 0),
            (None, 0, true, 0),
        ] {
            let mut observed = ObservedLease::new(None, start);
            observed.update(lease, start);
            assert_eq!(
                observed.wait("me", holds_lease, start + secs(unchanged)),
                secs(wait),
                "{observed:?} for {unchanged} s, {holds_lease}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changed_lease_restarts_its_age_and_a_deleted_one_is_taken_only_after_its_duration() {
        let start = Instant::now();
        let mut observed = ObservedLease::new(None, start);
        observed.update(Some(lease("other", 15, "1")), start);
        observed.update(Some(lease("other", 15, "1")), start + secs(9));
        assert_eq!(observed.since, start);
        observed.restart_absence(start + secs(60));
        assert_eq!(
            observed.since, start,
            "its resourceVersion shows that it was not renewed"
        );
        for changed in [Some(lease("other", 15, "2")), Some(lease("", 15, "1")), None] {
            let mut observed = observed.clone();
            observed.update(changed, start + secs(9));
            assert_eq!(observed.since, start + secs(9));
        }
        observed.update(None, start);
        assert_eq!(observed.wait("me", false, start + secs(14)), secs(1));
        assert_eq!(observed.wait("me", false, start + secs(15)), secs(0));
        let mut missing = ObservedLease::new(None, start);
        missing.restart_absence(start + secs(60));
        missing.update(None, start + secs(61));
        assert_eq!(
            missing.wait("me", false, start + secs(61)),
            secs(3),
            "it failed to read it"
        );
    }

    #[test]
    fn write_replaces_only_the_version_read_and_keeps_foreign_fields() {
        let now: Timestamp = "2026-01-02T03:04:05.5Z".parse().unwrap();
        let taken = for_holder("me", Some(&lease("other", 40, "7")), now);
        assert_eq!(
            serde_json::to_value(&taken).unwrap(),
            json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": { "name": NAME, "resourceVersion": "7", "labels": { "kept": "yes" } },
                "spec": {
                    "holderIdentity": "me", "leaseDurationSeconds": 15, "leaseTransitions": 4,
                    "acquireTime": "2026-01-02T03:04:05.500000Z", "renewTime": "2026-01-02T03:04:05.500000Z",
                },
            })
        );
        let spec = for_holder("me", Some(&taken), now + secs(2)).spec.unwrap();
        assert_eq!(
            (spec.lease_transitions, spec.acquire_time),
            (Some(4), Some(MicroTime(now)))
        );
        assert_eq!(spec.renew_time, Some(MicroTime(now + secs(2))));
        let released = released(&taken).spec.unwrap();
        assert_eq!(
            (released.holder_identity.as_deref(), released.lease_transitions),
            (Some(""), Some(4))
        );
        let first = for_holder("me", None, now);
        assert_eq!(first.spec.unwrap().lease_transitions, Some(0));
        assert_eq!(first.metadata.resource_version, None);
    }
}
