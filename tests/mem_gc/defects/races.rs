//! Writes of other clients between a decision and its request, and late events.

use crate::prelude::*;

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

/// Changes the references of `child` to `meanwhile` while the collector's patch is in flight.
async fn change_references_during_patch(as_thing: bool, meanwhile: &[&str]) -> (Cluster, String) {
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
    sleep(secs(1)).await;
    let reference = |name: &&str| match *name {
        "never" => absent_owner("v1", "ConfigMap", 1),
        "solid" => to(&solid, false),
        _ => to(&other, false),
    };
    let references: Vec<Value> = meanwhile.iter().map(reference).collect();
    cluster.change(&path, json!({ "ownerReferences": references })).await;
    (cluster, path)
}

/// References that another client sets, and those that are left in the end; without any the object is deleted.
#[tokio::test(start_paused = true)]
async fn references_changed_while_one_is_dropped_are_neither_lost_nor_restored() {
    for as_thing in [false, true] {
        for (meanwhile, is_solid_deleted, left) in [
            (&["never", "solid", "other"][..], false, &["solid", "other"][..]),
            (&["solid"], false, &["solid"]),
            (&["never"], false, &[]),
            (&["never", "solid"], true, &[]),
        ] {
            let (cluster, path) = change_references_during_patch(as_thing, meanwhile).await;
            if is_solid_deleted {
                cluster.delete(&map_path("solid"), "Background").await;
            }
            until!(match cluster.get(&path).await {
                Some(object) => !left.is_empty() && owners_of(&object) == left,
                None => left.is_empty(),
            });
            sleep(secs(30)).await;
            assert_eq!(cluster.get(&path).await.is_some(), !left.is_empty(), "{meanwhile:?}");
            assert!(cluster.counts().conflicts > 0 || left.len() < 2, "{meanwhile:?}");
        }
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
    until!(!waits().await);
    cluster.change(&map_path("a"), json!({ "finalizers": null })).await;
    cluster.wait_for_deletion("a").await;
    cluster.wait_for_deletion("b").await;
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
