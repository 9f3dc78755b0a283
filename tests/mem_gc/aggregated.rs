//! Aggregated APIs whose server is unreachable.

use crate::prelude::*;

const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// Creates an APIService for the group whose server does not exist.
async fn create_dead_api_service(cluster: &Cluster, group: &str) {
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": { "name": format!("v1.{group}") },
        "spec": {
            "group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": { "namespace": "kube-system", "name": "dead" },
        },
    });
    cluster
        .admin
        .create(API_SERVICES, &service)
        .await
        .unwrap()
        .ok()
        .unwrap();
}

fn service(group: &str) -> String {
    format!("{API_SERVICES}/v1.{group}")
}

/// Two owners, each with a blocking dependent: one for foreground and one for orphan deletion.
pub async fn create_owners(cluster: &Cluster) {
    for name in ["foreground", "orphaning"] {
        let owner = cluster.map(name, ObjectSpec::default()).await;
        cluster.map(&format!("of-{name}"), owned([to(&owner, true)])).await;
    }
}

pub async fn delete_owners(cluster: &Cluster) {
    cluster.delete(&map_path("foreground"), "Foreground").await;
    cluster.delete(&map_path("orphaning"), "Orphan").await;
}

pub async fn expect_foreground_end_after_ten_minutes(cluster: &Cluster) {
    // The failure started up to a minute ago.
    sleep(secs(540)).await;
    assert!(cluster.exists("foreground").await && !cluster.exists("of-foreground").await);
    sleep(secs(70)).await;
    assert!(!cluster.exists("foreground").await);
    sleep(secs(3600)).await;
    assert!(cluster.exists("orphaning").await);
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_group_that_was_never_reached_delays_foreground_deletions_for_ten_minutes() {
    let mut cluster = Cluster::new().await;
    create_dead_api_service(&cluster, "dead.test").await;
    create_owners(&cluster).await;
    cluster.start().await;
    delete_owners(&cluster).await;
    expect_foreground_end_after_ten_minutes(&cluster).await;
    // The group has failed for more than ten minutes.
    cluster.map("late", ObjectSpec::default()).await;
    cluster.delete(&map_path("late"), "Foreground").await;
    sleep(secs(15)).await;
    assert!(!cluster.exists("late").await);
    // This makes its kinds removed.
    cluster.delete(&service("dead.test"), "Foreground").await;
    until!(cluster.get(&service("dead.test")).await.is_none());
    cluster.wait_for_deletion("orphaning").await;
    assert!(cluster.owners(&map_path("of-orphaning")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_group_that_fails_later_delays_foreground_deletions_for_ten_minutes() {
    let mut cluster = Cluster::new().await;
    Things::define(&cluster, "dead.test", true, &["v1"]).await;
    create_owners(&cluster).await;
    cluster.start_synced().await;
    sleep(secs(1000)).await;
    create_dead_api_service(&cluster, "dead.test").await;
    cluster.inject(Fault::new(Action::CutWatch).resource("things"));
    until!(cluster.unsynced().is_some());
    delete_owners(&cluster).await;
    expect_foreground_end_after_ten_minutes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_dependent_in_a_group_that_recovers_too_late_is_deleted_in_the_background() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "dead.test", true, &["v1"]).await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    things.create(&cluster, "thing", owned([to(&owner, true)])).await;
    create_dead_api_service(&cluster, "dead.test").await;
    cluster.start().await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    sleep(secs(660)).await;
    assert!(!cluster.exists("owner").await);
    cluster.delete(&service("dead.test"), "Background").await;
    assert!(things.exists(&cluster, "thing").await);
    things.wait_for_deletion(&cluster, "thing").await;
}

#[tokio::test(start_paused = true)]
async fn a_built_in_group_missing_in_discovery_delays_deletions_until_it_returns() {
    let mut cluster = Cluster::new().await;
    cluster.api.set_unavailable("dead.test/v1", true);
    create_owners(&cluster).await;
    cluster.start().await;
    delete_owners(&cluster).await;
    sleep(secs(7200)).await;
    assert!(cluster.exists("foreground").await && cluster.exists("orphaning").await);
    cluster.api.set_unavailable("dead.test/v1", false);
    cluster.wait_for_deletion("foreground").await;
    cluster.wait_for_deletion("orphaning").await;
}
