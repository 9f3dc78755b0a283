//! API and journal for readers: writes are refused or ignored, so that a diagnosis cannot change anything by mistake.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt as _, ready};
use serde_json::Value;

use super::{
    boundary::{ApiFailure, PodApi},
    journal::{PodEntry, PodJournal},
};
use crate::{
    model::{
        failure::BLOCKED,
        pod::{PodObject, PodRef, PodUid, PodView},
    },
    node::{plugins::ClaimRef, superblock::FileSystem},
};

/// Passes reads on, and refuses writes.
pub struct ReadOnlyApi(pub Arc<dyn PodApi>);

/// Passes reads on, and ignores changes.
pub struct ReadOnlyJournal(pub Arc<dyn PodJournal>);

fn refused(verb: &str) -> ApiFailure {
    ApiFailure {
        code: None,
        cause: format!("{verb} is refused: only reads are allowed here"),
        reason: BLOCKED.into(),
        retry_after: None,
    }
}

// === impl ReadOnlyApi ===

impl PodApi for ReadOnlyApi {
    fn pod<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<PodObject>, ApiFailure>> {
        self.0.pod(pod)
    }

    fn each_pod<'a>(&'a self, each: &'a mut (dyn FnMut(PodView) + Send)) -> BoxFuture<'a, Result<(), ApiFailure>> {
        self.0.each_pod(each)
    }

    fn reserved_for<'a>(&'a self, claim: &'a ClaimRef) -> BoxFuture<'a, Result<Vec<String>, ApiFailure>> {
        self.0.reserved_for(claim)
    }

    fn patch_status<'a>(&'a self, _pod: &'a PodRef, _patch: &'a Value) -> BoxFuture<'a, Result<(), ApiFailure>> {
        ready(Err(refused("PATCH"))).boxed()
    }

    fn delete<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<Vec<String>, ApiFailure>> {
        ready(Err(refused("DELETE"))).boxed()
    }

    fn is_deleted<'a>(&'a self, _pod: &'a PodRef) -> BoxFuture<'a, Result<bool, ApiFailure>> {
        // It records what it has seen.
        ready(Err(refused("the proof of a deletion"))).boxed()
    }
}

// === impl ReadOnlyJournal ===

impl PodJournal for ReadOnlyJournal {
    fn read(&self, uid: &PodUid, read: &mut dyn FnMut(&PodEntry)) {
        self.0.read(uid, read);
    }

    fn change(&self, uid: &PodUid, change: &mut dyn FnMut(&mut Option<PodEntry>)) {
        let mut copy = None;
        self.0.read(uid, &mut |entry| copy = Some(entry.clone()));
        change(&mut copy);
    }

    fn pods(&self) -> Vec<PodRef> {
        self.0.pods()
    }

    fn maybe_active_file_systems(&self, volume: &str) -> Vec<FileSystem> {
        self.0.maybe_active_file_systems(volume)
    }

    fn set_maybe_active_file_systems(&self, _volume: &str, _file_systems: Vec<FileSystem>) {}

    fn durable(&self) -> BoxFuture<'_, Result<(), String>> {
        ready(Ok(())).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{journal::Journal, teardown::boundary::NoApi};

    #[tokio::test]
    async fn writes_are_refused_and_the_journal_does_not_change() {
        let pod = PodRef {
            uid: "1".into(),
            namespace: "ns".into(),
            name: "a".into(),
        };
        // It accepts every write.
        let api = ReadOnlyApi(Arc::new(NoApi));
        assert!(api.patch_status(&pod, &Value::Null).await.is_err());
        assert!(api.delete(&pod).await.is_err());
        let journal = Arc::new(Journal::in_memory());
        let read_only = ReadOnlyJournal(Arc::clone(&journal) as Arc<dyn PodJournal>);
        use crate::teardown::journal::PodJournalExt as _;
        read_only.record_request(&pod.uid);
        read_only.record_termination(
            &pod,
            crate::clock::BootClock::of("b", || std::time::Duration::ZERO).now(),
            std::time::Duration::ZERO,
            None,
        );
        assert!(journal.pods().is_empty());
    }
}
