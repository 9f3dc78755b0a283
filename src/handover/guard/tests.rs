//! Approvals of the holds of the whole node.

use super::{absence::ListComparison, kubelet::tests::machine, *};
use crate::model::blocked::NodeMismatch;

/// Records a list that lacks all pods.
fn list_without(guard: &Guard, version: u64, missing: &[&str]) {
    let comparison = ListComparison {
        listed: 0,
        alive: missing.len(),
        missing: missing.iter().map(|&uid| uid.into()).collect(),
        needs_no_approval: false,
    };
    guard
        .absence
        .record_list(Some(version), guard.absence.highest(), Some(comparison));
}

fn digest(guard: &Guard) -> String {
    let holds = guard.safety_holds();
    assert_eq!(holds.len(), 1, "{holds:?}");
    holds[0].digest.clone()
}

#[tokio::test]
async fn approval_does_not_cover_pods_that_a_later_list_lacks() {
    let (_proc, guard) = machine();
    list_without(&guard, 5, &["1"]);
    let shown = digest(&guard);
    list_without(&guard, 6, &["1", "2"]);
    assert!(guard.absence.approve(&shown).await.is_none());
    assert!(guard.absence.hold_reason().is_some());
    assert!(guard.absence.approve(&digest(&guard)).await.is_some());
    assert_eq!(guard.absence.hold_reason(), None);
}

#[tokio::test]
async fn approval_does_not_cover_a_reason_of_another_kind() {
    let (_proc, guard) = machine();
    list_without(&guard, 200, &["1"]);
    let shown = digest(&guard);
    list_without(&guard, 7, &["1"]);
    assert!(guard.safety_holds()[0].why.contains("was etcd restored?"));
    assert!(guard.absence.approve(&shown).await.is_none());
    assert_eq!(guard.absence.highest(), 200);
}

#[tokio::test]
async fn approval_does_not_cover_a_node_that_was_read_later() {
    let (_proc, guard) = machine();
    let read = |uid: &str| {
        guard.identity.set(Err(NodeMismatch::other_uid("node-1", uid, "old")));
    };
    read("a");
    let shown = digest(&guard);
    read("b");
    assert!(guard.approve_node_uid(&shown).await.is_none());
    assert!(guard.identity.other_uid().is_some());
    assert!(guard.approve_node_uid(&digest(&guard)).await.is_some());
    assert!(guard.identity.other_uid().is_none());
}
