//! What is left on this node of pods that are gone: looked for every so often, and taken down like any pod that ends.
//!
//! `look → decide → is it gone? → workers`; what cannot be proven to have been a pod of the API server is told and never
//! touched, and beside a kubelet nothing is.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
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
    watch::{Change, RollCall},
    words::some_of,
    workers::{WorkersHandle, traces},
};

mod decide;
mod unused;

use decide::{Facts, Leftover, Sightings, Verdict};
use unused::Unused;

/// Between two passes. Nothing urgent is found by them.
const EVERY: Duration = Duration::from_secs(30);
/// What a hand-back waits for is called so.
const UNUSED: &str = "volumes that no pod uses";

/// What `status` says of what is left on this node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HouseReport {
    /// Of pods that are gone: taken down soon.
    #[serde(default)]
    pub leftovers: Vec<String>,
    /// Of nobody who can be proven to have been a pod of the API server: left alone.
    #[serde(default)]
    pub strangers: Vec<String>,
    /// Volumes that no pod uses, and why they cannot be taken off the node.
    #[serde(default)]
    pub volumes: Vec<String>,
}

/// Looks for what is left until the agent stops.
pub struct Housekeeping {
    context: Arc<Context>,
    journal: Journal,
    counters: Arc<Counters>,
    guard: Guard,
    calls: RollCall,
    workers: WorkersHandle,
    /// Weak: the map of workers ends with the watch, and not with this.
    changes: mpsc::WeakSender<Change>,
    report: watch::Sender<HouseReport>,
    sightings: Sightings,
    unused: Unused,
}

/// The agent stops.
struct Stopping;

// === impl Housekeeping ===

impl Housekeeping {
    /// A housekeeping that hands what it finds to `changes`.
    pub fn new(
        context: Arc<Context>,
        (journal, counters): (Journal, Arc<Counters>),
        guard: Guard,
        calls: RollCall,
        workers: WorkersHandle,
        changes: mpsc::WeakSender<Change>,
        report: watch::Sender<HouseReport>,
    ) -> Self {
        let storage = Arc::clone(&context.storage);
        Self {
            unused: Unused::new(storage, Arc::clone(&counters), report.clone()),
            context,
            journal,
            counters,
            guard,
            calls,
            workers,
            changes,
            report,
            sightings: Sightings::default(),
        }
    }

    /// Passes, waits, and passes again.
    pub async fn run(mut self) {
        let mut ticks = interval(EVERY);
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
        if guard.why_held().is_some() && !guard.leaves_all_to_a_kubelet() {
            self.sightings = Sightings::default();
            self.unused.forget();
            self.tell(Vec::new(), Vec::new());
            return Ok(());
        }
        let journal = self.journal.clone();
        let seen = journal.all_seen().into_iter();
        let seen = seen.map(|(uid, seen)| (uid.clone(), seen.pod(&uid))).collect();
        let begun = journal.unfinished().into_iter();
        let begun = begun.map(|view| (view.pod.uid.clone(), view.pod)).collect();
        // In this order: whoever was seen is in the roll if he lives, and whoever is not is at the workers' or done. The look
        // comes last, since the roll may have been waited for.
        let roll = self.calls.roll().await.ok_or(Stopping)?;
        let at_work = self.workers.at_work().await.ok_or(Stopping)?;
        let found = match traces::look(&self.context, &self.journal).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "What is left on this node cannot be seen");
                return Ok(());
            }
        };
        let facts = Facts {
            seen,
            begun,
            roll,
            at_work,
            found,
        };
        let before = std::mem::take(&mut self.sightings);
        let (sightings, verdict) = decide::decide(before, &facts, Instant::now());
        let Verdict {
            forget,
            end,
            leftovers,
            strangers,
        } = verdict;
        for uid in forget {
            journal.forget_seen(&uid);
        }
        // Beside a kubelet what is left is not observed, but left to it.
        if guard.why_nothing_begins().is_some() {
            self.unused.forget();
            self.tell(Vec::new(), Vec::new());
            return Ok(());
        }
        self.sightings = sightings;
        self.tell(leftovers, strangers);
        let may_conclude = guard.sighted(facts.unshown(|uid| journal.saw_end(uid))).is_none();
        if may_conclude {
            self.end(end).await?;
        }
        match facts.without_directory() {
            None => match guard.begin(UNUSED.to_owned()) {
                Ok(under_way) if may_conclude => self.unused.release(under_way).await,
                _ => self.unused.forget(),
            },
            // Who uses a volume is told by the directories of pods.
            Some(pod) => self.unused.hold(format!(
                "volumes that nobody uses stay as they are: {pod} lives and has no directory in {}; is --kubelet-root the \
                 kubelet's --root-dir?",
                self.context.kubelet_root.pods().display()
            )),
        }
        Ok(())
    }

    /// Each is asked for by name before it is handed over.
    async fn end(&mut self, leftovers: Vec<Leftover>) -> Result<(), Stopping> {
        for Leftover { pod, traces } in leftovers {
            let PodRef { uid, namespace, name } = &pod;
            let gone = match self.context.api.is_gone(&pod).await {
                Ok(gone) => gone,
                Err(error) => {
                    tracing::debug!(%error, "Whether a pod is gone of which something is left cannot be told yet");
                    return Ok(());
                }
            };
            self.sightings.handed_over(uid, Instant::now());
            if !gone {
                tracing::warn!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, "A list by its name shows a pod that the watch does not know");
                continue;
            }
            self.counters.leftover_found();
            tracing::warn!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, traces, "Something is left of a pod whose object is gone");
            let changes = self.changes.upgrade().ok_or(Stopping)?;
            let change = Change::removed(Arc::new(PodView::remembered(pod)));
            changes.send(change).await.map_err(|_closed| Stopping)?;
        }
        Ok(())
    }

    fn tell(&self, leftovers: Vec<String>, strangers: Vec<String>) {
        self.report.send_if_modified(|report| {
            if report.strangers != strangers && !strangers.is_empty() {
                let (count, some) = (strangers.len(), some_of(strangers.iter().cloned()));
                tracing::info!(
                    count,
                    some,
                    "Something is left here that cannot be proven to be of a pod of the API server, such as of static pods; it is left alone"
                );
            }
            let news = (&report.leftovers, &report.strangers) != (&leftovers, &strangers);
            (report.leftovers, report.strangers) = (leftovers, strangers);
            news
        });
    }
}
