//! Leftovers: detects artifacts of deleted pods on this node, and terminates them like any pod.
//!
//! `search → decide → is the object deleted? → workers`. Artifacts without proof that they belong to a pod of the API server are reported
//! and never touched. While a kubelet runs, nothing is removed.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{
    counters::Counters,
    handover::guard::Guard,
    journal::Journal,
    model::pod::{PodRef, PodView},
    teardown::{context::Context, journal::PodJournalExt as _},
    watch::SnapshotHandle,
    words::some_of,
    workers::{WorkersHandle, artifacts},
};

mod decide;
mod report;
mod unused;

pub use report::LeftoverReport;

use decide::{Facts, INTERVAL, Leftover, Observations, Verdict};
use unused::UnusedVolumes;

/// Interval between two searches while a kubelet runs. Then pods of which nothing is left are forgotten, and nothing else is done.
const INTERVAL_BESIDE_KUBELET: Duration = Duration::from_secs(600);
/// Name of this work for people, in a handover.
const UNUSED: &str = "volumes that no pod uses";

/// Searches for leftovers until the agent stops.
pub struct Housekeeping {
    context: Arc<Context>,
    journal: Journal,
    counters: Arc<Counters>,
    guard: Guard,
    snapshots: SnapshotHandle,
    workers: WorkersHandle,
    /// Weak: the workers stop with the watch.
    changes: mpsc::WeakSender<Arc<PodView>>,
    report: watch::Sender<LeftoverReport>,
    observations: Observations,
    unused: UnusedVolumes,
    /// When the artifacts were last searched.
    searched_at: Option<Instant>,
}

/// The agent stops.
struct Stopping;

// === impl Housekeeping ===

impl Housekeeping {
    /// Sends leftovers to `changes`.
    pub fn new(
        context: Arc<Context>,
        (journal, counters): (Journal, Arc<Counters>),
        guard: Guard,
        snapshots: SnapshotHandle,
        workers: WorkersHandle,
        changes: mpsc::WeakSender<Arc<PodView>>,
        report: watch::Sender<LeftoverReport>,
    ) -> Self {
        let storage = Arc::clone(&context.node.storage);
        Self {
            unused: UnusedVolumes::new(storage, Arc::clone(&counters), report.clone()),
            context,
            journal,
            counters,
            guard,
            snapshots,
            workers,
            changes,
            report,
            observations: Observations::default(),
            searched_at: None,
        }
    }

    /// Runs a pass at each interval; few of them search anything while a kubelet runs.
    pub async fn run(mut self) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(Stopping) = self.pass().await {
                return;
            }
        }
    }

    async fn pass(&mut self) -> Result<(), Stopping> {
        let guard = self.guard.clone();
        let is_recent = |at: Instant| at.elapsed() < INTERVAL_BESIDE_KUBELET;
        let may_forget = guard.is_blocked_by_kubelet() && !self.searched_at.is_some_and(is_recent);
        if guard.why_blocked().is_some() && !may_forget {
            self.observations = Observations::default();
            self.unused.reset();
            self.set_report(Vec::new(), Vec::new());
            return Ok(());
        }
        let began = Instant::now();
        let journal = self.journal.clone();
        let seen = journal.all_seen().into_iter();
        let seen = seen.map(|(uid, seen)| (uid.clone(), seen.pod(&uid))).collect();
        let begun = journal.unfinished().into_iter();
        let begun = begun.map(|view| (view.pod.uid.clone(), view.pod)).collect();
        // The order matters: a seen pod is in the snapshot, at a worker, or done. Artifacts come last, because the snapshot may have
        // waited for a list.
        let snapshot = self.snapshots.snapshot().await.ok_or(Stopping)?;
        let with_worker = self.workers.terminating_uids().await.ok_or(Stopping)?;
        let found = match artifacts::scan(&self.context, &self.journal).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "Search for leftovers failed; will retry");
                return Ok(());
            }
        };
        self.searched_at = Some(began);
        let facts = Facts {
            seen,
            begun,
            snapshot,
            with_worker,
            found,
        };
        let before = std::mem::take(&mut self.observations);
        let (observations, verdict) = decide::decide(before, &facts, Instant::now());
        let Verdict {
            forget,
            terminate,
            leftovers,
            unmanaged,
        } = verdict;
        for uid in forget {
            journal.forget_seen(&uid);
        }
        // Leftovers are the kubelet's while one runs.
        if guard.why_no_new_work().is_some() {
            self.unused.reset();
            self.set_report(Vec::new(), Vec::new());
            return Ok(());
        }
        self.observations = observations;
        self.set_report(leftovers, unmanaged);
        let may_conclude = guard
            .record_unlisted(facts.unlisted(|uid| journal.was_terminating(uid)))
            .is_none();
        if may_conclude {
            self.terminate(terminate).await?;
        }
        match facts.without_directory() {
            None => match guard.begin(UNUSED.to_owned()) {
                Ok(work) if may_conclude => self.unused.start_round(work).await,
                _ => self.unused.reset(),
            },
            // Users of a volume are detected by the directories of pods.
            Some(pod) => self.unused.block(format!(
                "unused volumes stay as they are: {pod} exists and has no directory in {}; is --kubelet-root the \
                 kubelet's --root-dir?",
                self.context.node.storage.root.pods().display()
            )),
        }
        Ok(())
    }

    /// Sends leftovers to the workers. Each deletion is first confirmed by a list of the pod's name.
    async fn terminate(&mut self, leftovers: Vec<Leftover>) -> Result<(), Stopping> {
        for Leftover { pod, artifacts } in leftovers {
            let PodRef { uid, namespace, name } = &pod;
            let is_deleted = match self.context.api.is_deleted(&pod).await {
                Ok(is_deleted) => is_deleted,
                Err(error) => {
                    tracing::debug!(%error, "Deletion of a pod with leftovers cannot be confirmed; will retry");
                    return Ok(());
                }
            };
            self.observations.restart(uid, Instant::now());
            if !is_deleted {
                tracing::warn!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, "A list by its name shows a pod that the watch does not know");
                continue;
            }
            self.counters.leftover_found();
            tracing::warn!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, artifacts, "Deleted pod has leftovers; they are removed");
            let changes = self.changes.upgrade().ok_or(Stopping)?;
            let change = PodView::identity_only(pod).gone();
            changes.send(Arc::new(change)).await.map_err(|_closed| Stopping)?;
        }
        Ok(())
    }

    fn set_report(&self, leftovers: Vec<String>, unmanaged: Vec<String>) {
        self.report.send_if_modified(|report| {
            if report.unmanaged != unmanaged && !unmanaged.is_empty() {
                let (count, some) = (unmanaged.len(), some_of(unmanaged.iter().cloned()));
                tracing::info!(
                    count,
                    some,
                    "Artifacts of unmanaged pods, such as static pods; they are left alone"
                );
            }
            let changed = (&report.leftovers, &report.unmanaged) != (&leftovers, &unmanaged);
            (report.leftovers, report.unmanaged) = (leftovers, unmanaged);
            changed
        });
    }
}
