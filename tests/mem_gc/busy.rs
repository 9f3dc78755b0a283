//! Kinds with slow or refused writes, and objects that change all the time: they delay nothing else.

use testbed::things::{DEFINITIONS, definition};
use tokio::time::Duration;

use crate::prelude::*;

/// Creates this many things with an owner that never existed.
async fn create_things_with_absent_owner(cluster: &Cluster, number: usize) {
    let things = Things::define(cluster, "a.test", true, &["v1"]).await;
    for number in 0..number {
        things
            .create(cluster, &format!("t-{number}"), owned([absent_config_map()]))
            .await;
    }
}

fn absent_config_map() -> Value {
    absent_owner("v1", "ConfigMap", 1)
}

/// Creates this many secrets with an absent owner, and waits until they are deleted.
async fn wait_for_secrets_deletion(cluster: &Cluster, number: usize) {
    for number in 0..number {
        cluster.insert_secret("default", &format!("s-{number}"), &[absent_owner("v1", "ConfigMap", 2)]);
    }
    let none_left = async || cluster.api.objects("v1", "Secret").is_empty();
    until("all secrets are gone", none_left).await;
}

fn things(cluster: &Cluster) -> usize {
    cluster.api.objects("a.test/v1", "Thing").len()
}

#[tokio::test(start_paused = true)]
async fn a_kind_with_429_answers_delays_no_other_kind() {
    for seconds in [1, 5, 300] {
        let mut cluster = Cluster::new().await;
        create_things_with_absent_owner(&cluster, 300).await;
        cluster.inject(Fault::too_many(seconds).verb("delete").resource("things"));
        cluster.start_synced().await;
        sleep(secs(5)).await;
        wait_for_secrets_deletion(&cluster, 2000).await;
        let tries = cluster.count_requests("delete", "things");
        assert!(tries < 500, "{tries} for {seconds} s each");
        cluster.api.faults().clear();
        sleep(secs(900)).await;
        assert_eq!(things(&cluster), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn one_object_with_429_answers_delays_no_other_object_of_its_kind() {
    let mut cluster = Cluster::new().await;
    create_things_with_absent_owner(&cluster, 1000).await;
    cluster.inject(Fault::too_many(300).verb("delete").name("t-0"));
    cluster.start_synced().await;
    until!(things(&cluster) == 1);
    cluster.api.faults().clear();
    sleep(secs(600)).await;
    assert_eq!(things(&cluster), 0);
}

/// The webhook refuses DELETE only. The secret's deletion needs a GET of a thing.
#[tokio::test(start_paused = true)]
async fn gets_of_a_kind_with_refused_deletions_are_sent() {
    let mut cluster = Cluster::new().await;
    create_things_with_absent_owner(&cluster, 10).await;
    cluster.inject(Fault::too_many(300).verb("delete").resource("things"));
    cluster.start_synced().await;
    sleep(secs(5)).await;
    cluster.insert_secret("default", "child", &[absent_owner("a.test/v1", "Thing", 7)]);
    until!(cluster.get(&secret_path("child")).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_kind_with_slow_deletions_delays_no_other_kind() {
    let mut cluster = Cluster::new().await;
    create_things_with_absent_owner(&cluster, 2000).await;
    cluster.inject(Fault::delay(secs(25)).verb("delete").resource("things"));
    cluster.start_synced().await;
    sleep(secs(60)).await;
    wait_for_secrets_deletion(&cluster, 2000).await;
    assert!(things(&cluster) > 500, "they are slow");
}

/// Names of roles have no limit.
#[tokio::test(start_paused = true)]
async fn an_object_with_a_very_long_name_is_collected() {
    let mut cluster = Cluster::new().await;
    let name = "n".repeat(2000);
    cluster.insert_secret("default", &name, &[absent_config_map()]);
    cluster.start_synced().await;
    until!(cluster.get(&secret_path(&name)).await.is_none());
}

/// Changes the object's annotations all the time until `is_done`, and returns how long that took.
async fn while_it_changes(cluster: &Cluster, path: &str, is_done: impl AsyncFn() -> bool) -> Duration {
    let started = Instant::now();
    while !is_done().await {
        assert!(started.elapsed() < secs(60), "it takes too long");
        let patch = json!({ "metadata": { "annotations": { "beat": format!("{:?}", started.elapsed()) } } });
        drop(cluster.admin.patch(path, Patch::Merge, &patch).await);
        sleep(Duration::from_millis(5)).await;
    }
    started.elapsed()
}

/// The delay makes requests with a resourceVersion precondition come too late.
fn late(verb: &str) -> Fault {
    Fault::delay(Duration::from_millis(20)).verb(verb)
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changes_faster_than_any_deletion_is_deleted_after_a_few_conflicts() {
    let mut cluster = Cluster::new().await;
    cluster.inject(late("delete"));
    cluster.start_synced().await;
    cluster.map("child", owned([absent_config_map()])).await;
    let duration = while_it_changes(&cluster, &map_path("child"), async || !cluster.exists("child").await).await;
    assert!(duration < secs(3), "{duration:?}");
    let conflicts = cluster.counts().conflicts;
    assert!(conflicts <= 3, "{conflicts}");
}

#[tokio::test(start_paused = true)]
async fn a_changing_object_that_gets_an_owner_is_not_deleted() {
    let mut cluster = Cluster::new().await;
    cluster.inject(late("delete"));
    cluster.start_synced().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    cluster.map("child", owned([absent_config_map()])).await;
    let all = async || cluster.counts().conflicts == 3;
    while_it_changes(&cluster, &map_path("child"), all).await;
    cluster
        .change(&map_path("child"), json!({ "ownerReferences": [to(&owner, false)] }))
        .await;
    let started = Instant::now();
    while_it_changes(&cluster, &map_path("child"), async || started.elapsed() > secs(30)).await;
    assert!(cluster.exists("child").await);
}

#[tokio::test(start_paused = true)]
async fn references_and_finalizers_of_changing_objects_are_removed() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    cluster.inject(late("patch"));
    cluster.start_synced().await;
    let solid = cluster.map("solid", ObjectSpec::default()).await;
    let spec = || owned([absent_config_map(), to(&solid, false)]);
    cluster.map("map", spec()).await;
    things.create(&cluster, "thing", spec()).await;
    for path in [map_path("map"), things.path("thing")] {
        let released = async || cluster.owners(&path).await == ["solid"];
        let duration = while_it_changes(&cluster, &path, released).await;
        assert!(duration < secs(3), "{path}: {duration:?}");
        cluster.change(&path, json!({ "finalizers": [TEST_FINALIZER] })).await;
        cluster.delete(&path, "Foreground").await;
        let finished = async || cluster.get(&path).await.unwrap()["metadata"]["finalizers"] == json!([TEST_FINALIZER]);
        let duration = while_it_changes(&cluster, &path, finished).await;
        assert!(duration < secs(3), "{path}: {duration:?}");
    }
}

/// Defines this many kinds of one group, and returns their plurals.
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
async fn forty_kinds_with_unanswered_lists_delay_no_other_list() {
    let mut cluster = Cluster::new().await;
    for plural in many_kinds(&cluster, "a.test", 40).await {
        cluster.inject(Fault::delay(secs(100)).verb("list").resource(&plural));
    }
    let healthy = Things::define(&cluster, "z.test", true, &["v1"]).await;
    healthy.create(&cluster, "child", owned([absent_config_map()])).await;
    cluster.start().await;
    let started = Instant::now();
    healthy.wait_for_deletion(&cluster, "child").await;
    assert!(started.elapsed() < secs(5), "{:?}", started.elapsed());
    // The same while all of them are retried.
    for round in 0..5 {
        sleep(secs(17)).await;
        cluster.inject(Fault::new(Action::CutWatch).resource("things").once());
        cluster.api.compact();
        let name = format!("child-{round}");
        healthy.create(&cluster, &name, owned([absent_config_map()])).await;
        let started = Instant::now();
        healthy.wait_for_deletion(&cluster, &name).await;
        assert!(started.elapsed() < secs(5), "{round}: {:?}", started.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn owners_with_unanswered_gets_delay_no_background_deletion() {
    let mut cluster = Cluster::new().await;
    let mut number = 0;
    for plural in many_kinds(&cluster, "a.test", 4).await {
        cluster.inject(Fault::status(500).verb("list").resource(&plural));
        cluster.inject(Fault::delay(secs(100)).verb("get").resource(&plural));
        let kind = plural.replace("things", "Thing");
        for instance in 0..150 {
            number += 1;
            let owner = absent_owner("a.test/v1", &kind, number);
            cluster.insert_secret("default", &format!("{plural}-{instance}"), &[owner]);
        }
    }
    let owner = cluster.secret("owner", ObjectSpec::default()).await;
    for number in 0..2000 {
        cluster.insert_secret("default", &format!("child-{number}"), &[to(&owner, false)]);
    }
    cluster.start().await;
    sleep(secs(90)).await;
    cluster.delete(&secret_path("owner"), "Background").await;
    let started = Instant::now();
    until!(cluster.api.objects("v1", "Secret").len() <= 600);
    assert!(started.elapsed() < secs(20), "{:?}", started.elapsed());
}

/// Deletes of one connection fail together.
#[tokio::test(start_paused = true)]
async fn requests_of_one_broken_connection_cost_one_pause() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    for number in 0..200 {
        cluster
            .map(&format!("child-{number}"), owned([to(&owner, false)]))
            .await;
    }
    cluster.start_synced().await;
    cluster.inject(Fault::new(Action::Refuse).verb("delete"));
    cluster.delete(&map_path("owner"), "Background").await;
    sleep(secs(2)).await;
    let sent = cluster.count_requests("delete", "configmaps");
    assert!(sent >= 2, "no connection broke");
    cluster.api.faults().clear();
    let started = Instant::now();
    for number in 0..200 {
        cluster.wait_for_deletion(&format!("child-{number}")).await;
    }
    assert!(started.elapsed() < secs(5), "{:?}", started.elapsed());
}
