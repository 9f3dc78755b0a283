//! Groups that another server answers for, as an APIService says, and that cannot be reached.

use serde_json::json;
use testbed::apiserver::faults::{Action, Fault};
use tokio::time::sleep;

use crate::{
    things::Things,
    world::{Cluster, Like, map_path, owned, secs, to, until},
};

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// Another server is to answer for this group, and nobody can reach it.
async fn unreachable(cluster: &Cluster, group: &str) {
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": { "name": format!("v1.{group}") },
        "spec": {
            "group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": { "namespace": "kube-system", "name": "dead" },
        },
    });
    cluster.admin.create(SERVICES, &service).await.unwrap().ok().unwrap();
}

fn service(group: &str) -> String {
    format!("{SERVICES}/v1.{group}")
}

/// Two owners, each with a blocking dependent; one is deleted in the foreground, the other is orphaning.
async fn owners(cluster: &Cluster) {
    for name in ["foreground", "orphaning"] {
        let owner = cluster.map(name, Like::default()).await;
        cluster.map(&format!("of-{name}"), owned([to(&owner, true)])).await;
    }
}

async fn deleted(cluster: &Cluster) {
    cluster.delete(&map_path("foreground"), "Foreground").await;
    cluster.delete(&map_path("orphaning"), "Orphan").await;
}

async fn goes_on_after_ten_minutes(cluster: &Cluster) {
    // It was lost up to a minute ago.
    sleep(secs(540)).await;
    assert!(cluster.is_there("foreground").await && !cluster.is_there("of-foreground").await);
    sleep(secs(70)).await;
    assert!(!cluster.is_there("foreground").await);
    sleep(secs(3600)).await;
    assert!(cluster.is_there("orphaning").await);
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_group_that_was_never_reached_delays_foreground_deletions_for_ten_minutes() {
    let mut cluster = Cluster::new().await;
    unreachable(&cluster, "dead.test").await;
    owners(&cluster).await;
    cluster.start().await;
    deleted(&cluster).await;
    goes_on_after_ten_minutes(&cluster).await;
    // It is known for dead by now.
    cluster.map("late", Like::default()).await;
    cluster.delete(&map_path("late"), "Foreground").await;
    sleep(secs(15)).await;
    assert!(!cluster.is_there("late").await);
    // Its own end, too.
    cluster.delete(&service("dead.test"), "Foreground").await;
    until("the service is gone", async || {
        cluster.get(&service("dead.test")).await.is_none()
    })
    .await;
    cluster.gone("orphaning").await;
    assert!(cluster.owners(&map_path("of-orphaning")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_aggregated_group_that_goes_away_delays_foreground_deletions_for_ten_minutes() {
    let mut cluster = Cluster::new().await;
    Things::define(&cluster, "dead.test", true, &["v1"]).await;
    owners(&cluster).await;
    cluster.start_synced().await;
    sleep(secs(1000)).await;
    unreachable(&cluster, "dead.test").await;
    cluster.trouble(Fault::new(Action::CutWatch).resource("things"));
    until("it is lost", async || cluster.unsynced().is_some()).await;
    deleted(&cluster).await;
    goes_on_after_ten_minutes(&cluster).await;
}

#[tokio::test(start_paused = true)]
async fn a_dependent_in_a_group_that_comes_back_too_late_is_deleted_in_the_background() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "dead.test", true, &["v1"]).await;
    let owner = cluster.map("owner", Like::default()).await;
    things.create(&cluster, "thing", owned([to(&owner, true)])).await;
    unreachable(&cluster, "dead.test").await;
    cluster.start().await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    sleep(secs(660)).await;
    assert!(!cluster.is_there("owner").await);
    cluster.delete(&service("dead.test"), "Background").await;
    assert!(things.is_there(&cluster, "thing").await);
    things.gone(&cluster, "thing").await;
}

#[tokio::test(start_paused = true)]
async fn a_group_of_the_server_itself_that_it_does_not_tell_of_holds_deletions_for_as_long_as_it_takes() {
    let mut cluster = Cluster::new().await;
    cluster.api.set_away("dead.test/v1", true);
    owners(&cluster).await;
    cluster.start().await;
    deleted(&cluster).await;
    sleep(secs(7200)).await;
    assert!(cluster.is_there("foreground").await && cluster.is_there("orphaning").await);
    cluster.api.set_away("dead.test/v1", false);
    cluster.gone("foreground").await;
    cluster.gone("orphaning").await;
}
