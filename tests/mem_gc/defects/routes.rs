//! A route that is missing proves nothing of objects.

use serde_json::Value;
use testbed::apiserver::faults::Fault;
use tokio::time::sleep;

use crate::{
    things::Things,
    world::{Cluster, Like, never, owned, secret_path, secs, to},
};

/// The same reference in another version.
fn written(mut reference: Value, api_version: &str) -> Value {
    reference["apiVersion"] = api_version.into();
    reference
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_no_longer_served_costs_no_dependent_of_a_living_owner() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1", "v1beta1"]).await;
    let owner = things.create(&cluster, "owner", Like::default()).await;
    let reference = written(to(&owner, false), "a.test/v1beta1");
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
        assert!(cluster.is_there(name).await, "{name}");
    }
    cluster.delete(&things.path("owner"), "Background").await;
    for name in &names {
        cluster.gone(name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_watched_version_that_is_no_longer_served_costs_no_dependent_either() {
    let mut cluster = Cluster::new().await;
    // Not the stored one is preferred.
    let things = Things::define(&cluster, "a.test", true, &["v1", "v2"]).await;
    let owner = things.create(&cluster, "owner", Like::default()).await;
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
        assert!(cluster.is_there(&format!("map-{number}")).await);
    }
    assert!(things.is_there(&cluster, "child").await && cluster.is_there("grandchild").await);
    cluster.delete(&things.path("owner"), "Background").await;
    things.gone(&cluster, "child").await;
    cluster.gone("grandchild").await;
    cluster.gone("map-0").await;
}

#[tokio::test(start_paused = true)]
async fn while_a_definition_is_made_anew_nobody_is_taken_for_absent() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let old = things.create(&cluster, "owner", Like::default()).await;
    cluster.map("of-the-old", owned([to(&old, false)])).await;
    cluster.start_synced().await;
    things.undefine(&cluster).await;
    // Nobody can tell whether this one is there: its route is missing.
    cluster.map("of-another", owned([never("a.test/v1", "Thing", 7)])).await;
    cluster.gone("of-the-old").await;
    sleep(secs(90)).await;
    assert!(cluster.is_there("of-another").await);
    things.define_again(&cluster).await;
    let new = things.create(&cluster, "owner", Like::default()).await;
    cluster.map("of-the-new", owned([to(&new, false)])).await;
    cluster.map("late-of-the-old", owned([to(&old, false)])).await;
    // Now somebody can.
    cluster.gone("of-another").await;
    cluster.gone("late-of-the-old").await;
    sleep(secs(120)).await;
    assert!(cluster.is_there("of-the-new").await);
}

#[tokio::test(start_paused = true)]
async fn a_404_that_names_nobody_ends_neither_the_object_nor_what_depends_on_it() {
    let mut cluster = Cluster::new().await;
    let child = cluster.map("child", owned([never("v1", "ConfigMap", 1)])).await;
    cluster.map("grandchild", owned([to(&child, false)])).await;
    cluster.trouble(Fault::status(404).verb("delete").resource("configmaps"));
    cluster.trouble(Fault::status(404).verb("get").name("child"));
    cluster.start_synced().await;
    sleep(secs(60)).await;
    assert!(cluster.asked("delete", "configmaps") > 3);
    assert!(cluster.is_there("child").await && cluster.is_there("grandchild").await);
    let asked = cluster.about_objects();
    assert!(asked.iter().all(|it| it.asked.name != "grandchild"), "{asked:?}");
    cluster.api.faults().clear();
    cluster.gone("child").await;
    cluster.gone("grandchild").await;
}

#[tokio::test(start_paused = true)]
async fn a_404_that_names_nobody_makes_no_owner_absent() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    // Its kind cannot be watched, so it is asked for.
    cluster.trouble(Fault::status(403).verb("list").resource("configmaps"));
    cluster.trouble(Fault::status(404).verb("get").name("owner"));
    cluster.secret("child", owned([to(&owner, false)])).await;
    cluster.start().await;
    sleep(secs(120)).await;
    assert!(cluster.asked("get", "configmaps") > 3);
    assert!(cluster.get(&secret_path("child")).await.is_some());
    assert!(cluster.is_there("owner").await);
}
