//! Exit codes of the containers: read, recorded in the journal, and durable before what they are read from is removed.

use std::{
    fmt::Display,
    sync::{Arc, atomic::Ordering},
};

use super::Worker;
use crate::{
    model::{failure::Failure, pod::PodView, trace::Step},
    node::{
        checkpoint::{self, JOURNAL},
        cri::types::{Container, RuntimePod},
    },
    teardown::{exits::Exits, journal::PodJournalExt as _, recorded_exits},
};

/// After so many failed reads an exit code counts as unknown.
const MAX_READS: u32 = 5;

impl Worker {
    /// # Errors
    /// As long as the exit code of a container may still be read. After [`MAX_READS`] attempts it is unknown.
    pub(super) async fn check_exits_are_read(
        &self,
        view: &Arc<PodView>,
        stopped: &RuntimePod,
    ) -> Result<(), Vec<Failure>> {
        let exits = self.context.journal.exits(&view.pod.uid);
        if recorded_exits::unread(stopped, &exits, None).is_none() {
            return Ok(());
        }
        // The API may have an exit that the runtime does not.
        let latest = self.latest(view).await.ok();
        let status = latest.as_ref().and_then(|(latest, _)| latest.object.status());
        let Some(name) = recorded_exits::unread(stopped, &exits, status) else {
            return Ok(());
        };
        let reads = self.failed_reads.fetch_add(1, Ordering::Relaxed) + 1;
        if reads >= MAX_READS {
            tracing::warn!(
                container = name,
                reads,
                "Exit code of a container cannot be read; it is unknown"
            );
            return Ok(());
        }
        let why = format!(
            "its exit code cannot be read from the runtime (attempt {reads} of {MAX_READS}); after that it counts as unknown"
        );
        Err(vec![Failure::new(Step::Status, name, why)])
    }

    /// Records the exits, so that the status is complete even if the runtime forgets the containers. It does not wait for the disk:
    /// most often the API server has the status at once.
    pub(super) async fn record_exits(&self, view: &PodView, runtime_pod: &RuntimePod, stopped: &RuntimePod) {
        let exited: Vec<_> = self.unrecorded_exits(view, runtime_pod, stopped).cloned().collect();
        if exited.is_empty() {
            return;
        }
        let read = move || exited.iter().map(recorded_exits::read).collect::<Exits>();
        match self.context.node.reads.run_blocking(read).await {
            Ok(exits) => self.context.journal.record_exits(&view.pod.uid, exits),
            Err(error) => {
                tracing::error!(%error, "Exits of containers are not recorded: if the runtime forgets them, their exit codes are unknown");
            }
        }
    }

    /// Exited containers that the journal should have, and lacks.
    fn unrecorded_exits<'a>(
        &self,
        view: &PodView,
        runtime_pod: &'a RuntimePod,
        stopped: &'a RuntimePod,
    ) -> impl Iterator<Item = &'a Container> {
        let known = self.context.journal.exits(&view.pod.uid);
        recorded_exits::exited(runtime_pod, stopped).filter(move |container| !known.contains_key(&container.id))
    }

    /// Waits until the disk has the exits with their termination messages.
    ///
    /// # Errors
    /// If one could not be read, or the journal cannot be written.
    pub(super) async fn sync_exits(
        &self,
        view: &PodView,
        runtime_pod: &RuntimePod,
        stopped: &RuntimePod,
    ) -> Result<(), Failure> {
        const WHAT: &str = "the exits of the containers";
        if let Some(container) = self.unrecorded_exits(view, runtime_pod, stopped).next() {
            return Err(unrecorded(WHAT, &format_args!("{} could not be read", container.name)));
        }
        self.sync("exits", WHAT).await
    }

    /// Waits until the disk has all changes of the journal. `what` is for the error.
    pub(super) async fn sync(&self, checkpoint: &str, what: &str) -> Result<(), Failure> {
        checkpoint::before(JOURNAL, &checkpoint);
        let recorded = self.context.journal.durable().await;
        checkpoint::after(JOURNAL, &checkpoint);
        recorded.map_err(|error| unrecorded(what, &error))
    }
}

fn unrecorded(what: &str, why: &dyn Display) -> Failure {
    let why = format!("the node is not cleaned up until the journal on disk has recorded {what}: {why}");
    Failure::new(Step::Status, "", why)
}
