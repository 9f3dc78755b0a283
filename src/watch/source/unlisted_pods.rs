//! Pods of the runtime that the API server does not show.

use std::{collections::HashSet, sync::Arc};

use super::{PodSource, RoundError};
use crate::{
    handover::guard::UnlistedPods,
    model::pod::{PodRef, PodView},
    teardown::journal::PodJournalExt as _,
    watch::RuntimePodSummary,
    words::some_of,
};

impl PodSource {
    /// Compares the runtime with the known pods. Pods of the API server whose objects are deleted are sent as removed. Unmanaged pods
    /// are reported and left alone.
    pub(super) async fn compare_with_runtime(&mut self) -> Result<(), RoundError> {
        let runtime = Arc::clone(&self.runtime.borrow_and_update());
        let unknown = |pod: &PodRef| {
            !(self.known.contains(&pod.uid)
                || self.journal.knows(&pod.uid)
                || self.unreadable.contains(pod.uid.as_str()))
        };
        let unknown = runtime.pods.values().filter(|runtime_pod| unknown(&runtime_pod.pod));
        // A node without any pod in the API may have joined another cluster. A pod that was listed here before is proof enough: its
        // object was deleted while no agent ran.
        let proven = |runtime_pod: &&RuntimePodSummary| {
            runtime_pod.from_api && (self.known.api_pod_count() > 0 || self.journal.has_seen(&runtime_pod.pod.uid))
        };
        let (suspects, unmanaged): (Vec<_>, Vec<_>) = unknown.partition(proven);
        self.report_unmanaged(unmanaged.into_iter());
        if self.guard.why_blocked().is_some() {
            return Ok(());
        }
        // An outdated list of the runtime may still show a pod whose termination was seen.
        let suspected: HashSet<_> = suspects.iter().map(|runtime_pod| &runtime_pod.pod.uid).collect();
        let from_api = runtime.pods.iter().filter(|(_, runtime_pod)| runtime_pod.from_api);
        let from_api = from_api.filter(|(uid, _)| !self.journal.was_terminating(uid));
        let unlisted = UnlistedPods::of(from_api.map(|(uid, _)| (uid.clone(), suspected.contains(uid))));
        if self.guard.record_unlisted(unlisted).is_some() {
            return Ok(());
        }
        for RuntimePodSummary { pod, .. } in suspects {
            if !self.is_deleted(pod).await? {
                continue;
            }
            tracing::warn!(pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "Pod in the runtime has no object any more; it terminates");
            let change = Arc::new(PodView::identity_only(pod.clone()).gone());
            self.send(Some(change)).await?;
        }
        Ok(())
    }

    fn report_unmanaged<'a>(&self, unmanaged: impl Iterator<Item = &'a RuntimePodSummary>) {
        let mut unmanaged: Vec<_> = unmanaged
            .map(|RuntimePodSummary { pod, .. }| format!("{pod} (UID {})", pod.uid))
            .collect();
        unmanaged.sort_unstable();
        self.report.send_if_modified(|report| {
            let changed = report.unmanaged != unmanaged;
            if changed && !unmanaged.is_empty() {
                let (count, some) = (unmanaged.len(), some_of(unmanaged.iter().cloned()));
                tracing::info!(
                    count,
                    some,
                    "Unmanaged pods in the runtime, such as static pods; they are left alone"
                );
            }
            report.unmanaged = unmanaged;
            changed
        });
    }
}
