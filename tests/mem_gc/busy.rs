//! Kinds whose writes are slow or refused, and objects that change all the time: nothing else waits for them.

use serde_json::{Value, json};
use testbed::{apiserver::faults::Fault, rest::Patch};
use tokio::time::{Duration, Instant, sleep};

use crate::{
    things::Things,
    world::{Cluster, map_path, never, owned, secret_path, secs, until},
};

/// So many things whose owner never was there.
async fn doomed(cluster: &Cluster, number: usize) {
    let things = Things::define(cluster, "a.test", true, &["v1"]).await;
    for number in 0..number {
        things.create(cluster, &format!("t-{number}"), owned([absent()])).await;
    }
}

fn absent() -> Value {
    never("v1", "ConfigMap", 1)
}

/// So many secrets whose owner never was there are deleted while things are not.
async fn secrets_go(cluster: &Cluster, number: usize) {
    for number in 0..number {
        cluster.insert_secret("default", &format!("s-{number}"), &[never("v1", "ConfigMap", 2)]);
    }
    let none_left = async || cluster.api.objects("v1", "Secret").is_empty();
    until("all secrets are gone", none_left).await;
}

fn things(cluster: &Cluster) -> usize {
    cluster.api.objects("a.test/v1", "Thing").len()
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_server_refuses_for_a_while_holds_up_no_other_however_long_it_asks_for() {
    for seconds in [1, 5, 300] {
        let mut cluster = Cluster::new().await;
        doomed(&cluster, 300).await;
        cluster.trouble(Fault::too_many(seconds).verb("delete").resource("things"));
        cluster.start_synced().await;
        sleep(secs(5)).await;
        secrets_go(&cluster, 2000).await;
        let tries = cluster.asked("delete", "things");
        assert!(tries < 500, "{tries} for {seconds} s each");
        cluster.api.faults().clear();
        sleep(secs(900)).await;
        assert_eq!(things(&cluster), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn one_object_that_is_refused_for_a_while_holds_up_none_of_its_kind() {
    let mut cluster = Cluster::new().await;
    doomed(&cluster, 1000).await;
    cluster.trouble(Fault::too_many(300).verb("delete").name("t-0"));
    cluster.start_synced().await;
    until("all others are gone", async || things(&cluster) == 1).await;
    cluster.api.faults().clear();
    sleep(secs(600)).await;
    assert_eq!(things(&cluster), 0);
}

/// The webhook refuses deletions, not questions; and secrets rest on what these tell.
#[tokio::test(start_paused = true)]
async fn objects_of_a_kind_whose_deletion_is_refused_are_asked_for_all_the_same() {
    let mut cluster = Cluster::new().await;
    doomed(&cluster, 10).await;
    cluster.trouble(Fault::too_many(300).verb("delete").resource("things"));
    cluster.start_synced().await;
    sleep(secs(5)).await;
    cluster.insert_secret("default", "child", &[never("a.test/v1", "Thing", 7)]);
    until("the child is gone", async || {
        cluster.get(&secret_path("child")).await.is_none()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_whose_deletions_take_25_s_each_holds_up_no_other() {
    let mut cluster = Cluster::new().await;
    doomed(&cluster, 2000).await;
    cluster.trouble(Fault::delay(secs(25)).verb("delete").resource("things"));
    cluster.start_synced().await;
    sleep(secs(60)).await;
    secrets_go(&cluster, 2000).await;
    assert!(things(&cluster) > 500, "they are slow");
}

/// Nothing limits the names of roles.
#[tokio::test(start_paused = true)]
async fn an_object_with_a_very_long_name_is_collected() {
    let mut cluster = Cluster::new().await;
    let name = "n".repeat(2000);
    cluster.insert_secret("default", &name, &[absent()]);
    cluster.start_synced().await;
    until("it is gone", async || cluster.get(&secret_path(&name)).await.is_none()).await;
}

/// Most deletions meet a later version. They insist on that which was decided on: somebody may have adopted it.
#[tokio::test(start_paused = true)]
async fn an_object_that_changes_all_the_time_is_deleted_where_a_deletion_comes_between() {
    let mut cluster = Cluster::new().await;
    cluster.map("child", owned([absent()])).await;
    cluster.trouble(Fault::delay(Duration::from_millis(70)).verb("delete").name("child"));
    cluster.start_synced().await;
    until("the child is gone", async || {
        let time = format!("{:?}", Instant::now());
        let patch = json!({ "metadata": { "annotations": { "beat": time } } });
        drop(cluster.admin.patch(&map_path("child"), Patch::Merge, &patch).await);
        sleep(Duration::from_millis(50)).await;
        !cluster.is_there("child").await
    })
    .await;
    assert!(cluster.counts().conflicts > 0, "{:?}", cluster.counts());
}
