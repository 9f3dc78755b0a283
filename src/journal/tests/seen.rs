//! Pods that the API server has shown, after restarts and damage.

use super::*;
use crate::model::mismatch::{Mismatch, MismatchKind};

fn view(uid: &str, mirror: bool) -> PodView {
    PodView {
        mirror,
        ..PodView::identity_only(pod(uid))
    }
}

fn known(journal: &Journal) -> Vec<(String, bool)> {
    let seen = journal.all_seen().into_iter();
    seen.map(|(uid, seen)| (uid.to_string(), seen.terminates)).collect()
}

#[tokio::test]
async fn seen_pods_survive_a_restart_until_they_are_removed_and_mirrors_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let journal = reopened(dir.path(), async |journal: &Journal| {
        for uid in ["a", "b", "c"] {
            journal.record_seen(&view(uid, false), false);
        }
        journal.record_seen(&view("mirror", true), false);
        journal.record_seen(&view("b", false), true);
        journal.forget_seen(&"c".into());
    })
    .await;
    assert_eq!(known(&journal), [("a".to_owned(), false), ("b".to_owned(), true)]);
    let (uid, seen) = journal.all_seen().swap_remove(0);
    assert_eq!(seen.pod(&uid), pod("a"));
}

#[tokio::test(start_paused = true)]
async fn unchanged_pod_is_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path(), &machine("m1")).unwrap();
    journal.record_seen(&view("a", false), false);
    journal.durable().await.unwrap();
    let before = journal.commit_durations().count();
    for _ in 0..5 {
        journal.record_seen(&view("a", false), false);
        journal.durable().await.unwrap();
    }
    assert_eq!(journal.commit_durations().count(), before);
}

#[tokio::test]
async fn approval_survives_a_restart_and_is_removed_with_its_pod() {
    let dir = tempfile::tempdir().unwrap();
    let at = now();
    let approval = |facts: &str| MismatchApproval {
        mismatch: Mismatch::new(MismatchKind::NoCgroup, [facts.to_owned()]),
        at: at.clone(),
    };
    let journal = reopened(dir.path(), async |journal: &Journal| {
        journal.record_approval(&"b".into(), approval("of a pod that does not end"));
        journal.record_termination(&pod("a"), at.clone(), Duration::from_secs(10), None);
        journal.record_approval(&"a".into(), approval("first"));
        journal.record_approval(&"a".into(), approval("second"));
    })
    .await;
    assert_eq!(journal.approvals(&"a".into()), [approval("second")]);
    assert!(!journal.knows(&"b".into()));
    journal.forget(&"a".into());
    assert!(journal.approvals(&"a".into()).is_empty());
}
