//! Observations of terminations by the kubelet. Written lazily, and limited in number and age.

use std::cmp::Reverse;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::{
    Journal,
    contents::{Contents, Row, StoredObservation, Table},
    writer::Write,
};
use crate::model::{foreign::cut, observation::Observation, pod::PodUid};

/// Number of observations to keep.
pub const MAX_OBSERVATIONS: usize = 10_000;
/// Bytes of all observations, which are also in memory. Most have some hundred, and pods decide what theirs contain.
const MAX_BYTES: usize = 8 << 20;
/// Number of differences of one observation, and of its leftovers.
const MAX_ITEMS: usize = 16;
/// Bytes of each text in them.
const MAX_BYTES_OF_TEXT: usize = 512;
/// How long they are kept.
pub const MAX_AGE: SignedDuration = SignedDuration::from_hours(30 * 24);

// === impl Journal ===

impl Journal {
    /// Records an observation, in place of an earlier one of the same pod. `in_progress`: the pod still terminates. It is durable
    /// later.
    pub fn record_observation(&self, observation: Observation, in_progress: bool) {
        let contents = &mut self.state.lock().contents;
        let now = observation.finished_at;
        let stored = StoredObservation::new(observation, in_progress);
        self.send(Write::Row(stored.row()));
        contents.observations.insert(stored.uid(), stored);
        for uid in superfluous(contents, now) {
            contents.observations.remove(&uid);
            self.send(Write::Row(Row::new(
                Table::Observations,
                &uid,
                None::<&StoredObservation>,
            )));
        }
    }

    /// The observation of this pod, unless it is in progress.
    pub fn observation(&self, uid: &PodUid) -> Option<Observation> {
        let state = self.state.lock();
        let stored = state
            .contents
            .observations
            .get(uid)
            .filter(|stored| !stored.in_progress)?;
        Some(stored.observation.clone())
    }

    /// All observations that are not in progress, oldest first.
    pub fn observations(&self) -> Vec<Observation> {
        let state = self.state.lock();
        let stored = state
            .contents
            .observations
            .values()
            .filter(|stored| !stored.in_progress);
        let mut all: Vec<_> = stored.map(|stored| stored.observation.clone()).collect();
        all.sort_by_key(|observation| observation.finished_at);
        all
    }

    /// Ends the observations that an earlier run of the agent has left in progress.
    pub fn end_interrupted_observations(&self) {
        let observations = &mut self.state.lock().contents.observations;
        for stored in observations.values_mut().filter(|stored| stored.in_progress) {
            stored.in_progress = false;
            self.send(Write::Row(stored.row()));
        }
    }
}

// === impl StoredObservation ===

impl StoredObservation {
    pub(super) fn new(observation: Observation, in_progress: bool) -> Self {
        let observation = shortened(observation);
        Self {
            bytes: size(&observation),
            observation,
            in_progress,
        }
    }
}

/// The observation with shortened texts, and with the first differences and leftovers. Differences that are not documented come
/// first.
fn shortened(mut observation: Observation) -> Observation {
    let Observation {
        differences,
        leftovers,
        reason,
        ..
    } = &mut observation;
    differences.sort_by_key(|difference| difference.documented.is_some());
    let texts = differences.iter_mut().flat_map(|it| {
        let optional = [&mut it.kubelet, &mut it.agent, &mut it.documented];
        optional.into_iter().flatten().chain([&mut it.field])
    });
    let texts = texts.chain(leftovers.iter_mut().flat_map(|it| [&mut it.object, &mut it.detail]));
    for text in texts.chain(reason) {
        *text = cut(text, MAX_BYTES_OF_TEXT).into_owned();
    }
    differences.truncate(MAX_ITEMS);
    leftovers.truncate(MAX_ITEMS);
    observation
}

/// Bytes in the journal.
fn size(item: &impl Serialize) -> usize {
    serde_json::to_vec(item).map_or(0, |bytes| bytes.len())
}

/// Observations that are too old, and the oldest ones beyond the limits.
fn superfluous(contents: &Contents, now: Timestamp) -> Vec<PodUid> {
    let limit = now.checked_sub(MAX_AGE).unwrap_or(Timestamp::MIN);
    let mut all: Vec<_> = contents.observations.iter().collect();
    all.sort_by_key(|(_, stored)| Reverse(stored.observation.finished_at));
    let mut bytes = 0;
    let is_superfluous = |(index, (_, stored)): &(usize, (&PodUid, &StoredObservation))| {
        bytes += stored.bytes;
        *index >= MAX_OBSERVATIONS || bytes > MAX_BYTES || stored.observation.finished_at < limit
    };
    let superfluous = all.into_iter().enumerate().filter(is_superfluous);
    superfluous.map(|(_, (uid, _))| uid.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::file::{self, JournalFile},
        model::observation::Verdict,
        node::identity::Identity,
    };

    fn observation(uid: &str, at: Timestamp) -> Observation {
        Observation {
            namespace: "ns".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            deleted_at: None,
            finished_at: at,
            grace_seconds: 30,
            elapsed_ms: 1,
            verdict: Verdict::Same,
            differences: Vec::new(),
            leftovers: Vec::new(),
            reason: None,
        }
    }

    #[test]
    fn oldest_observations_are_dropped_beyond_the_limits_of_number_and_age() {
        let journal = Journal::in_memory();
        let at = |seconds: usize| Timestamp::from_second(1_000_000_000 + seconds as i64).unwrap();
        for index in 0..MAX_OBSERVATIONS + 3 {
            journal.record_observation(observation(&index.to_string(), at(index)), false);
        }
        let all = journal.observations();
        assert_eq!((all.len(), all[0].uid.as_str()), (MAX_OBSERVATIONS, "3"));
        journal.record_observation(observation("later", at(40 * 24 * 3600)), false);
        assert_eq!(journal.observations().len(), 1);
    }

    #[test]
    fn sizes_of_observations_count_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let stored = StoredObservation::new(observation("1", Timestamp::UNIX_EPOCH), false);
        let contents = Contents {
            observations: [(stored.uid(), stored)].into(),
            ..Contents::default()
        };
        file::create_journal(&path, &contents.rows()).unwrap();
        let Ok(JournalFile::Journal(read)) = file::inspect(&path, &Identity::default()) else {
            panic!("it is readable");
        };
        assert_eq!(read.observations, contents.observations);
        assert!(read.observations.values().all(|stored| stored.bytes > 0));
    }

    #[test]
    fn observation_in_progress_is_shown_after_the_next_start_only() {
        let journal = Journal::in_memory();
        journal.record_observation(observation("1", Timestamp::UNIX_EPOCH), true);
        assert!(journal.observations().is_empty() && journal.observation(&"1".into()).is_none());
        journal.end_interrupted_observations();
        assert_eq!(journal.observations().len(), 1);
    }
}
