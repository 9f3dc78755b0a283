//! What the runtime holds besides the pods that the API server shows.

use std::{collections::HashSet, sync::Arc};

use super::{Closed, PodSource};
use crate::{
    api::ApiError,
    handover::guard::Unshown,
    model::pod::{PodRef, PodView},
    teardown::journal::PodJournalExt as _,
    watch::{Change, Sighted},
    words::some_of,
};

impl PodSource {
    /// Pods that a kubelet made by the API server's word and whose objects are gone end here. What else the runtime holds
    /// besides the API server's pods is told, and left alone.
    pub(super) async fn compare_with_runtime(&mut self) -> Result<Result<(), Closed>, ApiError> {
        let runtime = Arc::clone(&self.runtime.borrow_and_update());
        let unknown = |pod: &PodRef| {
            !(self.known.holds(&pod.uid) || self.journal.knows(&pod.uid) || self.unreadable.contains(pod.uid.as_str()))
        };
        let unknown = runtime.pods.values().filter(|sighted| unknown(&sighted.pod));
        // A node of which the API server knows no pod at all may have been put into another cluster, unless that pod was shown
        // here: it ran when its object was deleted, while no agent did.
        let proven = |sighted: &&Sighted| {
            sighted.from_api && (self.known.of_the_api() > 0 || self.journal.has_seen(&sighted.pod.uid))
        };
        let (suspects, strangers): (Vec<_>, Vec<_>) = unknown.partition(proven);
        self.tell_strangers(strangers.into_iter());
        if self.guard.why_held().is_some() {
            return Ok(Ok(()));
        }
        // Of one whose end was seen a look may still show something, and nobody wonders that it is not listed.
        let suspected: HashSet<_> = suspects.iter().map(|sighted| &sighted.pod.uid).collect();
        let from_api = runtime.pods.iter().filter(|(_, sighted)| sighted.from_api);
        let from_api = from_api.filter(|(uid, _)| !self.journal.saw_end(uid));
        let unshown = Unshown::of(from_api.map(|(uid, _)| (uid.clone(), suspected.contains(uid))));
        if self.guard.sighted(unshown).is_some() {
            return Ok(Ok(()));
        }
        for Sighted { pod, .. } in suspects {
            if !self.is_gone(pod).await? {
                continue;
            }
            tracing::warn!(pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "The runtime holds a pod of the API server whose object is gone");
            let change = Change::removed(Arc::new(PodView::remembered(pod.clone())));
            if let Err(Closed) = self.pass_on(Some(change)).await? {
                return Ok(Err(Closed));
            }
        }
        Ok(Ok(()))
    }

    fn tell_strangers<'a>(&self, strangers: impl Iterator<Item = &'a Sighted>) {
        let mut strangers: Vec<_> = strangers
            .map(|Sighted { pod, .. }| format!("{pod} (UID {})", pod.uid))
            .collect();
        strangers.sort_unstable();
        self.report.send_if_modified(|report| {
            let news = report.strangers != strangers;
            if news && !strangers.is_empty() {
                let (count, some) = (strangers.len(), some_of(strangers.iter().cloned()));
                tracing::info!(
                    count,
                    some,
                    "The runtime holds what is no pod of the API server, such as static pods; it is left alone"
                );
            }
            report.strangers = strangers;
            news
        });
    }
}
