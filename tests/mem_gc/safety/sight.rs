//! What cannot be seen for a while, or at all.

use pod_teardown::collector::Unsynced;
use testbed::apiserver::faults::{Action, Fault};
use tokio::time::sleep;

use crate::{
    things::Things,
    world::{Cluster, Like, map_path, never, owned, secret_path, secs, to, until},
};

/// Maps that own secrets; kubernetes/kubernetes#88097.
async fn families(cluster: &Cluster) {
    for number in 0..10 {
        let owner = cluster.map(&format!("owner-{number}"), Like::default()).await;
        cluster
            .secret(&format!("child-{number}"), owned([to(&owner, false)]))
            .await;
    }
    cluster.secret("leftover", owned([never("v1", "ConfigMap", 1)])).await;
}

async fn families_are_whole(cluster: &Cluster) {
    for number in 0..10 {
        assert!(cluster.get(&secret_path(&format!("child-{number}"))).await.is_some());
    }
}

async fn leftover_is_gone(cluster: &Cluster) {
    until("the leftover is gone", async || {
        cluster.get(&secret_path("leftover")).await.is_none()
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn while_the_first_list_of_owners_takes_long_nothing_is_concluded_or_asked_one_by_one() {
    let mut cluster = Cluster::new().await;
    families(&cluster).await;
    cluster.trouble(Fault::delay(secs(50)).verb("list").resource("configmaps"));
    cluster.start().await;
    sleep(secs(45)).await;
    assert_eq!(cluster.about_objects(), []);
    leftover_is_gone(&cluster).await;
    sleep(secs(60)).await;
    families_are_whole(&cluster).await;
    assert_eq!(cluster.asked("get", "configmaps"), 1);
}

#[tokio::test(start_paused = true)]
async fn while_the_first_list_of_owners_fails_they_are_asked_for_one_by_one() {
    for action in [
        Action::Refuse,
        Action::Status {
            code: 500,
            retry_after: None,
        },
    ] {
        let mut cluster = Cluster::new().await;
        families(&cluster).await;
        cluster.trouble(Fault::new(action).verb("list").resource("configmaps"));
        cluster.start().await;
        leftover_is_gone(&cluster).await;
        sleep(secs(60)).await;
        families_are_whole(&cluster).await;
        cluster.api.faults().clear();
        cluster.synced().await;
        sleep(secs(60)).await;
        families_are_whole(&cluster).await;
    }
}

/// A cluster whose secrets may not be listed.
async fn forbidden(unsynced: Unsynced) -> Cluster {
    let mut cluster = Cluster::new().await;
    cluster.unsynced = unsynced;
    cluster.trouble(Fault::status(403).verb("list").resource("secrets"));
    let secret = cluster.secret("owner", Like::default()).await;
    cluster.map("of-a-secret", owned([to(&secret, false)])).await;
    cluster.map("leftover", owned([never("v1", "Secret", 1)])).await;
    for name in ["foreground", "orphaning"] {
        let owner = cluster.map(name, Like::default()).await;
        cluster.map(&format!("of-{name}"), owned([to(&owner, true)])).await;
    }
    cluster.start().await;
    cluster.gone("leftover").await;
    cluster
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_may_not_be_listed_holds_up_only_what_rests_on_all_kinds_and_is_named() {
    let cluster = forbidden(Unsynced::Hold).await;
    let background = cluster.map("background", Like::default()).await;
    cluster.map("of-background", owned([to(&background, true)])).await;
    cluster.delete(&map_path("foreground"), "Foreground").await;
    cluster.delete(&map_path("orphaning"), "Orphan").await;
    cluster.delete(&map_path("background"), "Background").await;
    cluster.gone("of-background").await;
    cluster.gone("of-foreground").await;
    until("the orphan is released", async || {
        cluster.owners(&map_path("of-orphaning")).await.is_empty()
    })
    .await;
    sleep(secs(900)).await;
    assert!(cluster.is_there("foreground").await && cluster.is_there("orphaning").await);
    assert!(cluster.is_there("of-a-secret").await);
    let why = cluster.unsynced().unwrap();
    assert!(why.contains("secrets") && why.contains("403"), "{why}");
    let waiting = cluster.report().oldest;
    assert_eq!(
        waiting.iter().filter(|it| it.why.as_ref() == Some(&why)).count(),
        2,
        "{waiting:?}"
    );
    // Owners that cannot be watched are asked for, again and again.
    cluster.delete(&secret_path("owner"), "Background").await;
    sleep(secs(300)).await;
    cluster.gone("of-a-secret").await;
    cluster.api.faults().clear();
    cluster.gone("foreground").await;
    cluster.gone("orphaning").await;
}

#[tokio::test(start_paused = true)]
async fn after_five_minutes_what_rests_on_all_kinds_goes_on_without_one_if_that_is_wanted() {
    let cluster = forbidden(Unsynced::Proceed).await;
    cluster.delete(&map_path("foreground"), "Foreground").await;
    cluster.delete(&map_path("orphaning"), "Orphan").await;
    sleep(secs(240)).await;
    assert!(cluster.is_there("foreground").await && cluster.is_there("orphaning").await);
    sleep(secs(70)).await;
    assert!(!cluster.is_there("foreground").await && !cluster.is_there("orphaning").await);
    assert!(cluster.owners(&map_path("of-orphaning")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_five_minutes_begin_when_a_kind_is_lost_and_not_when_the_collector_began() {
    let mut cluster = Cluster::new().await;
    cluster.unsynced = Unsynced::Proceed;
    cluster.map("foreground", Like::default()).await;
    cluster.start_synced().await;
    sleep(secs(3600)).await;
    for verb in ["list", "watch"] {
        cluster.trouble(Fault::status(403).verb(verb).resource("secrets"));
    }
    cluster.trouble(Fault::new(Action::CutWatch).resource("secrets"));
    until("it is lost", async || cluster.unsynced().is_some()).await;
    cluster.delete(&map_path("foreground"), "Foreground").await;
    sleep(secs(200)).await;
    assert!(cluster.is_there("foreground").await);
    cluster.gone("foreground").await;
}

#[tokio::test(start_paused = true)]
async fn no_failed_question_makes_an_owner_absent() {
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
        families(&cluster).await;
        cluster.trouble(Fault::status(403).verb("list").resource("configmaps"));
        cluster.trouble(failure.clone().verb("get").resource("configmaps"));
        cluster.start().await;
        sleep(secs(200)).await;
        families_are_whole(&cluster).await;
        let failures = cluster.counts().failures;
        assert!(
            failures.keys().any(|it| it.starts_with("ask: ")),
            "{failure:?}: {failures:?}"
        );
        cluster.api.faults().clear();
        cluster.synced().await;
        sleep(secs(200)).await;
        leftover_is_gone(&cluster).await;
        families_are_whole(&cluster).await;
    }
}

#[tokio::test(start_paused = true)]
async fn questions_that_are_never_answered_hold_up_no_others() {
    let mut cluster = Cluster::new().await;
    for number in 0..8 {
        let name = format!("stuck-{number}");
        cluster.secret(&name, owned([never("v1", "ConfigMap", number)])).await;
        cluster.trouble(Fault::new(Action::Refuse).verb("delete").name(&name));
    }
    cluster.start_synced().await;
    sleep(secs(30)).await;
    for number in 100..200 {
        let owner = never("v1", "ConfigMap", number);
        cluster.map(&format!("map-{number}"), owned([owner])).await;
    }
    for number in 100..200 {
        cluster.gone(&format!("map-{number}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_kind_that_can_never_be_listed_keeps_no_other_from_being_watched() {
    let mut cluster = Cluster::new().await;
    let broken = Things::define(&cluster, "broken.test", true, &["v1"]).await;
    cluster.trouble(Fault::status(500).verb("list").resource("things"));
    let owner = cluster.map("owner", Like::default()).await;
    let thing = broken.create(&cluster, "thing", owned([to(&owner, false)])).await;
    cluster.map("of-the-thing", owned([to(&thing, false)])).await;
    cluster.map("child", owned([to(&owner, false)])).await;
    cluster.start().await;
    sleep(secs(60)).await;
    cluster.delete(&map_path("owner"), "Background").await;
    cluster.gone("child").await;
    let why = cluster.unsynced().unwrap();
    assert!(why.contains("things") && why.contains("500"), "{why}");
    sleep(secs(60)).await;
    assert!(cluster.is_there("of-the-thing").await && broken.is_there(&cluster, "thing").await);
}

#[tokio::test(start_paused = true)]
async fn an_object_is_decided_on_when_the_last_of_its_owners_is_heard_of() {
    let mut cluster = Cluster::new().await;
    let solid = cluster.secret("solid", Like::default()).await;
    cluster
        .map("child", owned([never("v1", "ConfigMap", 1), to(&solid, false)]))
        .await;
    cluster.trouble(Fault::delay(secs(20)).verb("list").resource("secrets"));
    cluster.start().await;
    sleep(secs(10)).await;
    assert_eq!(cluster.asked("patch", "configmaps"), 0);
    until("one reference is left", async || {
        cluster.owners(&map_path("child")).await == ["solid"]
    })
    .await;
}
