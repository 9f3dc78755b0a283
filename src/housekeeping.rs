//! Leftovers: detects artifacts of deleted pods on this node, and terminates them like any pod.
//!
//! `search → decide → is the object deleted? → workers`. Artifacts without proof that they belong to a pod of the API server are reported
//! and never touched. While a kubelet runs, nothing is removed.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::{
    model::pod::{PodRef, PodUid, PodView},
    node::effects::Gate as _,
    words::some_of,
    workers::artifacts,
};

mod decide;
mod parts;
mod unused;

use decide::{Facts, INTERVAL, Leftover, Observations};
pub use parts::{HousekeepingParts, LeftoverReport};
use unused::UnusedVolumes;

/// Interval between two searches while a kubelet runs. Then pods of which nothing is left are forgotten, and nothing else is done.
const INTERVAL_BESIDE_KUBELET: Duration = Duration::from_secs(600);
/// Name of this work for people, in a handover.
const UNUSED: &str = "volumes that no pod uses";

/// Searches for leftovers until the agent stops.
pub struct Housekeeping {
    parts: HousekeepingParts,
    observations: Observations,
    unused: UnusedVolumes,
    /// When the artifacts were last searched.
    searched_at: Option<Instant>,
}

/// The agent stops.
struct Stopping;

// === impl Housekeeping ===

impl Housekeeping {
    /// A search that has observed nothing yet.
    pub fn new(parts: HousekeepingParts) -> Self {
        Self {
            parts,
            unused: UnusedVolumes::default(),
            observations: Observations::default(),
            searched_at: None,
        }
    }

    /// Runs a pass at each interval, and when the gate opens; few of them search anything while a kubelet runs.
    pub async fn run(mut self) {
        // The Node has been read then, and the first list is complete.
        if self.parts.snapshots.snapshot().await.is_none() {
            return;
        }
        let guard = self.parts.guard.clone();
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let changed = guard.changed();
            if let Err(Stopping) = self.pass().await {
                return;
            }
            tokio::select! {
                biased;
                _ = ticks.tick() => {}
                // Orphans that were left to a kubelet until now.
                () = changed => {}
            }
        }
    }

    async fn pass(&mut self) -> Result<(), Stopping> {
        let guard = self.parts.guard.clone();
        let is_recent = |at: Instant| at.elapsed() < INTERVAL_BESIDE_KUBELET;
        let may_forget =
            matches!(guard.check(), Err(blocked) if blocked.is_kubelet()) && !self.searched_at.is_some_and(is_recent);
        if guard.check().is_err() && !may_forget {
            self.reset();
            return self.parts.workers.ask(|pods| pods.forget_gone()).await.ok_or(Stopping);
        }
        let Some(facts) = self.search().await? else {
            return Ok(());
        };
        if let Some(error) = &facts.unread {
            tracing::warn!(%error, "Disk cannot be searched for leftovers; will retry");
        }
        let before = std::mem::take(&mut self.observations);
        let (observations, verdict) = decide::decide(before, &facts, Instant::now());
        for uid in verdict.forget {
            self.parts.guard.journal.forget_seen(&uid);
        }
        // Leftovers are the kubelet's while one runs.
        if guard.check_new().is_err() {
            self.reset();
            return Ok(());
        }
        self.observations = observations;
        self.set_report(verdict.leftovers, verdict.unmanaged);
        let was_terminating = |uid: &PodUid| self.parts.guard.journal.was_terminating(uid);
        let hold = guard.absence.record_unlisted(facts.unlisted(was_terminating));
        if hold.is_none() {
            self.terminate(verdict.terminate).await?;
        }
        let context = &self.parts.context;
        // Users of a volume are detected by the directories of pods.
        let why = match (&facts.unread, facts.without_directory()) {
            (Some(why), _) => format!("the disk cannot be searched: {why}"),
            (None, Some(pod)) => format!(
                "{pod} exists and has no directory in {}; is --kubelet-root the kubelet's --root-dir?",
                context.node.storage.root.pods().display()
            ),
            (None, None) => {
                match context.work.begin(&context.node.effects, UNUSED.to_owned()) {
                    Ok(work) if hold.is_none() => self.unused.start_round(&self.parts, work).await,
                    _ => self.unused.reset(&self.parts.report, None),
                }
                return Ok(());
            }
        };
        let why = format!("unused volumes stay as they are: {why}");
        self.unused.reset(&self.parts.report, Some(why));
        Ok(())
    }

    /// What is on the node and known of it now; `None` if the runtime does not answer.
    async fn search(&mut self) -> Result<Option<Facts>, Stopping> {
        let began = Instant::now();
        let seen = self.parts.guard.journal.all_seen().into_iter();
        let seen = seen.map(|(uid, seen)| (uid.clone(), seen.pod(&uid))).collect();
        let begun = self.parts.guard.journal.unfinished().into_iter();
        let mut begun: BTreeMap<_, _> = begun.map(|view| (view.pod.uid.clone(), view.pod)).collect();
        // The order matters: a seen pod is in the snapshot, at a worker, or done. Artifacts come last, because the snapshot may have
        // waited for a list.
        let snapshot = self.parts.snapshots.snapshot().await.ok_or(Stopping)?;
        let with_worker = self.parts.workers.ask(|pods| {
            // What is found of them from now on is a leftover.
            pods.forget_gone();
            pods.terminating_uids()
        });
        let with_worker = with_worker.await.ok_or(Stopping)?;
        let (found, unread) = match artifacts::scan(&self.parts.context).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "Search for leftovers failed; will retry");
                return Ok(None);
            }
        };
        // Their workers may have finished meanwhile.
        begun.retain(|uid, _| self.parts.guard.journal.knows(uid));
        self.searched_at = Some(began);
        Ok(Some(Facts {
            seen,
            begun,
            snapshot,
            with_worker,
            found,
            unread,
        }))
    }

    /// Nothing may be removed now.
    fn reset(&mut self) {
        self.observations = Observations::default();
        self.unused.reset(&self.parts.report, None);
        self.set_report(Vec::new(), Vec::new());
    }

    /// Sends leftovers to the workers. Each deletion is first confirmed by a list of the pod's name.
    async fn terminate(&mut self, leftovers: Vec<Leftover>) -> Result<(), Stopping> {
        for Leftover { pod, artifacts } in leftovers {
            let PodRef { uid, namespace, name } = &pod;
            let is_deleted = match self.parts.context.api.is_deleted(&pod).await {
                Ok(is_deleted) => is_deleted,
                Err(error) => {
                    tracing::warn!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, %error, "Deletion of a pod with leftovers cannot be confirmed; will retry");
                    continue;
                }
            };
            self.observations.restart(uid, Instant::now());
            if !is_deleted {
                tracing::warn!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, "A list by its name shows a pod that the watch does not know");
                continue;
            }
            self.parts.counters.count(|counts| counts.leftovers_found += 1);
            tracing::warn!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, artifacts, "Deleted pod has leftovers; they are removed");
            let changes = self.parts.changes.upgrade().ok_or(Stopping)?;
            let change = PodView::identity_only(pod).gone();
            changes.send(Arc::new(change)).await.map_err(|_closed| Stopping)?;
        }
        Ok(())
    }

    fn set_report(&self, leftovers: Vec<String>, unmanaged: Vec<String>) {
        self.parts.report.send_if_modified(|report| {
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
