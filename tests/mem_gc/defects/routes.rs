//! A missing route proves nothing about objects.

use crate::prelude::*;

/// The same reference in another version.
fn with_version(mut reference: Value, api_version: &str) -> Value {
    reference["apiVersion"] = api_version.into();
    reference
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_no_longer_served_deletes_no_dependent_of_a_living_owner() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1", "v1beta1"]).await;
    let owner = things.create(&cluster, "owner", ObjectSpec::default()).await;
    let reference = with_version(to(&owner, false), "a.test/v1beta1");
    let mut names = vec!["before".to_owned()];
    cluster.map("before", owned([reference.clone()])).await;
    cluster.start_synced().await;
    things.serve(&cluster, 1, false).await;
    for number in 0..20 {
        names.push(format!("after-{number}"));
        cluster.map(&names[number + 1], owned([reference.clone()])).await;
        sleep(secs(3)).await;
    }
    sleep(secs(120)).await;
    for name in &names {
        assert!(cluster.exists(name).await, "{name}");
    }
    cluster.delete(&things.path("owner"), "Background").await;
    for name in &names {
        cluster.wait_for_deletion(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_watched_version_that_is_no_longer_served_deletes_no_dependent() {
    let mut cluster = Cluster::new().await;
    // The preferred version is not the stored one.
    let things = Things::define(&cluster, "a.test", true, &["v1", "v2"]).await;
    let owner = things.create(&cluster, "owner", ObjectSpec::default()).await;
    cluster.start_synced().await;
    let child = things.create(&cluster, "child", owned([to(&owner, false)])).await;
    cluster.map("grandchild", owned([to(&child, false)])).await;
    things.serve(&cluster, 1, false).await;
    for number in 0..10 {
        cluster.map(&format!("map-{number}"), owned([to(&owner, false)])).await;
        sleep(secs(5)).await;
    }
    sleep(secs(120)).await;
    for number in 0..10 {
        assert!(cluster.exists(&format!("map-{number}")).await);
    }
    assert!(things.exists(&cluster, "child").await && cluster.exists("grandchild").await);
    cluster.delete(&things.path("owner"), "Background").await;
    things.wait_for_deletion(&cluster, "child").await;
    cluster.wait_for_deletion("grandchild").await;
    cluster.wait_for_deletion("map-0").await;
}

#[tokio::test(start_paused = true)]
async fn no_owner_is_absent_while_its_definition_is_replaced() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let old = things.create(&cluster, "owner", ObjectSpec::default()).await;
    cluster.map("of-the-old", owned([to(&old, false)])).await;
    cluster.start_synced().await;
    things.undefine(&cluster).await;
    // It is unknown whether this owner exists: its route is missing.
    cluster
        .map("of-another", owned([absent_owner("a.test/v1", "Thing", 7)]))
        .await;
    cluster.wait_for_deletion("of-the-old").await;
    sleep(secs(90)).await;
    assert!(cluster.exists("of-another").await);
    things.define_now(&cluster).await;
    let new = things.create(&cluster, "owner", ObjectSpec::default()).await;
    cluster.map("of-the-new", owned([to(&new, false)])).await;
    cluster.map("late-of-the-old", owned([to(&old, false)])).await;
    // Now its route exists.
    cluster.wait_for_deletion("of-another").await;
    cluster.wait_for_deletion("late-of-the-old").await;
    sleep(secs(120)).await;
    assert!(cluster.exists("of-the-new").await);
}

#[tokio::test(start_paused = true)]
async fn a_404_that_names_no_object_deletes_neither_the_object_nor_its_dependents() {
    let mut cluster = Cluster::new().await;
    let child = cluster.map("child", owned([absent_owner("v1", "ConfigMap", 1)])).await;
    cluster.map("grandchild", owned([to(&child, false)])).await;
    cluster.inject(Fault::status(404).verb("delete").resource("configmaps"));
    cluster.inject(Fault::status(404).verb("get").name("child"));
    cluster.start_synced().await;
    sleep(secs(60)).await;
    assert!(cluster.count_requests("delete", "configmaps") > 3);
    assert!(cluster.exists("child").await && cluster.exists("grandchild").await);
    let asked = cluster.object_requests();
    assert!(asked.iter().all(|it| it.asked.name != "grandchild"), "{asked:?}");
    cluster.api.faults().clear();
    cluster.wait_for_deletion("child").await;
    cluster.wait_for_deletion("grandchild").await;
}

#[tokio::test(start_paused = true)]
async fn a_404_that_names_no_object_makes_no_owner_absent() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    // Its kind cannot be watched, so the collector sends a GET.
    cluster.inject(Fault::status(403).verb("list").resource("configmaps"));
    cluster.inject(Fault::status(404).verb("get").name("owner"));
    cluster.secret("child", owned([to(&owner, false)])).await;
    cluster.start().await;
    sleep(secs(120)).await;
    assert!(cluster.count_requests("get", "configmaps") > 3);
    assert!(cluster.get(&secret_path("child")).await.is_some());
    assert!(cluster.exists("owner").await);
}
