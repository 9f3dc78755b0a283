//! The three propagation policies, down to the last dependent.

use serde_json::json;
use tokio::time::sleep;

use crate::world::{Cluster, ObjectSpec, absent_owner, map_path, owned, secs, to, until, with_finalizer};

#[tokio::test(start_paused = true)]
async fn all_dependents_of_a_deleted_owner_are_deleted() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    let child = cluster.map("child", owned([to(&owner, false)])).await;
    cluster.map("grandchild", owned([to(&child, false)])).await;
    cluster.map("stranger", ObjectSpec::default()).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("owner"), "Background").await;
    for name in ["child", "grandchild"] {
        cluster.wait_for_deletion(name).await;
    }
    assert!(cluster.exists("stranger").await);
}

#[tokio::test(start_paused = true)]
async fn an_object_created_with_an_absent_owner_is_deleted() {
    let mut cluster = Cluster::new().await;
    cluster.start_synced().await;
    cluster.map("child", owned([absent_owner("v1", "ConfigMap", 1)])).await;
    cluster.wait_for_deletion("child").await;
}

#[tokio::test(start_paused = true)]
async fn a_dependent_with_a_second_owner_stays_and_drops_the_other_reference() {
    let mut cluster = Cluster::new().await;
    let (one, two) = (
        cluster.map("one", ObjectSpec::default()).await,
        cluster.map("two", ObjectSpec::default()).await,
    );
    cluster.map("child", owned([to(&one, false), to(&two, false)])).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("one"), "Background").await;
    until("one reference is left", async || {
        cluster.owners(&map_path("child")).await == ["two"]
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_in_foreground_deletion_is_deleted_after_its_blocking_dependents() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    cluster.map("child", with_finalizer([to(&owner, true)])).await;
    cluster.map("other", owned([to(&owner, false)])).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    cluster.wait_for_deletion("other").await;
    until("the child is being deleted", async || {
        let child = cluster.get(&map_path("child")).await.unwrap();
        child["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    sleep(secs(60)).await;
    assert!(cluster.exists("owner").await);
    cluster.change(&map_path("child"), json!({ "finalizers": null })).await;
    cluster.wait_for_deletion("child").await;
    cluster.wait_for_deletion("owner").await;
}

#[tokio::test(start_paused = true)]
async fn dependents_of_an_orphaning_owner_stay_and_drop_the_reference() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    for number in 0..100 {
        cluster.map(&format!("child-{number}"), owned([to(&owner, true)])).await;
    }
    cluster.start_synced().await;
    cluster.delete(&map_path("owner"), "Orphan").await;
    cluster.wait_for_deletion("owner").await;
    sleep(secs(60)).await;
    for number in 0..100 {
        let child = cluster.get(&map_path(&format!("child-{number}"))).await.unwrap();
        assert!(child["metadata"]["ownerReferences"].is_null(), "{child}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_ownership_cycle_is_deleted_as_a_whole() {
    let mut cluster = Cluster::new().await;
    cluster.create_cycle().await;
    cluster.start_synced().await;
    cluster.delete(&map_path("a"), "Foreground").await;
    for name in ["a", "b", "c"] {
        cluster.wait_for_deletion(name).await;
    }
}
