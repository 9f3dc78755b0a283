//! Volumes that no pod uses: observed for a while, taken off the node in a task of their own, whose drivers may hang, and
//! left for longer after each failure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;

use super::{EVERY, HouseReport, decide::MIN_AGE};
use crate::{
    counters::Counters,
    handover::guard::turn::UnderWay,
    teardown::volumes::{Released, release_unused, storage::Storage},
};

/// After a failure a volume is left for as long as between two passes, after each more for twice as long, up to 8 minutes.
const MOST_DOUBLINGS: u32 = 4;

/// Takes off the node what no pod uses; at most one task is at it.
pub(super) struct Unused {
    storage: Arc<Storage>,
    counters: Arc<Counters>,
    report: watch::Sender<HouseReport>,
    volumes: Volumes,
    at_work: Option<AbortOnDropHandle<Volumes>>,
    /// What the task brings back is of no use.
    is_stale: bool,
}

/// What is known of volumes that nobody uses, by what they are called. Pure.
#[derive(Debug, Default)]
struct Volumes(BTreeMap<String, Idle>);

#[derive(Debug)]
struct Idle {
    /// Nobody has used it since.
    since: Instant,
    /// It was come by in this round.
    seen: bool,
    /// It was its turn in this round.
    tried: bool,
    failures: u32,
    not_before: Instant,
    /// Why it could not be taken off.
    why: Vec<String>,
}

// === impl Unused ===

impl Unused {
    pub fn new(storage: Arc<Storage>, counters: Arc<Counters>, report: watch::Sender<HouseReport>) -> Self {
        Self {
            storage,
            counters,
            report,
            volumes: Volumes::default(),
            at_work: None,
            is_stale: false,
        }
    }

    /// Has them taken off the node, unless that goes on yet.
    pub async fn release(&mut self, under_way: UnderWay) {
        match self.at_work.take() {
            Some(task) if !task.is_finished() => {
                self.at_work = Some(task);
                return;
            }
            Some(task) => match task.await {
                Ok(_) if self.is_stale => {}
                Ok(volumes) => self.volumes = volumes,
                Err(error) => tracing::error!(%error, "Taking unused volumes off the node has panicked"),
            },
            None => {}
        }
        self.is_stale = false;
        let volumes = std::mem::take(&mut self.volumes);
        let round = round(
            Arc::clone(&self.storage),
            Arc::clone(&self.counters),
            self.report.clone(),
            volumes,
            under_way,
        );
        self.at_work = Some(AbortOnDropHandle::new(tokio::spawn(round)));
    }

    /// What was observed so far means nothing any more. A call that is on its way comes to its end, or to the gate of effects.
    pub fn forget(&mut self) {
        self.drop_all();
        tell(&self.report, Vec::new());
    }

    /// The same, and why.
    pub fn hold(&mut self, why: String) {
        self.drop_all();
        tell(&self.report, vec![why]);
    }

    fn drop_all(&mut self) {
        self.volumes = Volumes::default();
        self.is_stale = true;
    }
}

async fn round(
    storage: Arc<Storage>,
    counters: Arc<Counters>,
    report: watch::Sender<HouseReport>,
    mut volumes: Volumes,
    under_way: UnderWay,
) -> Volumes {
    let mut may_begin = |volume: &str| under_way.may_begin_more() && volumes.is_due(volume, Instant::now());
    let Released { report: done, failed } = release_unused(&storage, &mut may_begin).await;
    drop(under_way);
    if done.unmounted > 0 {
        tracing::warn!(
            mounts = done.unmounted,
            "Volumes that no pod of this node used any more are unstaged"
        );
    }
    failed.keys().for_each(|_| counters.unused_volume_failed());
    let failed = failed
        .into_iter()
        .map(|(volume, faults)| (volume, faults.iter().map(ToString::to_string).collect()));
    volumes.after(failed.collect(), Instant::now());
    tell(&report, volumes.why());
    volumes
}

/// For people: in the log what is new, in the report all of it.
fn tell(report: &watch::Sender<HouseReport>, now: Vec<String>) {
    report.send_if_modified(|report| {
        let known: BTreeSet<_> = report.volumes.iter().collect();
        for why in now.iter().filter(|why| !known.contains(why)) {
            tracing::warn!(
                why,
                "Volumes that no pod uses cannot be taken off the node; it is tried again"
            );
        }
        let news = report.volumes != now;
        report.volumes = now;
        news
    });
}

// === impl Volumes ===

impl Volumes {
    /// Whether nobody has used this volume for long, and it is its turn.
    fn is_due(&mut self, volume: &str, now: Instant) -> bool {
        let idle = self.0.entry(volume.to_owned()).or_insert_with(|| Idle::new(now));
        idle.seen = true;
        idle.tried = now.saturating_duration_since(idle.since) >= MIN_AGE && now >= idle.not_before;
        idle.tried
    }

    /// What came of a round.
    fn after(&mut self, failed: BTreeMap<String, Vec<String>>, now: Instant) {
        for idle in self.0.values_mut().filter(|idle| idle.tried) {
            idle.why.clear();
        }
        for (volume, why) in failed {
            let idle = self.0.entry(volume).or_insert_with(|| Idle::new(now));
            idle.seen = true;
            idle.not_before = now + EVERY * 2_u32.pow(idle.failures.min(MOST_DOUBLINGS));
            idle.failures += 1;
            idle.why = why;
        }
        self.0.retain(|_, idle| idle.seen);
        for idle in self.0.values_mut() {
            (idle.seen, idle.tried) = (false, false);
        }
    }

    fn why(&self) -> Vec<String> {
        self.0.values().flat_map(|idle| idle.why.iter().cloned()).collect()
    }
}

// === impl Idle ===

impl Idle {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            seen: false,
            tried: false,
            failures: 0,
            not_before: now,
            why: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: &str = "kubernetes.io/csi/d^1";

    /// After how many seconds a volume is tried that fails each time, with a round every 30 s.
    fn tried(rounds: u32, mut used: impl FnMut(u32) -> bool) -> Vec<u32> {
        let (mut volumes, start) = (Volumes::default(), Instant::now());
        let mut times = Vec::new();
        for round in 0..rounds {
            let now = start + round * EVERY;
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
    fn a_volume_that_fails_is_tried_after_a_while_and_then_less_and_less_often() {
        let times = tried(200, |_| false);
        assert_eq!(times[..6], [120, 150, 210, 330, 570, 1050]);
        let pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(pauses.iter().max(), Some(&480));
    }

    #[test]
    fn a_volume_that_was_used_in_between_is_observed_anew() {
        assert_eq!(tried(8, |round| round == 3), Vec::<u32>::new());
        assert_eq!(tried(9, |round| round == 3), [240]);
    }

    #[test]
    fn why_it_failed_is_told_until_it_has_gone_or_is_used() {
        let (mut volumes, now) = (Volumes::default(), Instant::now());
        let later = now + MIN_AGE;
        volumes.is_due(VOLUME, now);
        volumes.after(BTreeMap::new(), now);
        assert!(volumes.is_due(VOLUME, later));
        volumes.after([(VOLUME.to_owned(), vec!["no".to_owned()])].into(), later);
        assert!(!volumes.is_due(VOLUME, later));
        volumes.after(BTreeMap::new(), later);
        assert_eq!(volumes.why(), ["no"], "while it waits for its turn");
        volumes.after(BTreeMap::new(), later);
        assert_eq!(volumes.why(), [""; 0]);
    }
}
