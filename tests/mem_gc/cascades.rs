//! The three policies, from an owner to the last of those that depend on it.

use serde_json::json;
use tokio::time::sleep;

use crate::world::{Cluster, Like, held, map_path, never, owned, secs, to, until};

#[tokio::test(start_paused = true)]
async fn dependents_of_an_owner_that_has_gone_go_too_and_what_depends_on_them() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    let child = cluster.map("child", owned([to(&owner, false)])).await;
    cluster.map("grandchild", owned([to(&child, false)])).await;
    cluster.map("stranger", Like::default()).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("owner"), "Background").await;
    for name in ["child", "grandchild"] {
        cluster.gone(name).await;
    }
    assert!(cluster.is_there("stranger").await);
}

#[tokio::test(start_paused = true)]
async fn an_object_born_with_an_owner_that_never_was_is_deleted() {
    let mut cluster = Cluster::new().await;
    cluster.start_synced().await;
    cluster.map("child", owned([never("v1", "ConfigMap", 1)])).await;
    cluster.gone("child").await;
}

#[tokio::test(start_paused = true)]
async fn one_that_still_has_an_owner_stays_and_loses_the_reference_to_the_other() {
    let mut cluster = Cluster::new().await;
    let (one, two) = (
        cluster.map("one", Like::default()).await,
        cluster.map("two", Like::default()).await,
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
async fn an_owner_in_foreground_deletion_goes_after_those_that_block_it() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    cluster.map("child", held([to(&owner, true)])).await;
    cluster.map("other", owned([to(&owner, false)])).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    cluster.gone("other").await;
    until("the child is being deleted", async || {
        let child = cluster.get(&map_path("child")).await.unwrap();
        child["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    sleep(secs(60)).await;
    assert!(cluster.is_there("owner").await);
    cluster.change(&map_path("child"), json!({ "finalizers": null })).await;
    cluster.gone("child").await;
    cluster.gone("owner").await;
}

#[tokio::test(start_paused = true)]
async fn dependents_of_an_owner_that_orphans_stay_without_the_reference() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    for number in 0..100 {
        cluster.map(&format!("child-{number}"), owned([to(&owner, true)])).await;
    }
    cluster.start_synced().await;
    cluster.delete(&map_path("owner"), "Orphan").await;
    cluster.gone("owner").await;
    sleep(secs(60)).await;
    for number in 0..100 {
        let child = cluster.get(&map_path(&format!("child-{number}"))).await.unwrap();
        assert!(child["metadata"]["ownerReferences"].is_null(), "{child}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_circle_of_blocking_references_goes_as_a_whole() {
    let mut cluster = Cluster::new().await;
    cluster.circle().await;
    cluster.start_synced().await;
    cluster.delete(&map_path("a"), "Foreground").await;
    for name in ["a", "b", "c"] {
        cluster.gone(name).await;
    }
}
