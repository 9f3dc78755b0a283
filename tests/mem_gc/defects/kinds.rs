//! Kinds that are removed and defined again.

use crate::prelude::*;

fn requests_for(cluster: &Cluster, group: &str) -> usize {
    let all = cluster.requests();
    all.iter().filter(|it| it.asked.path.contains(group)).count()
}

fn is_watched(cluster: &Cluster, group: &str) -> bool {
    cluster.report().kinds.iter().any(|it| it.resource.contains(group))
}

#[tokio::test(start_paused = true)]
async fn a_removed_kind_gets_no_requests() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    things.create(&cluster, "one", ObjectSpec::default()).await;
    cluster.start_synced().await;
    things.undefine(&cluster).await;
    until!(!is_watched(&cluster, "a.test"));
    sleep(secs(1)).await;
    cluster.api.forget_requests();
    sleep(secs(600)).await;
    assert_eq!(requests_for(&cluster, "a.test"), 0);
    assert_eq!(cluster.unsynced(), None);
}

#[tokio::test(start_paused = true)]
async fn events_of_a_kind_that_returns_are_counted_once() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    cluster.start_synced().await;
    for _ in 0..2 {
        things.undefine(&cluster).await;
        until!(!is_watched(&cluster, "a.test"));
        things.define_now(&cluster).await;
        things.watched(&cluster).await;
    }
    sleep(secs(5)).await;
    let before = cluster.counts().events;
    for number in 0..10 {
        things
            .create(&cluster, &format!("thing-{number}"), ObjectSpec::default())
            .await;
    }
    sleep(secs(5)).await;
    assert_eq!(cluster.counts().events, before + 10);
}

#[tokio::test(start_paused = true)]
async fn objects_of_a_removed_kind_do_not_block_and_their_dependents_are_kept_and_reported() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    things
        .create(&cluster, "thing", with_finalizer([to(&owner, true)]))
        .await;
    let other = things.create(&cluster, "other", ObjectSpec::default()).await;
    cluster.map("kept", owned([to(&other, false)])).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    until!(!cluster.report().deletions.is_empty());
    sleep(secs(30)).await;
    assert!(cluster.exists("owner").await);
    // The collector does not see its deletion.
    cluster.inject(Fault::new(Action::StallWatch).resource("things"));
    cluster
        .change(&things.path("thing"), json!({ "finalizers": null }))
        .await;
    things.undefine(&cluster).await;
    cluster.wait_for_deletion("owner").await;
    sleep(secs(600)).await;
    assert!(cluster.exists("kept").await);
    let kept = cluster.report().kept;
    assert!(kept.len() == 1 && kept[0].why.starts_with("1 dependent:"), "{kept:?}");
    assert_eq!(kept[0].object, "Thing.a.test default/other");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_discovery_reports_empty_stays_watched_while_its_route_answers() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let owner = things.create(&cluster, "owner", ObjectSpec::default()).await;
    cluster.map("child", owned([to(&owner, false)])).await;
    cluster.map("foreground", ObjectSpec::default()).await;
    cluster.start_synced().await;
    cluster.api.set_undiscoverable("a.test/v1", true);
    sleep(secs(120)).await;
    assert!(is_watched(&cluster, "a.test"));
    cluster.map("late", owned([to(&owner, false)])).await;
    sleep(secs(30)).await;
    assert!(cluster.exists("child").await && cluster.exists("late").await);
    cluster.delete(&things.path("owner"), "Background").await;
    cluster.wait_for_deletion("child").await;
    cluster.wait_for_deletion("late").await;
}

/// Creates a dependent of a kind that was defined after the last discovery, and is not watched yet.
async fn dependent_of_a_new_kind(cluster: &mut Cluster, spec: impl Fn([serde_json::Value; 1]) -> ObjectSpec) -> Things {
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    cluster.start_synced().await;
    sleep(secs(5)).await;
    let things = Things::define(cluster, "a.test", true, &["v1"]).await;
    things.create(cluster, "thing", spec([to(&owner, true)])).await;
    things
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_waits_for_a_blocking_dependent_of_a_new_kind() {
    let mut cluster = Cluster::new().await;
    let things = dependent_of_a_new_kind(&mut cluster, with_finalizer).await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    sleep(secs(60)).await;
    assert!(cluster.exists("owner").await);
    let thing = cluster.get(&things.path("thing")).await.unwrap();
    assert!(thing["metadata"]["deletionTimestamp"].is_string(), "{thing}");
    cluster
        .change(&things.path("thing"), json!({ "finalizers": null }))
        .await;
    things.wait_for_deletion(&cluster, "thing").await;
    cluster.wait_for_deletion("owner").await;
}

#[tokio::test(start_paused = true)]
async fn an_orphaning_owner_waits_for_dependents_of_a_new_kind() {
    let mut cluster = Cluster::new().await;
    let things = dependent_of_a_new_kind(&mut cluster, owned).await;
    cluster.delete(&map_path("owner"), "Orphan").await;
    cluster.wait_for_deletion("owner").await;
    assert!(cluster.owners(&things.path("thing")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_reference_to_an_instance_deleted_with_its_definition_is_dropped() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let (thing, map) = (
        things.create(&cluster, "thing", ObjectSpec::default()).await,
        cluster.map("map", ObjectSpec::default()).await,
    );
    cluster.map("child", owned([to(&thing, false), to(&map, false)])).await;
    cluster.start_synced().await;
    // It fails until the kind is removed.
    cluster.inject(Fault::status(500).verb("patch").resource("configmaps"));
    things.undefine(&cluster).await;
    sleep(secs(90)).await;
    cluster.api.faults().clear();
    until!(cluster.owners(&map_path("child")).await == ["map"]);
}
