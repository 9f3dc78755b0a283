//! Volumes that no pod uses: observed for a while, then unmounted and unstaged. This runs in its own task, because drivers may hang.
//! Failures are retried with a backoff.

use std::{collections::BTreeMap, sync::Arc};

use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::{
    decide::{INTERVAL, MIN_AGE},
    parts::{HousekeepingParts, LeftoverReport},
};
use crate::{
    counters::Counters,
    tasks::spawn,
    teardown::{
        volumes::{storage::Storage, unstage_unused_volumes},
        work::WorkInProgress,
    },
};

/// Limits the backoff of a volume: it starts with one interval, doubles with each failure, and ends at 8 minutes.
const MAX_DOUBLINGS: u32 = 4;

/// Unmounts and unstages volumes that no pod uses, in at most one task.
#[derive(Default)]
pub(super) struct UnusedVolumes {
    volumes: Volumes,
    task: Option<AbortOnDropHandle<Volumes>>,
    /// The result of the task does not count any more.
    is_stale: bool,
}

/// Unused volumes by name. Pure.
#[derive(Debug, Default)]
struct Volumes(BTreeMap<String, UnusedVolume>);

#[derive(Debug)]
struct UnusedVolume {
    /// Found in this round.
    is_found: bool,
    /// Due in this round.
    is_due: bool,
    failures: u32,
    not_before: Instant,
    /// The last failures.
    why: Vec<String>,
}

// === impl UnusedVolumes ===

impl UnusedVolumes {
    /// Reports the last round and starts another one, unless it is still in progress.
    pub async fn start_round(&mut self, parts: &HousekeepingParts, work: WorkInProgress) {
        match self.task.take() {
            Some(task) if !task.is_finished() => {
                self.task = Some(task);
                return;
            }
            Some(task) => match task.await {
                Ok(stale) if self.is_stale => {
                    for why in stale.why() {
                        tracing::warn!(why, "Unused volume could not be unstaged");
                    }
                }
                Ok(volumes) => self.volumes = volumes,
                Err(error) => tracing::error!(%error, "Task for unused volumes panicked"),
            },
            None => {}
        }
        self.is_stale = false;
        set_report(&parts.report, self.volumes.why());
        let volumes = std::mem::take(&mut self.volumes);
        let storage = Arc::clone(&parts.context.node.storage);
        self.task = Some(spawn(round(storage, Arc::clone(&parts.counters), volumes, work)));
    }

    /// Drops all observations, and reports why, if there is a reason. A call in progress completes, or is stopped by the guard.
    pub fn reset(&mut self, report: &watch::Sender<LeftoverReport>, why: Option<String>) {
        self.volumes = Volumes::default();
        self.is_stale = true;
        set_report(report, why.into_iter().collect());
    }
}

/// Reports the failures, and logs new ones.
fn set_report(report: &watch::Sender<LeftoverReport>, now: Vec<String>) {
    report.send_if_modified(|report| {
        for why in now.iter().filter(|why| !report.unused_volumes.contains(why)) {
            tracing::warn!(why, "Unused volume cannot be unstaged; will retry");
        }
        let changed = report.unused_volumes != now;
        report.unused_volumes = now;
        changed
    });
}

async fn round(storage: Arc<Storage>, counters: Arc<Counters>, mut volumes: Volumes, work: WorkInProgress) -> Volumes {
    let mut may_begin = |volume: &str| storage.effects.check_new().is_ok() && volumes.is_due(volume, Instant::now());
    let failed = unstage_unused_volumes(&storage, &mut may_begin).await;
    drop(work);
    counters.count(|counts| counts.unused_volumes_failed += failed.len() as u64);
    let failed = failed
        .into_iter()
        .map(|(volume, faults)| (volume, faults.iter().map(ToString::to_string).collect()));
    volumes.after(failed.collect(), Instant::now());
    volumes
}

// === impl Volumes ===

impl Volumes {
    /// Whether this volume has been unused for [`MIN_AGE`], and its backoff has expired.
    fn is_due(&mut self, volume: &str, now: Instant) -> bool {
        let idle = self.found(volume.to_owned(), now);
        idle.is_due = now >= idle.not_before;
        idle.is_due
    }

    fn found(&mut self, volume: String, now: Instant) -> &mut UnusedVolume {
        let idle = self.0.entry(volume).or_insert_with(|| UnusedVolume {
            is_found: true,
            is_due: false,
            failures: 0,
            not_before: now + MIN_AGE,
            why: Vec::new(),
        });
        idle.is_found = true;
        idle
    }

    /// Records the failures of a round.
    fn after(&mut self, failed: BTreeMap<String, Vec<String>>, now: Instant) {
        for idle in self.0.values_mut().filter(|idle| idle.is_due) {
            idle.why.clear();
        }
        for (volume, why) in failed {
            let idle = self.found(volume, now);
            let backoff = INTERVAL * 2_u32.pow(idle.failures.min(MAX_DOUBLINGS));
            idle.not_before = idle.not_before.max(now + backoff);
            idle.failures += 1;
            idle.why = why;
        }
        self.0.retain(|_, idle| idle.is_found);
        for idle in self.0.values_mut() {
            (idle.is_found, idle.is_due) = (false, false);
        }
    }

    fn why(&self) -> Vec<String> {
        self.0.values().flat_map(|idle| idle.why.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: &str = "kubernetes.io/csi/d^1";

    /// Seconds at which a volume is tried that fails each time, with a round every 30 s.
    fn tried(rounds: u32, mut used: impl FnMut(u32) -> bool) -> Vec<u32> {
        let (mut volumes, start) = (Volumes::default(), Instant::now());
        let mut times = Vec::new();
        for round in 0..rounds {
            let now = start + round * INTERVAL;
            let mut failed = BTreeMap::new();
            if !used(round) && volumes.is_due(VOLUME, now) {
                times.push(round * 30);
                failed.insert(VOLUME.to_owned(), vec!["no".to_owned()]);
            }
            volumes.after(failed, now);
        }
        times
    }

    #[test]
    fn failing_volume_is_retried_with_a_backoff() {
        let times = tried(200, |_| false);
        assert_eq!(times[..6], [120, 150, 210, 330, 570, 1050]);
        let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses.iter().max(), Some(&480));
    }

    #[test]
    fn use_of_a_volume_resets_its_observation() {
        assert_eq!(tried(8, |round| round == 3), Vec::<u32>::new());
        assert_eq!(tried(9, |round| round == 3), [240]);
    }

    #[test]
    fn failure_is_reported_until_the_volume_is_unstaged_or_used() {
        let (mut volumes, now) = (Volumes::default(), Instant::now());
        let later = now + MIN_AGE;
        volumes.is_due(VOLUME, now);
        volumes.after(BTreeMap::new(), now);
        assert!(volumes.is_due(VOLUME, later));
        volumes.after([(VOLUME.to_owned(), vec!["no".to_owned()])].into(), later);
        assert!(!volumes.is_due(VOLUME, later));
        volumes.after(BTreeMap::new(), later);
        assert_eq!(volumes.why(), ["no"], "during the backoff");
        volumes.after(BTreeMap::new(), later);
        assert_eq!(volumes.why(), [""; 0]);
    }
}
