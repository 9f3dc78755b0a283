//! Writes of other clients between a decision and its request, and late events.

use serde_json::{Value, json};
use testbed::apiserver::faults::{Action, Fault};
use tokio::time::sleep;

use crate::{
    things::Things,
    world::{
        Cluster, ObjectSpec, TEST_FINALIZER, absent_owner, map_path, owned, secret_path, secs, to, until,
        with_finalizer,
    },
};

#[tokio::test(start_paused = true)]
async fn an_ownership_cycle_is_deleted_without_a_conflict() {
    let mut cluster = Cluster::new().await;
    cluster.create_cycle().await;
    cluster.start_synced().await;
    cluster.api.forget_requests();
    cluster.delete(&map_path("a"), "Foreground").await;
    for name in ["a", "b", "c"] {
        cluster.wait_for_deletion(name).await;
    }
    sleep(secs(5)).await;
    let asked: Vec<String> = cluster
        .object_requests()
        .into_iter()
        .map(|it| format!("{} {} {:?}", it.asked.verb, it.asked.name, it.code))
        .collect();
    assert!(!asked.iter().any(|it| it.contains("409")), "{asked:#?}");
    // One GET per object confirms its state. b is deleted, c is unblocked and deleted, and all three lose their
    // finalizers.
    assert!(asked.len() <= 3 + 1 + 3 + 6, "{asked:#?}");
}

/// Changes the references of `child` to `meanwhile` while the collector's patch is in flight. Things get a merge patch,
/// ConfigMaps a strategic merge patch.
async fn change_references_during_patch(as_thing: bool, meanwhile: Value) -> (Cluster, String) {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let solid = cluster.map("solid", ObjectSpec::default()).await;
    let other = cluster.map("other", ObjectSpec::default()).await;
    let spec = owned([absent_owner("v1", "ConfigMap", 1), to(&solid, false)]);
    let path = if as_thing {
        things.create(&cluster, "child", spec).await;
        things.path("child")
    } else {
        cluster.map("child", spec).await;
        map_path("child")
    };
    cluster.inject(Fault::delay(secs(2)).verb("patch").name("child"));
    cluster.start_synced().await;
    // Things reject the strategic merge patch first, which takes time.
    sleep(secs(if as_thing { 3 } else { 1 })).await;
    let mut references = meanwhile.as_array().cloned().unwrap();
    for reference in &mut references {
        *reference = match reference.as_str().unwrap() {
            "never" => absent_owner("v1", "ConfigMap", 1),
            "solid" => to(&solid, false),
            _ => to(&other, false),
        };
    }
    cluster.change(&path, json!({ "ownerReferences": references })).await;
    (cluster, path)
}

#[tokio::test(start_paused = true)]
async fn a_reference_added_while_another_is_dropped_is_not_lost() {
    for as_thing in [false, true] {
        let (cluster, path) = change_references_during_patch(as_thing, json!(["never", "solid", "other"])).await;
        until("two are left", async || {
            cluster.owners(&path).await == ["solid", "other"]
        })
        .await;
        assert!(cluster.counts().conflicts > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reference_removed_while_another_is_dropped_is_not_restored() {
    for as_thing in [false, true] {
        let (cluster, path) = change_references_during_patch(as_thing, json!(["solid"])).await;
        sleep(secs(30)).await;
        assert_eq!(cluster.owners(&path).await, ["solid"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_loses_its_last_owner_while_a_reference_is_dropped_is_deleted() {
    for as_thing in [false, true] {
        let (cluster, path) = change_references_during_patch(as_thing, json!(["never"])).await;
        until("it is gone", async || cluster.get(&path).await.is_none()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_owner_is_deleted_while_a_reference_is_dropped_is_deleted() {
    for as_thing in [false, true] {
        let (cluster, path) = change_references_during_patch(as_thing, json!(["never", "solid"])).await;
        cluster.delete(&map_path("solid"), "Background").await;
        until("it is gone", async || cluster.get(&path).await.is_none()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reference_removed_while_a_cycle_is_unblocked_is_not_restored() {
    let mut cluster = Cluster::new().await;
    let (a, b) = (
        cluster.map("a", ObjectSpec::default()).await,
        cluster.map("b", ObjectSpec::default()).await,
    );
    let refer = async |name: &str, owner: &Value| {
        let references = json!({ "ownerReferences": [to(owner, true)] });
        cluster.change(&map_path(name), references).await;
    };
    refer("a", &b).await;
    refer("b", &a).await;
    cluster.inject(Fault::delay(secs(2)).verb("patch").name("b").once());
    cluster.start_synced().await;
    cluster.delete(&map_path("a"), "Foreground").await;
    sleep(secs(1)).await;
    cluster.change(&map_path("b"), json!({ "ownerReferences": null })).await;
    cluster.wait_for_deletion("a").await;
    sleep(secs(30)).await;
    assert!(cluster.owners(&map_path("b")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_owner_keeps_its_finalizer_while_a_dependents_deletion_is_in_flight() {
    let mut cluster = Cluster::new().await;
    let a = cluster.map("a", with_finalizer([])).await;
    let b = cluster.map("b", owned([to(&a, true)])).await;
    // So b is unblocked first, and no longer blocks when it is deleted.
    cluster
        .change(&map_path("a"), json!({ "ownerReferences": [to(&b, true)] }))
        .await;
    cluster.inject(Fault::delay(secs(5)).verb("delete").name("b").once());
    cluster.start_synced().await;
    cluster.delete(&map_path("a"), "Foreground").await;
    sleep(secs(3)).await;
    let waits = async || {
        let finalizers = cluster.get(&map_path("a")).await.unwrap()["metadata"]["finalizers"].to_string();
        finalizers.contains("foregroundDeletion")
    };
    assert!(waits().await);
    until("a waits no more", async || !waits().await).await;
    cluster.change(&map_path("a"), json!({ "finalizers": null })).await;
    cluster.wait_for_deletion("a").await;
    cluster.wait_for_deletion("b").await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_gets_an_owner_while_its_deletion_is_in_flight_stays() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    cluster.map("child", owned([absent_owner("v1", "ConfigMap", 1)])).await;
    cluster.inject(Fault::delay(secs(2)).verb("delete").name("child").once());
    cluster.start_synced().await;
    sleep(secs(1)).await;
    cluster
        .change(&map_path("child"), json!({ "ownerReferences": [to(&owner, false)] }))
        .await;
    sleep(secs(60)).await;
    assert!(cluster.exists("child").await);
}

#[tokio::test(start_paused = true)]
async fn a_dependent_seen_only_after_its_orphaning_owner_is_deleted_stays() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    cluster.start_synced().await;
    cluster.inject(Fault::new(Action::StallWatch).resource("secrets").once());
    cluster.secret("child", owned([to(&owner, true)])).await;
    cluster.delete(&map_path("owner"), "Orphan").await;
    cluster.wait_for_deletion("owner").await;
    // A silent watch is closed after three minutes.
    sleep(secs(200)).await;
    until("it is released", async || {
        cluster.owners(&secret_path("child")).await.is_empty()
    })
    .await;
}

/// The collector removed the finalizer itself, and the watch does not show that yet.
#[tokio::test(start_paused = true)]
async fn an_owner_that_stays_after_its_finalizer_was_removed_keeps_new_dependents() {
    for policy in ["Foreground", "Orphan"] {
        let mut cluster = Cluster::new().await;
        let owner = cluster.map("owner", with_finalizer([])).await;
        cluster.secret("early", owned([to(&owner, true)])).await;
        cluster.inject(Fault::delay(secs(2)).verb("patch").name("owner"));
        cluster.start_synced().await;
        cluster.delete(&map_path("owner"), policy).await;
        sleep(secs(1)).await;
        cluster.inject(Fault::new(Action::StallWatch).resource("configmaps").once());
        until("the finalizer is removed", async || {
            let owner = cluster.get(&map_path("owner")).await.unwrap();
            owner["metadata"]["finalizers"] == json!([TEST_FINALIZER])
        })
        .await;
        cluster
            .secret("late", owned([to(&owner, false), absent_owner("v1", "ConfigMap", 1)]))
            .await;
        sleep(secs(60)).await;
        assert!(cluster.get(&secret_path("late")).await.is_some(), "{policy}");
        assert_eq!(cluster.owners(&secret_path("late")).await, ["owner"], "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_that_started_unwatched_ends() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    cluster.map("child", owned([to(&owner, true)])).await;
    cluster.start_synced().await;
    for verb in ["watch", "list"] {
        cluster.inject(Fault::status(503).verb(verb).resource("configmaps"));
    }
    cluster.inject(Fault::new(Action::CutWatch).resource("configmaps").once());
    sleep(secs(1)).await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    cluster.api.compact();
    sleep(secs(10)).await;
    assert!(cluster.exists("child").await);
    cluster.api.faults().clear();
    cluster.wait_for_deletion("child").await;
    cluster.wait_for_deletion("owner").await;
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_that_is_repeated_ends_each_time() {
    let mut cluster = Cluster::new().await;
    cluster.map("owner", with_finalizer([])).await;
    cluster.start_synced().await;
    for _ in 0..3 {
        cluster.delete(&map_path("owner"), "Foreground").await;
        until("the finalizer is taken off", async || {
            let owner = cluster.get(&map_path("owner")).await.unwrap();
            owner["metadata"]["finalizers"] == json!([TEST_FINALIZER])
        })
        .await;
    }
    cluster.change(&map_path("owner"), json!({ "finalizers": null })).await;
    cluster.wait_for_deletion("owner").await;
}

#[tokio::test(start_paused = true)]
async fn a_dropped_collector_cancels_its_requests() {
    let mut cluster = Cluster::new().await;
    for number in 0..10 {
        let owner = absent_owner("v1", "ConfigMap", number);
        cluster.map(&format!("child-{number}"), owned([owner])).await;
    }
    cluster.inject(Fault::delay(secs(20)).verb("delete"));
    cluster.start_synced().await;
    sleep(secs(1)).await;
    cluster.stop();
    sleep(secs(1)).await;
    cluster.api.forget_requests();
    sleep(secs(120)).await;
    for number in 0..10 {
        assert!(cluster.exists(&format!("child-{number}")).await);
    }
    assert_eq!(cluster.requests(), []);
}
