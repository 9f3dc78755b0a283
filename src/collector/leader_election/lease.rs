//! The Lease of the collectors: its content, and the next step of an agent that reads it.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Name of the Lease.
pub const NAME: &str = "pod-teardown-gc";
/// No other agent takes a Lease within this time after its renewal.
pub const DURATION: Duration = Duration::from_secs(15);
/// Interval of the holder's renewals.
pub const RENEW_INTERVAL: Duration = Duration::from_secs(2);
/// Annotation of a standby holder. Its value is the holder's identity, since a client that does not know the annotation
/// writes it back unchanged.
const STANDBY_ANNOTATION: &str = "pod-teardown/standby";
/// Without a renewal for so long the holder stops. Requests sent by then have until [`DURATION`] to arrive.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// A holder that reaches the API server creates a deleted Lease again within this time: at its next renewal.
const RECREATION: Duration = RENEW_INTERVAL.saturating_mul(2);

/// Content of the Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderElectionRecord {
    /// Identity of the holder; empty if released.
    pub holder: String,
    /// How long the Lease is valid after each renewal.
    pub duration: Duration,
    /// When the holder acquired it, by the holder's clock.
    pub acquired: String,
    /// When it was last renewed, by the holder's clock. Only compared for equality.
    pub renewed: String,
    /// Number of changes of the holder.
    pub transitions: i64,
    /// The holder's collector is standby, and stays so until the Lease shows otherwise.
    pub is_standby: bool,
    /// Written back unchanged, with the resourceVersion.
    metadata: Value,
}

/// Result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    Absent,
    Present(LeaderElectionRecord),
}

/// The last read state and its age.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedLease {
    /// Result of the last read.
    pub state: LeaseState,
    /// When this state was first read.
    pub since: Instant,
    /// The holder showed standby in two successive versions: it is alive, and this is no older state of a restored store.
    pub may_be_acquired: bool,
    /// This or an earlier read showed a Lease. If it is missing now, it was deleted.
    pub has_existed: bool,
}

/// The agent that takes part.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Its identity.
    pub identity: &'a str,
    /// The deadline of its last renewal has not passed.
    pub holds_lease: bool,
    /// Another agent held the Lease after this agent's last write. If the Lease names this agent again, the store was
    /// restored, and the other agent may not know yet.
    pub is_ambiguous: bool,
    /// `--gc always`: it takes the Lease from a standby holder.
    pub always: bool,
}

/// Next step of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextAction {
    /// Another agent holds it for so long, if it does not change.
    Wait(Duration),
    /// Take it.
    Acquire,
    /// Renew it.
    Renew,
}

// === impl LeaderElectionRecord ===

impl LeaderElectionRecord {
    /// The resourceVersion, if it is a number.
    fn version(&self) -> Option<u64> {
        self.metadata["resourceVersion"].as_str()?.parse().ok()
    }

    /// Reads a Lease; `None` without a resourceVersion.
    pub fn read(lease: &Value) -> Option<Self> {
        let mut metadata = lease["metadata"].clone();
        metadata["resourceVersion"].as_str()?;
        // Large, and kept by the server.
        metadata.as_object_mut()?.remove("managedFields");
        let spec = &lease["spec"];
        let is_standby = &lease["metadata"]["annotations"][STANDBY_ANNOTATION];
        let is_standby = is_standby.is_string() && *is_standby == spec["holderIdentity"];
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        Some(Self {
            holder: text("holderIdentity"),
            duration: spec["leaseDurationSeconds"]
                .as_u64()
                .map_or(DURATION, Duration::from_secs),
            acquired: text("acquireTime"),
            renewed: text("renewTime"),
            transitions: spec["leaseTransitions"].as_i64().unwrap_or(0),
            is_standby,
            metadata,
        })
    }

    /// The Lease of `holder` that replaces `state`.
    pub fn for_holder(holder: &str, state: &LeaseState, now: Timestamp) -> Self {
        let now = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        match state {
            LeaseState::Absent => Self {
                holder: holder.to_owned(),
                duration: DURATION,
                acquired: now.clone(),
                renewed: now,
                transitions: 0,
                is_standby: false,
                metadata: json!({ "name": NAME }),
            },
            LeaseState::Present(before) => {
                let is_new_holder = before.holder != holder;
                Self {
                    holder: holder.to_owned(),
                    duration: DURATION,
                    acquired: if is_new_holder {
                        now.clone()
                    } else {
                        before.acquired.clone()
                    },
                    renewed: now,
                    transitions: before.transitions.saturating_add(is_new_holder.into()),
                    is_standby: false,
                    metadata: before.metadata.clone(),
                }
            }
        }
    }

    pub fn with_standby(self, is_standby: bool) -> Self {
        Self { is_standby, ..self }
    }

    /// The released Lease, which another agent may take at once.
    pub fn released(self) -> Self {
        Self {
            holder: String::new(),
            duration: Duration::from_secs(1),
            is_standby: false,
            ..self
        }
    }

    /// The object of the request.
    pub fn object(&self) -> Value {
        let mut spec = json!({
            "holderIdentity": self.holder,
            "leaseDurationSeconds": self.duration.as_secs(),
            "renewTime": self.renewed,
            "leaseTransitions": self.transitions,
        });
        if !self.acquired.is_empty() {
            spec["acquireTime"] = self.acquired.as_str().into();
        }
        let mut metadata = self.metadata.clone();
        if self.is_standby {
            metadata["annotations"][STANDBY_ANNOTATION] = self.holder.as_str().into();
        } else if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(STANDBY_ANNOTATION);
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        })
    }

    /// This Lease with the metadata of the server's answer to the write.
    pub fn stored(self, answer: &Value) -> Option<Self> {
        let mut object = self.object();
        object["metadata"] = answer["metadata"].clone();
        Self::read(&object)
    }
}

// === impl ObservedLease ===

impl ObservedLease {
    /// The state after another read. The same resourceVersion means no change in between.
    pub fn update(before: Option<Self>, state: LeaseState, now: Instant) -> Self {
        match before {
            Some(before) if before.state == state => before,
            before => Self {
                has_existed: state != LeaseState::Absent || before.as_ref().is_some_and(|before| before.has_existed),
                may_be_acquired: before.is_some_and(|before| state.is_still_standby(&before.state)),
                state,
                since: now,
            },
        }
    }

    /// Counts the age of a missing Lease from now on: while it could not be read, it may have been created and deleted.
    pub fn restart_absence(&mut self, now: Instant) {
        if self.state == LeaseState::Absent {
            self.since = now;
        }
    }
}

// === impl LeaseState ===

impl LeaseState {
    /// The same holder shows standby in a newer version than `before`: a restored store shows older ones.
    fn is_still_standby(&self, before: &Self) -> bool {
        let (Self::Present(before), Self::Present(now)) = (before, self) else {
            return false;
        };
        before.is_standby && now.is_standby && before.holder == now.holder && before.version() < now.version()
    }
}

/// The next step of `candidate`. A missing Lease may have been deleted while its holder's deadline has not passed. An agent
/// that has seen the Lease knows that it was deleted. Any other agent waits until a holder would have created it again.
pub fn next_action(observed: &ObservedLease, candidate: Candidate<'_>, now: Instant) -> NextAction {
    let unchanged = now.saturating_duration_since(observed.since);
    let after = |duration: Duration| match duration.saturating_sub(unchanged) {
        Duration::ZERO => NextAction::Acquire,
        remaining => NextAction::Wait(remaining),
    };
    match &observed.state {
        LeaseState::Absent if candidate.holds_lease => NextAction::Acquire,
        LeaseState::Absent if observed.has_existed => after(DURATION),
        LeaseState::Absent => after(RECREATION),
        LeaseState::Present(record) if record.holder.is_empty() => NextAction::Acquire,
        LeaseState::Present(record) if record.holder == candidate.identity && !candidate.is_ambiguous => {
            NextAction::Renew
        }
        LeaseState::Present(_) if observed.may_be_acquired && candidate.always => NextAction::Acquire,
        LeaseState::Present(record) => after(record.duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANDIDATE: Candidate<'_> = Candidate {
        identity: "me",
        holds_lease: false,
        is_ambiguous: false,
        always: false,
    };

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn record(holder: &str, duration: u64, version: &str) -> LeaseState {
        let lease = json!({
            "metadata": { "name": NAME, "resourceVersion": version, "labels": { "kept": "yes" }, "managedFields": [1] },
            "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": duration, "renewTime": "1999-01-01T00:00:00.000000Z",
                "acquireTime": "1998-01-01T00:00:00.000000Z", "leaseTransitions": 3,
            },
        });
        LeaseState::Present(LeaderElectionRecord::read(&lease).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn next_step_follows_from_holder_and_age() {
        let start = Instant::now();
        let holds_lease = Candidate {
            holds_lease: true,
            ..CANDIDATE
        };
        let is_ambiguous = Candidate {
            is_ambiguous: true,
            ..CANDIDATE
        };
        for (state, unchanged, candidate, expected) in [
            (record("other", 15, "1"), 0, CANDIDATE, NextAction::Wait(secs(15))),
            (record("other", 15, "1"), 14, CANDIDATE, NextAction::Wait(secs(1))),
            (record("other", 15, "1"), 15, CANDIDATE, NextAction::Acquire),
            (record("other", 15, "1"), 14, holds_lease, NextAction::Wait(secs(1))),
            (record("other", 40, "1"), 15, CANDIDATE, NextAction::Wait(secs(25))),
            (record("", 15, "1"), 0, CANDIDATE, NextAction::Acquire),
            (record("me", 15, "1"), 0, CANDIDATE, NextAction::Renew),
            (record("me", 15, "1"), 900, CANDIDATE, NextAction::Renew),
            (record("me", 15, "1"), 3, is_ambiguous, NextAction::Wait(secs(12))),
            (record("me", 15, "1"), 15, is_ambiguous, NextAction::Acquire),
            (LeaseState::Absent, 0, CANDIDATE, NextAction::Wait(secs(4))),
            (LeaseState::Absent, 3, CANDIDATE, NextAction::Wait(secs(1))),
            (LeaseState::Absent, 4, CANDIDATE, NextAction::Acquire),
            (LeaseState::Absent, 0, holds_lease, NextAction::Acquire),
        ] {
            let observed = ObservedLease::update(None, state, start);
            assert_eq!(
                next_action(&observed, candidate, start + secs(unchanged)),
                expected,
                "{observed:?} for {unchanged} s, {candidate:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn changed_lease_restarts_its_age() {
        let start = Instant::now();
        let observed = ObservedLease::update(None, record("other", 15, "1"), start);
        let observed = ObservedLease::update(Some(observed), record("other", 15, "1"), start + secs(9));
        assert_eq!(observed.since, start);
        for changed in [record("other", 15, "2"), record("", 15, "1"), LeaseState::Absent] {
            let observed = ObservedLease::update(Some(observed.clone()), changed, start + secs(9));
            assert_eq!(observed.since, start + secs(9));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn deleted_lease_is_taken_only_after_its_duration() {
        let start = Instant::now();
        let seen = ObservedLease::update(None, record("other", 15, "1"), start);
        let deleted = ObservedLease::update(Some(seen), LeaseState::Absent, start);
        assert_eq!(
            next_action(&deleted, CANDIDATE, start + secs(14)),
            NextAction::Wait(secs(1))
        );
        assert_eq!(next_action(&deleted, CANDIDATE, start + secs(15)), NextAction::Acquire);
    }

    #[tokio::test(start_paused = true)]
    async fn age_of_a_missing_lease_restarts_at_a_failed_read() {
        let start = Instant::now();
        let mut observed = ObservedLease::update(None, LeaseState::Absent, start);
        observed.restart_absence(start + secs(60));
        let observed = ObservedLease::update(Some(observed), LeaseState::Absent, start + secs(61));
        assert_eq!(
            next_action(&observed, CANDIDATE, start + secs(61)),
            NextAction::Wait(secs(3))
        );
        let mut observed = ObservedLease::update(None, record("other", 15, "1"), start);
        observed.restart_absence(start + secs(60));
        assert_eq!(
            observed.since, start,
            "its resourceVersion shows that it was not renewed"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn standby_holder_that_is_alive_yields_to_mode_always() {
        let now = Instant::now();
        let always = Candidate {
            always: true,
            ..CANDIDATE
        };
        let idle = |holder: &str, says: &str, version: &str| {
            let metadata = json!({ "resourceVersion": version, "annotations": { STANDBY_ANNOTATION: says } });
            let lease = json!({ "metadata": metadata, "spec": { "holderIdentity": holder } });
            LeaseState::Present(LeaderElectionRecord::read(&lease).unwrap())
        };
        let observed = |first: &LeaseState, then: &LeaseState| {
            ObservedLease::update(Some(ObservedLease::update(None, first.clone(), now)), then.clone(), now)
        };
        let waits = NextAction::Wait(DURATION);
        let (one, two) = (idle("other", "other", "1"), idle("other", "other", "2"));
        assert_eq!(next_action(&observed(&one, &two), always, now), NextAction::Acquire);
        assert_eq!(next_action(&observed(&one, &two), CANDIDATE, now), waits);
        // It may be an older state of a restored store.
        assert_eq!(next_action(&observed(&one, &one), always, now), waits);
        assert_eq!(
            next_action(&observed(&one, &record("other", 15, "2")), always, now),
            waits
        );
        // Left by an earlier holder and written back by a client that does not know it.
        let remaining = (idle("other", "before", "1"), idle("other", "before", "2"));
        assert_eq!(next_action(&observed(&remaining.0, &remaining.1), always, now), waits);
    }

    #[test]
    fn standby_annotation_is_set_and_removed_beside_others() {
        let metadata = json!({ "resourceVersion": "1", "annotations": { "team": "a" } });
        let lease = json!({ "metadata": metadata, "spec": { "holderIdentity": "me" } });
        let record = LeaderElectionRecord::read(&lease).unwrap();
        let says = record.with_standby(true);
        let object = says.object();
        assert_eq!(
            object["metadata"]["annotations"],
            json!({ "team": "a", STANDBY_ANNOTATION: "me" })
        );
        let read = LeaderElectionRecord::read(&object).unwrap();
        assert!(read.is_standby);
        let works = LeaderElectionRecord::for_holder("me", &LeaseState::Present(read), Timestamp::now()).object();
        assert_eq!(works["metadata"]["annotations"], json!({ "team": "a" }));
    }

    #[test]
    fn write_replaces_only_the_version_read_and_keeps_foreign_fields() {
        let now: Timestamp = "2026-01-02T03:04:05.5Z".parse().unwrap();
        let taken = LeaderElectionRecord::for_holder("me", &record("other", 40, "7"), now);
        assert_eq!(
            taken.object(),
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
        let stored = taken
            .stored(&json!({ "metadata": { "name": NAME, "resourceVersion": "8" } }))
            .unwrap();
        let renewed = LeaderElectionRecord::for_holder("me", &LeaseState::Present(stored.clone()), now + secs(2));
        assert_eq!((renewed.transitions, &renewed.acquired), (4, &stored.acquired));
        assert_eq!(renewed.object()["metadata"]["resourceVersion"], "8");
        let released = renewed.released().object();
        assert_eq!(
            (
                &released["spec"]["holderIdentity"],
                &released["spec"]["leaseTransitions"]
            ),
            (&json!(""), &json!(4))
        );
        let first = LeaderElectionRecord::for_holder("me", &LeaseState::Absent, now).object();
        assert_eq!(first["metadata"], json!({ "name": NAME }));
    }
}
