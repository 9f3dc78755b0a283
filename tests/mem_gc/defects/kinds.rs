//! Kinds that vanish and come back.

use serde_json::json;
use testbed::apiserver::faults::{Action, Fault};
use tokio::time::{Instant, sleep};

use crate::{
    things::Things,
    world::{Cluster, Like, held, map_path, owned, secs, to, until},
};

fn asked_of(cluster: &Cluster, group: &str) -> usize {
    let all = cluster.requests();
    all.iter().filter(|it| it.asked.path.contains(group)).count()
}

fn is_watched(cluster: &Cluster, group: &str) -> bool {
    cluster.report().kinds.iter().any(|it| it.resource.contains(group))
}

#[tokio::test(start_paused = true)]
async fn of_a_kind_that_vanished_nothing_is_asked_any_more() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    things.create(&cluster, "one", Like::default()).await;
    cluster.start_synced().await;
    things.undefine(&cluster).await;
    until("it is not watched", async || !is_watched(&cluster, "a.test")).await;
    sleep(secs(1)).await;
    cluster.api.forget_requests();
    sleep(secs(600)).await;
    assert_eq!(asked_of(&cluster, "a.test"), 0);
    assert_eq!(cluster.unsynced(), None);
}

#[tokio::test(start_paused = true)]
async fn of_a_kind_that_comes_back_each_event_is_told_once() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    cluster.start_synced().await;
    for _ in 0..2 {
        things.undefine(&cluster).await;
        until("it is not watched", async || !is_watched(&cluster, "a.test")).await;
        things.define_again(&cluster).await;
        things.watched(&cluster).await;
    }
    sleep(secs(5)).await;
    let before = cluster.counts().events;
    for number in 0..10 {
        things
            .create(&cluster, &format!("thing-{number}"), Like::default())
            .await;
    }
    sleep(secs(5)).await;
    assert_eq!(cluster.counts().events, before + 10);
}

#[tokio::test(start_paused = true)]
async fn nodes_of_a_vanished_kind_hold_up_nobody_and_what_they_own_is_kept_and_told_of() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let owner = cluster.map("owner", Like::default()).await;
    things.create(&cluster, "thing", held([to(&owner, true)])).await;
    let other = things.create(&cluster, "other", Like::default()).await;
    cluster.map("kept", owned([to(&other, false)])).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    until("it waits", async || !cluster.report().deletions.is_empty()).await;
    sleep(secs(30)).await;
    assert!(cluster.is_there("owner").await);
    // Nobody hears of its end.
    cluster.trouble(Fault::new(Action::StallWatch).resource("things"));
    cluster
        .change(&things.path("thing"), json!({ "finalizers": null }))
        .await;
    things.undefine(&cluster).await;
    cluster.gone("owner").await;
    sleep(secs(600)).await;
    assert!(cluster.is_there("kept").await);
    let kept = cluster.report().kept;
    assert_eq!((kept.len(), kept[0].dependents), (1, 1), "{kept:?}");
    assert_eq!(kept[0].owner, "Thing.a.test default/other");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_discovered_as_empty_is_watched_as_long_as_it_can_be_listed() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let owner = things.create(&cluster, "owner", Like::default()).await;
    cluster.map("child", owned([to(&owner, false)])).await;
    cluster.map("foreground", Like::default()).await;
    cluster.start_synced().await;
    cluster.api.set_silent("a.test/v1", true);
    sleep(secs(120)).await;
    assert!(is_watched(&cluster, "a.test"));
    cluster.map("late", owned([to(&owner, false)])).await;
    sleep(secs(30)).await;
    assert!(cluster.is_there("child").await && cluster.is_there("late").await);
    cluster.delete(&things.path("owner"), "Background").await;
    cluster.gone("child").await;
    cluster.gone("late").await;
}

/// A dependent of a kind that was defined since the last discovery, and so is not watched yet.
async fn dependent_of_a_new_kind(cluster: &mut Cluster, like: impl Fn([serde_json::Value; 1]) -> Like) -> Things {
    let owner = cluster.map("owner", Like::default()).await;
    cluster.start_synced().await;
    sleep(secs(5)).await;
    let things = Things::define(cluster, "a.test", true, &["v1"]).await;
    things.create(cluster, "thing", like([to(&owner, true)])).await;
    things
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_waits_for_a_blocking_dependent_of_a_kind_that_was_just_defined() {
    let mut cluster = Cluster::new().await;
    let things = dependent_of_a_new_kind(&mut cluster, held).await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    sleep(secs(60)).await;
    assert!(cluster.is_there("owner").await);
    let thing = cluster.get(&things.path("thing")).await.unwrap();
    assert!(thing["metadata"]["deletionTimestamp"].is_string(), "{thing}");
    cluster
        .change(&things.path("thing"), json!({ "finalizers": null }))
        .await;
    things.gone(&cluster, "thing").await;
    cluster.gone("owner").await;
}

#[tokio::test(start_paused = true)]
async fn an_orphaning_owner_stays_until_dependents_of_a_kind_that_was_just_defined_are_released() {
    let mut cluster = Cluster::new().await;
    let things = dependent_of_a_new_kind(&mut cluster, owned).await;
    cluster.delete(&map_path("owner"), "Orphan").await;
    cluster.gone("owner").await;
    assert!(cluster.owners(&things.path("thing")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_waits_for_no_more_than_a_discovery_of_its_own() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    cluster.map("child", owned([to(&owner, true)])).await;
    cluster.start_synced().await;
    sleep(secs(5)).await;
    let begun = Instant::now();
    cluster.delete(&map_path("owner"), "Foreground").await;
    cluster.gone("owner").await;
    assert!(begun.elapsed() < secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reference_to_an_instance_that_went_with_its_definition_is_taken_out() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let (thing, map) = (
        things.create(&cluster, "thing", Like::default()).await,
        cluster.map("map", Like::default()).await,
    );
    cluster.map("child", owned([to(&thing, false), to(&map, false)])).await;
    cluster.start_synced().await;
    // It takes until after the kind has vanished.
    cluster.trouble(Fault::status(500).verb("patch").resource("configmaps"));
    things.undefine(&cluster).await;
    sleep(secs(90)).await;
    cluster.api.faults().clear();
    until("one reference is left", async || {
        cluster.owners(&map_path("child")).await == ["map"]
    })
    .await;
}
