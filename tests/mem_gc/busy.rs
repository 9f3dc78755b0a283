//! Kinds whose writes are slow or refused, and objects that change all the time: nothing else waits for them.

use serde_json::{Value, json};
use testbed::{
    apiserver::faults::{Action, Fault},
    rest::Patch,
    things::{DEFINITIONS, definition},
};
use tokio::time::{Duration, Instant, sleep};

use crate::{
    things::Things,
    world::{Cluster, HELD, Like, map_path, never, owned, secret_path, secs, to, until},
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

/// Changes an object all the time, as somebody who writes its status does, until `is_over`.
async fn while_it_changes(cluster: &Cluster, path: &str, is_over: impl AsyncFn() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_over().await {
        assert!(begun.elapsed() < secs(60), "it takes too long");
        let patch = json!({ "metadata": { "annotations": { "beat": format!("{:?}", begun.elapsed()) } } });
        drop(cluster.admin.patch(path, Patch::Merge, &patch).await);
        sleep(Duration::from_millis(5)).await;
    }
    begun.elapsed()
}

/// The server takes long enough for whatever insists on a version to come too late.
fn late(verb: &str) -> Fault {
    Fault::delay(Duration::from_millis(20)).verb(verb)
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changes_faster_than_any_deletion_is_deleted_after_a_few_conflicts() {
    let mut cluster = Cluster::new().await;
    cluster.trouble(late("delete"));
    cluster.start_synced().await;
    cluster.map("child", owned([absent()])).await;
    let took = while_it_changes(&cluster, &map_path("child"), async || !cluster.is_there("child").await).await;
    assert!(took < secs(3), "{took:?}");
    let conflicts = cluster.counts().conflicts;
    assert!(conflicts <= 3, "{conflicts}");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changes_all_the_time_and_is_adopted_at_last_stays() {
    let mut cluster = Cluster::new().await;
    cluster.trouble(late("delete"));
    cluster.start_synced().await;
    let owner = cluster.map("owner", Like::default()).await;
    cluster.map("child", owned([absent()])).await;
    let all = async || cluster.counts().conflicts == 3;
    while_it_changes(&cluster, &map_path("child"), all).await;
    cluster
        .change(&map_path("child"), json!({ "ownerReferences": [to(&owner, false)] }))
        .await;
    let begun = Instant::now();
    while_it_changes(&cluster, &map_path("child"), async || begun.elapsed() > secs(30)).await;
    assert!(cluster.is_there("child").await);
}

#[tokio::test(start_paused = true)]
async fn references_and_finalizers_of_objects_that_change_all_the_time_are_taken_out() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    cluster.trouble(late("patch"));
    cluster.start_synced().await;
    let solid = cluster.map("solid", Like::default()).await;
    let like = || owned([absent(), to(&solid, false)]);
    cluster.map("map", like()).await;
    things.create(&cluster, "thing", like()).await;
    for path in [map_path("map"), things.path("thing")] {
        let released = async || cluster.owners(&path).await == ["solid"];
        let took = while_it_changes(&cluster, &path, released).await;
        assert!(took < secs(3), "{path}: {took:?}");
        cluster.change(&path, json!({ "finalizers": [HELD] })).await;
        cluster.delete(&path, "Foreground").await;
        let finished = async || cluster.get(&path).await.unwrap()["metadata"]["finalizers"] == json!([HELD]);
        let took = while_it_changes(&cluster, &path, finished).await;
        assert!(took < secs(3), "{path}: {took:?}");
    }
}

/// Defines kinds of one group, each with a plural of its own.
async fn many_kinds(cluster: &Cluster, group: &'static str, number: usize) -> Vec<String> {
    let mut plurals = Vec::new();
    for number in 0..number {
        let (plural, kind) = (format!("things{number}"), format!("Thing{number}"));
        let mut definition = definition(group, true, &["v1"]);
        definition["metadata"]["name"] = format!("{plural}.{group}").into();
        definition["spec"]["names"] = json!({
            "plural": plural, "kind": kind, "singular": kind.to_lowercase(), "listKind": format!("{kind}List"),
        });
        cluster
            .admin
            .create(DEFINITIONS, &definition)
            .await
            .unwrap()
            .ok()
            .unwrap();
        plurals.push(plural);
    }
    plurals
}

#[tokio::test(start_paused = true)]
async fn forty_kinds_whose_lists_are_not_answered_keep_no_other_from_being_listed() {
    let mut cluster = Cluster::new().await;
    for plural in many_kinds(&cluster, "a.test", 40).await {
        cluster.trouble(Fault::delay(secs(100)).verb("list").resource(&plural));
    }
    let healthy = Things::define(&cluster, "z.test", true, &["v1"]).await;
    healthy.create(&cluster, "child", owned([absent()])).await;
    cluster.start().await;
    let begun = Instant::now();
    healthy.gone(&cluster, "child").await;
    assert!(begun.elapsed() < secs(5), "{:?}", begun.elapsed());
    // And when all of them are tried again and again.
    for round in 0..5 {
        sleep(secs(17)).await;
        cluster.trouble(Fault::new(Action::CutWatch).resource("things").once());
        cluster.api.compact();
        let name = format!("child-{round}");
        healthy.create(&cluster, &name, owned([absent()])).await;
        let begun = Instant::now();
        healthy.gone(&cluster, &name).await;
        assert!(begun.elapsed() < secs(5), "{round}: {:?}", begun.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn owners_of_kinds_that_are_not_answered_for_hold_up_no_background_deletion() {
    let mut cluster = Cluster::new().await;
    let mut number = 0;
    for plural in many_kinds(&cluster, "a.test", 4).await {
        cluster.trouble(Fault::status(500).verb("list").resource(&plural));
        cluster.trouble(Fault::delay(secs(100)).verb("get").resource(&plural));
        let kind = plural.replace("things", "Thing");
        for instance in 0..150 {
            number += 1;
            let owner = never("a.test/v1", &kind, number);
            cluster.insert_secret("default", &format!("{plural}-{instance}"), &[owner]);
        }
    }
    let owner = cluster.secret("owner", Like::default()).await;
    for number in 0..2000 {
        cluster.insert_secret("default", &format!("child-{number}"), &[to(&owner, false)]);
    }
    cluster.start().await;
    sleep(secs(90)).await;
    cluster.delete(&secret_path("owner"), "Background").await;
    let begun = Instant::now();
    until("the children are gone", async || {
        cluster.api.objects("v1", "Secret").len() <= 600
    })
    .await;
    assert!(begun.elapsed() < secs(20), "{:?}", begun.elapsed());
}
