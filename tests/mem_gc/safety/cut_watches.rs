//! Dependents that are created while the watch of their kind is broken.

use crate::prelude::*;

/// A synced cluster with an owner.
async fn cluster_with_owner() -> Cluster {
    let mut cluster = Cluster::new().await;
    cluster.map("owner", ObjectSpec::default()).await;
    cluster.start_synced().await;
    sleep(secs(100)).await;
    cluster
}

/// Creates a blocking dependent and deletes the owner.
async fn delete_owner_of_new_secret(cluster: &Cluster, policy: &str) {
    let owner = cluster.get(&map_path("owner")).await.unwrap();
    cluster.secret("child", owned([to(&owner, true)])).await;
    cluster.delete(&map_path("owner"), policy).await;
}

/// Cuts the watch of secrets, and refuses to resume it.
fn break_secret_watch(cluster: &Cluster) {
    for verb in ["list", "watch"] {
        cluster.inject(Fault::status(500).verb(verb).resource("secrets"));
    }
    cluster.inject(Fault::new(Action::CutWatch).resource("secrets"));
}

async fn child_exists(cluster: &Cluster) -> bool {
    cluster.get(&secret_path("child")).await.is_some()
}

/// Waits for the end of the orphaning, and starts another collector, which knows nothing of it.
async fn expect_orphan_survives_handover(mut cluster: Cluster) {
    cluster.wait_for_deletion("owner").await;
    cluster.stop();
    cluster.start_synced().await;
    sleep(secs(200)).await;
    assert!(child_exists(&cluster).await, "the orphan was deleted");
    assert!(cluster.owners(&secret_path("child")).await.is_empty());
}

/// Waits until the owner is gone. Its blocking dependent has to be gone before.
async fn expect_dependent_ends_first(cluster: &Cluster) {
    until("the owner is gone", async || {
        let child = child_exists(cluster).await;
        let owner = cluster.exists("owner").await;
        assert!(owner || !child, "the owner was deleted before its dependent");
        !owner
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_owner_stays_while_the_watch_of_a_new_dependent_fails() {
    for policy in ["Orphan", "Foreground"] {
        let cluster = cluster_with_owner().await;
        break_secret_watch(&cluster);
        until!(cluster.counts().failures.contains_key("watch"));
        delete_owner_of_new_secret(&cluster, policy).await;
        sleep(secs(20)).await;
        assert!(cluster.exists("owner").await, "its finalizer was removed");
        let status = cluster.report();
        let row = status.kinds.iter().find(|it| it.resource == "secrets/v1").unwrap();
        assert!(row.error.is_some() && !row.synced && !status.synced, "{row:?}");
        cluster.api.faults().clear();
        expect_end(cluster, policy).await;
    }
}

/// The missed events come at once, or some seconds after the watch was opened again.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_cut_for_less_than_a_second_delays_both() {
    for (policy, is_late) in [
        ("Orphan", false),
        ("Foreground", false),
        ("Orphan", true),
        ("Foreground", true),
    ] {
        let cluster = cluster_with_owner().await;
        cluster.inject(Fault::new(Action::CutWatch).resource("secrets").once());
        if is_late {
            let pause = Fault::new(Action::PauseWatch { millis: 5000 });
            cluster.inject(pause.resource("secrets").once());
        }
        delete_owner_of_new_secret(&cluster, policy).await;
        expect_end(cluster, policy).await;
    }
}

async fn expect_end(cluster: Cluster, policy: &str) {
    match policy {
        "Orphan" => expect_orphan_survives_handover(cluster).await,
        _ => expect_dependent_ends_first(&cluster).await,
    }
}

/// Kinds that fill the first connection with watches.
const MANY_KINDS: usize = 64;

/// The owner's watch works over one connection; the watch of its dependent's kind is half-open over another.
#[tokio::test(start_paused = true)]
async fn an_orphan_whose_watch_is_half_open_survives_a_handover() {
    let mut cluster = Cluster::new().await;
    let balancer = Balancer::start(cluster.api.connector().clone());
    cluster.use_balancer(&balancer);
    cluster.map("owner", ObjectSpec::default()).await;
    cluster.start_synced().await;
    let mut last = None;
    for number in 0..MANY_KINDS {
        let group: &'static str = format!("g{number}.test").leak();
        last = Some(Things::define(&cluster, group, true, &["v1"]).await);
    }
    let last = last.unwrap();
    last.watched(&cluster).await;
    cluster.wait_for_sync().await;
    sleep(secs(100)).await;
    balancer.drop_newest();
    let owner = cluster.get(&map_path("owner")).await.unwrap();
    last.create(&cluster, "child", owned([to(&owner, true)])).await;
    cluster.delete(&map_path("owner"), "Orphan").await;
    cluster.wait_for_deletion("owner").await;
    cluster.stop();
    cluster.start_synced().await;
    sleep(secs(200)).await;
    assert!(last.exists(&cluster, "child").await, "the orphan was deleted");
}

#[tokio::test(start_paused = true)]
async fn orphaning_and_foreground_deletion_take_less_than_a_second_while_nothing_fails() {
    let cluster = cluster_with_owner().await;
    for policy in ["Orphan", "Foreground"] {
        let owner = cluster.map(policy.to_lowercase().as_str(), ObjectSpec::default()).await;
        let child = format!("of-{}", policy.to_lowercase());
        cluster.map(&child, owned([to(&owner, true)])).await;
        let started = tokio::time::Instant::now();
        cluster.delete(&map_path(&policy.to_lowercase()), policy).await;
        cluster.wait_for_deletion(&policy.to_lowercase()).await;
        assert!(started.elapsed() < secs(1), "{policy}: {:?}", started.elapsed());
    }
}
