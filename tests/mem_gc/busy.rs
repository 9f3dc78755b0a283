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

#[tokio::test(start_paused = true)]
async fn a_kind_for_which_the_server_asks_for_five_minutes_holds_up_no_other() {
    let mut cluster = Cluster::new().await;
    doomed(&cluster, 4).await;
    cluster.trouble(Fault::too_many(300).verb("delete").resource("things"));
    cluster.start_synced().await;
    sleep(secs(5)).await;
    for number in 0..200 {
        cluster.insert_secret("default", &format!("s-{number}"), &[never("v1", "ConfigMap", 2)]);
    }
    until("all secrets are gone", async || {
        cluster.api.objects("v1", "Secret").is_empty()
    })
    .await;
    cluster.api.faults().clear();
    sleep(secs(600)).await;
    assert_eq!(cluster.api.objects("a.test/v1", "Thing").len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_kind_whose_deletions_take_25_s_each_holds_up_no_other() {
    let mut cluster = Cluster::new().await;
    doomed(&cluster, 2000).await;
    cluster.trouble(Fault::delay(secs(25)).verb("delete").resource("things"));
    cluster.start_synced().await;
    sleep(secs(60)).await;
    cluster.secret("child", owned([never("v1", "ConfigMap", 2)])).await;
    let path = secret_path("child");
    until("the secret is gone", async || cluster.get(&path).await.is_none()).await;
    assert!(cluster.api.objects("a.test/v1", "Thing").len() > 500, "they are slow");
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
