//! What is learned once is not asked for again, and what cannot change costs nothing.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use serde_json::json;
use tokio::time::sleep;

use crate::world::{Cluster, Like, map_path, never, owned, secs, to, until};

fn left(cluster: &Cluster) -> usize {
    cluster.api.objects("v1", "Secret").len()
}

/// CPU time of this thread: of the test, the collector and the server.
fn cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

#[tokio::test(start_paused = true)]
async fn the_absence_of_600_owners_is_learned_by_one_question_each() {
    let mut cluster = Cluster::new().await;
    for number in 0..1800 {
        let owner = never("v1", "ConfigMap", number % 600);
        cluster.insert_secret("default", &format!("child-{number}"), &[owner]);
    }
    cluster.start_synced().await;
    until("all are gone", async || left(&cluster) == 0).await;
    assert_eq!(cluster.asked("get", "configmaps"), 600);
    assert_eq!(
        (cluster.asked("get", "secrets"), cluster.asked("delete", "secrets")),
        (0, 1800)
    );
}

/// Requests about objects, and CPU time, that the foreground deletion of an owner with so many dependents takes.
async fn foreground(dependents: usize) -> (usize, Duration) {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    let owners = [to(&owner, true)];
    for number in 0..dependents {
        cluster.insert_secret("default", &format!("child-{number}"), &owners);
    }
    cluster.start_synced().await;
    cluster.api.forget_requests();
    let begun = cpu();
    cluster.delete(&map_path("owner"), "Foreground").await;
    let mut asked = 0;
    while !cluster.api.objects("v1", "ConfigMap").is_empty() {
        // The server remembers the last ones only.
        sleep(Duration::from_millis(10)).await;
        asked += cluster.about_objects().len();
        cluster.api.forget_requests();
    }
    assert_eq!(left(&cluster), 0);
    (asked, cpu() - begun)
}

#[tokio::test(start_paused = true)]
async fn an_owner_in_the_foreground_takes_a_request_for_each_dependent_and_no_more_time_the_more_there_are() {
    let (few, many) = (2_000, 20_000);
    let (asked, first) = foreground(few).await;
    assert!(asked <= few + 8, "{asked}");
    let (asked, then) = foreground(many).await;
    assert!(asked <= many + 8, "{asked}");
    eprintln!("{few}: {first:?}, {many}: {then:?}");
    // Ten times as many take ten times as long; were it quadratic, it would be a hundred times.
    assert!(then < first * 30, "{few}: {first:?}, {many}: {then:?}");
}

#[tokio::test(start_paused = true)]
async fn a_reference_that_nobody_can_follow_costs_nothing_and_is_told_of() {
    let mut cluster = Cluster::new().await;
    for (name, version, kind) in [
        ("group", "nobody.test/v1", "Thing"),
        ("version", "apps/v9", "Nothing"),
        ("kind", "v1", "Thing"),
    ] {
        cluster.map(name, owned([never(version, kind, 1)])).await;
    }
    cluster.start_synced().await;
    sleep(secs(5)).await;
    let told = cluster.report();
    let mut kept: Vec<&str> = told.kept.iter().map(|it| &*it.owner).collect();
    kept.sort_unstable();
    assert_eq!(
        kept,
        [
            "Nothing.apps default/never",
            "Thing default/never",
            "Thing.nobody.test default/never"
        ]
    );
    sleep(secs(3600)).await;

    assert_eq!(cluster.about_objects(), []);
    assert_eq!(cluster.report().kept, told.kept);
    assert!(cluster.is_there("group").await && cluster.is_there("version").await && cluster.is_there("kind").await);
}

#[tokio::test(start_paused = true)]
async fn an_object_with_a_solid_owner_may_change_a_thousand_times_for_nothing() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    for number in 0..10 {
        cluster.map(&format!("child-{number}"), owned([to(&owner, true)])).await;
    }
    cluster.start_synced().await;
    let before = cluster.counts().events;
    for round in 0..100 {
        for number in 0..10 {
            let mut child = cluster.api.objects("v1", "ConfigMap")[number].clone();
            child["apiVersion"] = "v1".into();
            child["kind"] = "ConfigMap".into();
            child["data"] = json!({ "round": round.to_string() });
            cluster.api.insert_raw(child).unwrap();
        }
        sleep(Duration::from_millis(100)).await;
    }
    until("all is heard of", async || cluster.counts().events >= before + 1000).await;
    assert_eq!(cluster.about_objects(), []);
}
