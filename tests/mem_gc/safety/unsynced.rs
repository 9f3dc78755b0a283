//! Kinds that are not synced for a while, or never.

use crate::prelude::*;

/// ConfigMaps that own secrets; kubernetes/kubernetes#88097.
async fn create_owners_with_dependents(cluster: &Cluster) {
    for number in 0..10 {
        let owner = cluster.map(&format!("owner-{number}"), ObjectSpec::default()).await;
        cluster
            .secret(&format!("child-{number}"), owned([to(&owner, false)]))
            .await;
    }
    cluster
        .secret("leftover", owned([absent_owner("v1", "ConfigMap", 1)]))
        .await;
}

async fn expect_all_dependents(cluster: &Cluster) {
    for number in 0..10 {
        assert!(cluster.get(&secret_path(&format!("child-{number}"))).await.is_some());
    }
}

async fn wait_for_leftover_deletion(cluster: &Cluster) {
    until!(cluster.get(&secret_path("leftover")).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_slow_first_list_of_owners_causes_no_gets_and_no_deletions() {
    let mut cluster = Cluster::new().await;
    create_owners_with_dependents(&cluster).await;
    cluster.inject(Fault::delay(secs(50)).verb("list").resource("configmaps"));
    cluster.start().await;
    sleep(secs(45)).await;
    assert_eq!(cluster.object_requests(), []);
    wait_for_leftover_deletion(&cluster).await;
    sleep(secs(60)).await;
    expect_all_dependents(&cluster).await;
    assert_eq!(cluster.count_requests("get", "configmaps"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failing_first_list_of_owners_is_replaced_by_gets() {
    for action in [
        Action::Refuse,
        Action::Status {
            code: 500,
            retry_after: None,
        },
    ] {
        let mut cluster = Cluster::new().await;
        create_owners_with_dependents(&cluster).await;
        cluster.inject(Fault::new(action).verb("list").resource("configmaps"));
        cluster.start().await;
        wait_for_leftover_deletion(&cluster).await;
        sleep(secs(60)).await;
        expect_all_dependents(&cluster).await;
        cluster.api.faults().clear();
        cluster.wait_for_sync().await;
        sleep(secs(60)).await;
        expect_all_dependents(&cluster).await;
    }
}

/// A cluster in which listing secrets is forbidden.
async fn cluster_with_forbidden_secrets() -> Cluster {
    let mut cluster = Cluster::new().await;
    cluster.inject(Fault::status(403).verb("list").resource("secrets"));
    let secret = cluster.secret("owner", ObjectSpec::default()).await;
    cluster.map("of-a-secret", owned([to(&secret, false)])).await;
    cluster.map("leftover", owned([absent_owner("v1", "Secret", 1)])).await;
    for name in ["foreground", "orphaning"] {
        let owner = cluster.map(name, ObjectSpec::default()).await;
        cluster.map(&format!("of-{name}"), owned([to(&owner, true)])).await;
    }
    cluster.start().await;
    cluster.wait_for_deletion("leftover").await;
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_must_not_be_listed_delays_only_finalizers_and_is_named() {
    let cluster = cluster_with_forbidden_secrets().await;
    let background = cluster.map("background", ObjectSpec::default()).await;
    cluster.map("of-background", owned([to(&background, true)])).await;
    cluster.delete(&map_path("foreground"), "Foreground").await;
    cluster.delete(&map_path("orphaning"), "Orphan").await;
    cluster.delete(&map_path("background"), "Background").await;
    cluster.wait_for_deletion("of-background").await;
    cluster.wait_for_deletion("of-foreground").await;
    until!(cluster.owners(&map_path("of-orphaning")).await.is_empty());
    sleep(secs(900)).await;
    assert!(cluster.exists("foreground").await && cluster.exists("orphaning").await);
    assert!(cluster.exists("of-a-secret").await);
    let why = cluster.unsynced().unwrap();
    assert!(why.contains("secrets") && why.contains("403"), "{why}");
    let waiting = cluster.report().oldest;
    assert_eq!(
        waiting
            .iter()
            .filter(|it| it.why.ends_with(&format!("not synced: {why}")))
            .count(),
        2,
        "{waiting:?}"
    );
    // Owners that cannot be watched are checked by GET again and again.
    cluster.delete(&secret_path("owner"), "Background").await;
    sleep(secs(300)).await;
    cluster.wait_for_deletion("of-a-secret").await;
    cluster.api.faults().clear();
    cluster.wait_for_deletion("foreground").await;
    cluster.wait_for_deletion("orphaning").await;
}

#[tokio::test(start_paused = true)]
async fn no_failed_get_makes_an_owner_absent() {
    let failures = [
        Fault::status(403),
        Fault::status(429),
        Fault::too_many(3),
        Fault::status(500),
        Fault::status(503),
        Fault::status(504),
        Fault::status(404),
        Fault::status(410),
        Fault::status(401),
        Fault::new(Action::Refuse),
        Fault::new(Action::LoseResponse),
        Fault::delay(secs(100)),
    ];
    for failure in failures {
        let mut cluster = Cluster::new().await;
        create_owners_with_dependents(&cluster).await;
        cluster.inject(Fault::status(403).verb("list").resource("configmaps"));
        cluster.inject(failure.clone().verb("get").resource("configmaps"));
        cluster.start().await;
        sleep(secs(200)).await;
        expect_all_dependents(&cluster).await;
        let failures = cluster.counts().failures;
        assert!(failures.contains_key("get_owner"), "{failure:?}: {failures:?}");
        cluster.api.faults().clear();
        cluster.wait_for_sync().await;
        sleep(secs(200)).await;
        wait_for_leftover_deletion(&cluster).await;
        expect_all_dependents(&cluster).await;
    }
}

#[tokio::test(start_paused = true)]
async fn unanswered_requests_delay_no_others() {
    let mut cluster = Cluster::new().await;
    for number in 0..8 {
        let name = format!("stuck-{number}");
        cluster
            .secret(&name, owned([absent_owner("v1", "ConfigMap", number)]))
            .await;
        cluster.inject(Fault::new(Action::Refuse).verb("delete").name(&name));
    }
    cluster.start_synced().await;
    sleep(secs(30)).await;
    for number in 100..200 {
        let owner = absent_owner("v1", "ConfigMap", number);
        cluster.map(&format!("map-{number}"), owned([owner])).await;
    }
    for number in 100..200 {
        cluster.wait_for_deletion(&format!("map-{number}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_cannot_be_listed_does_not_prevent_other_watches() {
    let mut cluster = Cluster::new().await;
    let broken = Things::define(&cluster, "broken.test", true, &["v1"]).await;
    cluster.inject(Fault::status(500).verb("list").resource("things"));
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    let thing = broken.create(&cluster, "thing", owned([to(&owner, false)])).await;
    cluster.map("of-the-thing", owned([to(&thing, false)])).await;
    cluster.map("child", owned([to(&owner, false)])).await;
    cluster.start().await;
    sleep(secs(60)).await;
    cluster.delete(&map_path("owner"), "Background").await;
    cluster.wait_for_deletion("child").await;
    let why = cluster.unsynced().unwrap();
    assert!(why.contains("things") && why.contains("500"), "{why}");
    sleep(secs(60)).await;
    assert!(cluster.exists("of-the-thing").await && broken.exists(&cluster, "thing").await);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_decided_on_when_its_last_owner_is_known() {
    let mut cluster = Cluster::new().await;
    let solid = cluster.secret("solid", ObjectSpec::default()).await;
    cluster
        .map("child", owned([absent_owner("v1", "ConfigMap", 1), to(&solid, false)]))
        .await;
    cluster.inject(Fault::delay(secs(20)).verb("list").resource("secrets"));
    cluster.start().await;
    sleep(secs(10)).await;
    assert_eq!(cluster.count_requests("patch", "configmaps"), 0);
    until!(cluster.owners(&map_path("child")).await == ["solid"]);
}
