//! The Lease by which agents agree whose turn it is: what it says, and what follows from it.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Name of the Lease.
pub const NAME: &str = "pod-teardown-gc";
/// Nobody else takes a Lease that was renewed less than so long ago.
pub const DURATION: Duration = Duration::from_secs(15);
/// How often the holder renews it.
pub const RENEW_EVERY: Duration = Duration::from_secs(2);
/// By it a holder says that it stands by. It bears the holder's name: whoever does not know it writes it back as it was.
const STANDS_BY: &str = "pod-teardown/stands-by";
/// The holder stops by itself when it was not renewed for so long: what it has sent by then has [`DURATION`] to arrive.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// What a Lease says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Who holds it; empty if it was given back.
    pub holder: String,
    /// How long it is the holder's after each renewal.
    pub duration: Duration,
    /// When it became the holder's, by the holder's clock.
    pub acquired: String,
    /// When it was last renewed, by the holder's clock. Compared, and never believed.
    pub renewed: String,
    /// How often it went over to somebody else.
    pub transitions: i64,
    /// The holder says that its collector stands by, and that it does not work before it has said otherwise.
    pub stands_by: bool,
    /// All else that is written back as it was, with the resourceVersion.
    metadata: Value,
}

/// What a look has shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sight {
    /// There is none.
    Absent,
    /// There is one.
    Present(Record),
}

/// What is seen, and since when it has been so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The last look.
    pub sight: Sight,
    /// When it was first seen like that.
    pub since: Instant,
    /// Its holder said that it stands by, and again at a later look: it lives, and this is no state of old.
    pub yields: bool,
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// What it calls itself.
    pub identity: &'a str,
    /// The deadline after its last renewal has not passed.
    pub holds: bool,
    /// Somebody else held the Lease after this one's last write. If it bears this one's name again all the same, the
    /// store was set back, and the other may not know yet.
    pub doubted: bool,
    /// It works whatever other collectors do, and so goes before one that stands by for them.
    pub always: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It is another's for so long yet, if it does not change.
    Wait(Duration),
    /// Take it.
    Take,
    /// Renew it.
    Renew,
}

// === impl Record ===

impl Record {
    /// What the store gave this state, if that can be compared.
    fn version(&self) -> Option<u64> {
        self.metadata["resourceVersion"].as_str()?.parse().ok()
    }

    /// Reads a Lease; nothing if it is none.
    pub fn read(lease: &Value) -> Option<Self> {
        let mut metadata = lease["metadata"].clone();
        metadata["resourceVersion"].as_str()?;
        // The server keeps them; they are many.
        metadata.as_object_mut()?.remove("managedFields");
        let spec = &lease["spec"];
        let stands_by = &lease["metadata"]["annotations"][STANDS_BY];
        let stands_by = stands_by.is_string() && *stands_by == spec["holderIdentity"];
        let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
        Some(Self {
            holder: text("holderIdentity"),
            duration: spec["leaseDurationSeconds"]
                .as_u64()
                .map_or(DURATION, Duration::from_secs),
            acquired: text("acquireTime"),
            renewed: text("renewTime"),
            transitions: spec["leaseTransitions"].as_i64().unwrap_or(0),
            stands_by,
            metadata,
        })
    }

    /// The Lease of `holder`, as it is to be written over `sight`.
    pub fn of(holder: &str, sight: &Sight, now: Timestamp) -> Self {
        let now = now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        match sight {
            Sight::Absent => Self {
                holder: holder.to_owned(),
                duration: DURATION,
                acquired: now.clone(),
                renewed: now,
                transitions: 0,
                stands_by: false,
                metadata: json!({ "name": NAME }),
            },
            Sight::Present(before) => {
                let goes_over = before.holder != holder;
                Self {
                    holder: holder.to_owned(),
                    duration: DURATION,
                    acquired: if goes_over {
                        now.clone()
                    } else {
                        before.acquired.clone()
                    },
                    renewed: now,
                    transitions: before.transitions.saturating_add(goes_over.into()),
                    stands_by: false,
                    metadata: before.metadata.clone(),
                }
            }
        }
    }

    /// The same of a holder that stands by, if it does.
    pub fn standing_by(self, stands_by: bool) -> Self {
        Self { stands_by, ..self }
    }

    /// The same, given back, so that the next one need not wait.
    pub fn given_back(self) -> Self {
        Self {
            holder: String::new(),
            duration: Duration::from_secs(1),
            stands_by: false,
            ..self
        }
    }

    /// As it is sent.
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
        if self.stands_by {
            metadata["annotations"][STANDS_BY] = self.holder.as_str().into();
        } else if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(STANDS_BY);
        }
        json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": spec,
        })
    }

    /// The same as the server has it now, by its answer to the write.
    pub fn stored(self, answer: &Value) -> Option<Self> {
        let mut object = self.object();
        object["metadata"] = answer["metadata"].clone();
        Self::read(&object)
    }
}

// === impl Seen ===

impl Seen {
    /// What is seen now, after `before`. A record that bears the same resourceVersion was not changed in between either.
    pub fn after(before: Option<Self>, sight: Sight, now: Instant) -> Self {
        match before {
            Some(before) if before.sight == sight => before,
            before => Self {
                yields: before.is_some_and(|before| sight.still_stands_by(&before.sight)),
                sight,
                since: now,
            },
        }
    }
}

// === impl Sight ===

impl Sight {
    /// Its holder says that it stands by, and said so before: a store that was put back shows older states.
    fn still_stands_by(&self, before: &Self) -> bool {
        let (Self::Present(before), Self::Present(now)) = (before, self) else {
            return false;
        };
        before.stands_by && now.stands_by && before.holder == now.holder && before.version() < now.version()
    }
}

/// What follows from what is seen. One that is missing may have been deleted under a holder, who has its deadline yet.
pub fn next(seen: &Seen, candidate: Candidate<'_>, now: Instant) -> Next {
    let unchanged = now.saturating_duration_since(seen.since);
    let after = |duration: Duration| match duration.saturating_sub(unchanged) {
        Duration::ZERO => Next::Take,
        left => Next::Wait(left),
    };
    match &seen.sight {
        Sight::Absent if candidate.holds => Next::Take,
        Sight::Absent => after(DURATION),
        Sight::Present(record) if record.holder.is_empty() => Next::Take,
        Sight::Present(record) if record.holder == candidate.identity && !candidate.doubted => Next::Renew,
        Sight::Present(_) if seen.yields && candidate.always => Next::Take,
        Sight::Present(record) => after(record.duration),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Candidate<'_> = Candidate {
        identity: "me",
        holds: false,
        doubted: false,
        always: false,
    };

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn record(holder: &str, duration: u64, version: &str) -> Sight {
        let lease = json!({
            "metadata": { "name": NAME, "resourceVersion": version, "labels": { "kept": "yes" }, "managedFields": [1] },
            "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": duration, "renewTime": "1999-01-01T00:00:00.000000Z",
                "acquireTime": "1998-01-01T00:00:00.000000Z", "leaseTransitions": 3,
            },
        });
        Sight::Present(Record::read(&lease).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn what_follows() {
        let start = Instant::now();
        let holds = Candidate { holds: true, ..ME };
        let doubted = Candidate { doubted: true, ..ME };
        for (sight, unchanged, candidate, expected) in [
            (record("other", 15, "1"), 0, ME, Next::Wait(secs(15))),
            (record("other", 15, "1"), 14, ME, Next::Wait(secs(1))),
            (record("other", 15, "1"), 15, ME, Next::Take),
            (record("other", 15, "1"), 14, holds, Next::Wait(secs(1))),
            (record("other", 40, "1"), 15, ME, Next::Wait(secs(25))),
            (record("", 15, "1"), 0, ME, Next::Take),
            (record("me", 15, "1"), 0, ME, Next::Renew),
            (record("me", 15, "1"), 900, ME, Next::Renew),
            (record("me", 15, "1"), 3, doubted, Next::Wait(secs(12))),
            (record("me", 15, "1"), 15, doubted, Next::Take),
            (Sight::Absent, 0, ME, Next::Wait(secs(15))),
            (Sight::Absent, 15, ME, Next::Take),
            (Sight::Absent, 0, holds, Next::Take),
        ] {
            let seen = Seen {
                sight,
                since: start,
                yields: false,
            };
            assert_eq!(
                next(&seen, candidate, start + secs(unchanged)),
                expected,
                "{seen:?} for {unchanged} s, {candidate:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_does_not_change_grows_old() {
        let start = Instant::now();
        let seen = Seen::after(None, record("other", 15, "1"), start);
        let seen = Seen::after(Some(seen), record("other", 15, "1"), start + secs(9));
        assert_eq!(seen.since, start);
        for changed in [record("other", 15, "2"), record("", 15, "1"), Sight::Absent] {
            let seen = Seen::after(Some(seen.clone()), changed, start + secs(9));
            assert_eq!(seen.since, start + secs(9));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_holder_that_stands_by_yields_to_one_that_always_works_once_it_was_seen_to_live() {
        let now = Instant::now();
        let always = Candidate { always: true, ..ME };
        let idle = |holder: &str, says: &str, version: &str| {
            let metadata = json!({ "resourceVersion": version, "annotations": { STANDS_BY: says } });
            let lease = json!({ "metadata": metadata, "spec": { "holderIdentity": holder } });
            Sight::Present(Record::read(&lease).unwrap())
        };
        let seen =
            |first: &Sight, then: &Sight| Seen::after(Some(Seen::after(None, first.clone(), now)), then.clone(), now);
        let waits = Next::Wait(DURATION);
        let (one, two) = (idle("other", "other", "1"), idle("other", "other", "2"));
        assert_eq!(next(&seen(&one, &two), always, now), Next::Take);
        assert_eq!(next(&seen(&one, &two), ME, now), waits);
        // It may be a state of old that was put back.
        assert_eq!(next(&seen(&one, &one), always, now), waits);
        assert_eq!(next(&seen(&one, &record("other", 15, "2")), always, now), waits);
        // Left behind by one before, and written back by somebody who does not know it.
        let left = (idle("other", "before", "1"), idle("other", "before", "2"));
        assert_eq!(next(&seen(&left.0, &left.1), always, now), waits);
    }

    #[test]
    fn that_it_stands_by_is_said_and_taken_back_beside_what_others_say() {
        let metadata = json!({ "resourceVersion": "1", "annotations": { "team": "a" } });
        let lease = json!({ "metadata": metadata, "spec": { "holderIdentity": "me" } });
        let record = Record::read(&lease).unwrap();
        let says = record.standing_by(true);
        let object = says.object();
        assert_eq!(
            object["metadata"]["annotations"],
            json!({ "team": "a", STANDS_BY: "me" })
        );
        let read = Record::read(&object).unwrap();
        assert!(read.stands_by);
        let works = Record::of("me", &Sight::Present(read), Timestamp::now()).object();
        assert_eq!(works["metadata"]["annotations"], json!({ "team": "a" }));
    }

    #[test]
    fn what_is_written_replaces_only_what_was_seen_and_keeps_what_others_put_there() {
        let now: Timestamp = "2026-01-02T03:04:05.5Z".parse().unwrap();
        let taken = Record::of("me", &record("other", 40, "7"), now);
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
        let renewed = Record::of("me", &Sight::Present(stored.clone()), now + secs(2));
        assert_eq!((renewed.transitions, &renewed.acquired), (4, &stored.acquired));
        assert_eq!(renewed.object()["metadata"]["resourceVersion"], "8");
        let back = renewed.given_back().object();
        assert_eq!(
            (&back["spec"]["holderIdentity"], &back["spec"]["leaseTransitions"]),
            (&json!(""), &json!(4))
        );
        let first = Record::of("me", &Sight::Absent, now).object();
        assert_eq!(first["metadata"], json!({ "name": NAME }));
    }
}
