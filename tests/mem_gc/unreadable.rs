//! A kind with an object that the API server cannot read.

use crate::aggregated::{create_owners, delete_owners, expect_foreground_end_after_ten_minutes};
use crate::prelude::*;

const KEY: &str = "/registry/secrets/default/lost";

async fn expect_end_after_recovery(cluster: &Cluster) {
    cluster.api.faults().clear();
    cluster.wait_for_deletion("orphaning").await;
    assert!(cluster.owners(&map_path("of-orphaning")).await.is_empty());
    assert_eq!(cluster.unsynced(), None);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_object_delays_foreground_deletions_for_ten_minutes_and_is_named_once() {
    let mut cluster = Cluster::new().await;
    cluster.inject(Fault::new(Action::LoseKey).verb("list").resource("secrets"));
    create_owners(&cluster).await;
    cluster.start().await;
    delete_owners(&cluster).await;
    sleep(secs(30)).await;
    let text = cluster.report().text(false);
    assert_eq!(text.matches(KEY).count(), 1, "{text}");
    let line = text.lines().find(|line| line.contains(KEY)).unwrap();
    assert!(line.contains("Restore the key"), "{line}");
    let command = "kubectl delete --raw '/api/v1/namespaces/default/secrets/lost?ignoreStoreReadErrorWithClusterBreakingPotential=true'";
    assert!(line.contains(command), "{line}");
    expect_foreground_end_after_ten_minutes(&cluster).await;
    assert_eq!(cluster.counts().removed_unsynced, 1);
    expect_end_after_recovery(&cluster).await;
}

/// The API server restarts without the key. It then refuses watches with 429.
#[tokio::test(start_paused = true)]
async fn a_key_that_is_lost_under_a_running_watch_is_named_after_a_minute() {
    let mut cluster = Cluster::new().await;
    create_owners(&cluster).await;
    cluster.start_synced().await;
    sleep(secs(100)).await;
    for verb in ["list", "watch"] {
        cluster.inject(Fault::new(Action::LoseKey).verb(verb).resource("secrets"));
    }
    cluster.inject(Fault::new(Action::CutWatch).resource("secrets").once());
    until!(cluster.unsynced().is_some());
    delete_owners(&cluster).await;
    sleep(secs(119)).await;
    let row = cluster
        .report()
        .kinds
        .into_iter()
        .find(|it| it.resource == "secrets/v1")
        .unwrap();
    assert!(row.error.unwrap().contains("LIST /api/v1/secrets"));
    assert!(row.unreadable.unwrap().contains(KEY));
    sleep(secs(420)).await;
    assert!(cluster.exists("foreground").await);
    cluster.wait_for_deletion("foreground").await;
    sleep(secs(3600)).await;
    assert!(cluster.exists("orphaning").await);
    expect_end_after_recovery(&cluster).await;
}
