//! Somebody else's writes between a decision and what follows from it, and news that comes too late.

use serde_json::{Value, json};
use testbed::apiserver::faults::{Action, Fault};
use tokio::time::sleep;

use crate::{
    things::Things,
    world::{Cluster, HELD, Like, held, map_path, never, owned, secret_path, secs, to, until},
};

#[tokio::test(start_paused = true)]
async fn a_circle_is_opened_without_a_conflict() {
    let mut cluster = Cluster::new().await;
    cluster.circle().await;
    cluster.start_synced().await;
    cluster.api.forget_requests();
    cluster.delete(&map_path("a"), "Foreground").await;
    for name in ["a", "b", "c"] {
        cluster.gone(name).await;
    }
    sleep(secs(5)).await;
    let asked: Vec<String> = cluster
        .about_objects()
        .into_iter()
        .map(|it| format!("{} {} {:?}", it.asked.verb, it.asked.name, it.code))
        .collect();
    assert!(!asked.iter().any(|it| it.contains("409")), "{asked:#?}");
    // Of each is asked once whether it waits; b is deleted, c opened and deleted, all three lose their finalizers.
    assert!(asked.len() <= 3 + 1 + 3 + 6, "{asked:#?}");
}

/// What a release of `child` meets while its patch is on the way, in JSON merge patch and in the server's own.
async fn released_while(as_thing: bool, meanwhile: Value) -> (Cluster, String) {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let solid = cluster.map("solid", Like::default()).await;
    let other = cluster.map("other", Like::default()).await;
    let like = owned([never("v1", "ConfigMap", 1), to(&solid, false)]);
    let path = if as_thing {
        things.create(&cluster, "child", like).await;
        things.path("child")
    } else {
        cluster.map("child", like).await;
        map_path("child")
    };
    cluster.trouble(Fault::delay(secs(2)).verb("patch").name("child"));
    cluster.start_synced().await;
    // The server's own form is refused for things, which takes its time.
    sleep(secs(if as_thing { 3 } else { 1 })).await;
    let mut references = meanwhile.as_array().cloned().unwrap();
    for reference in &mut references {
        *reference = match reference.as_str().unwrap() {
            "never" => never("v1", "ConfigMap", 1),
            "solid" => to(&solid, false),
            _ => to(&other, false),
        };
    }
    cluster.change(&path, json!({ "ownerReferences": references })).await;
    (cluster, path)
}

#[tokio::test(start_paused = true)]
async fn a_reference_that_comes_while_another_is_taken_out_is_not_lost() {
    for as_thing in [false, true] {
        let (cluster, path) = released_while(as_thing, json!(["never", "solid", "other"])).await;
        until("two are left", async || {
            cluster.owners(&path).await == ["solid", "other"]
        })
        .await;
        assert!(cluster.counts().conflicts > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_reference_that_goes_while_another_is_taken_out_does_not_come_back() {
    for as_thing in [false, true] {
        let (cluster, path) = released_while(as_thing, json!(["solid"])).await;
        sleep(secs(30)).await;
        assert_eq!(cluster.owners(&path).await, ["solid"]);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_loses_its_last_owner_while_another_is_taken_out_is_deleted() {
    for as_thing in [false, true] {
        let (cluster, path) = released_while(as_thing, json!(["never"])).await;
        until("it is gone", async || cluster.get(&path).await.is_none()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_whose_solid_owner_goes_while_another_is_taken_out_is_deleted() {
    for as_thing in [false, true] {
        let (cluster, path) = released_while(as_thing, json!(["never", "solid"])).await;
        cluster.delete(&map_path("solid"), "Background").await;
        until("it is gone", async || cluster.get(&path).await.is_none()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_reference_that_goes_while_a_circle_is_opened_does_not_come_back() {
    let mut cluster = Cluster::new().await;
    let (a, b) = (
        cluster.map("a", Like::default()).await,
        cluster.map("b", Like::default()).await,
    );
    let refer = async |name: &str, owner: &Value| {
        let references = json!({ "ownerReferences": [to(owner, true)] });
        cluster.change(&map_path(name), references).await;
    };
    refer("a", &b).await;
    refer("b", &a).await;
    cluster.trouble(Fault::delay(secs(2)).verb("patch").name("b").once());
    cluster.start_synced().await;
    cluster.delete(&map_path("a"), "Foreground").await;
    sleep(secs(1)).await;
    cluster.change(&map_path("b"), json!({ "ownerReferences": null })).await;
    cluster.gone("a").await;
    sleep(secs(30)).await;
    assert!(cluster.owners(&map_path("b")).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_owner_keeps_waiting_while_a_deletion_that_rests_on_it_is_on_the_way() {
    let mut cluster = Cluster::new().await;
    let a = cluster.map("a", held([])).await;
    let b = cluster.map("b", owned([to(&a, true)])).await;
    // So that b has to be opened first, and does not block any more when it is deleted.
    cluster
        .change(&map_path("a"), json!({ "ownerReferences": [to(&b, true)] }))
        .await;
    cluster.trouble(Fault::delay(secs(5)).verb("delete").name("b").once());
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
    cluster.gone("a").await;
    cluster.gone("b").await;
}

#[tokio::test(start_paused = true)]
async fn an_object_that_is_adopted_while_it_is_being_deleted_stays() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    cluster.map("child", owned([never("v1", "ConfigMap", 1)])).await;
    cluster.trouble(Fault::delay(secs(2)).verb("delete").name("child").once());
    cluster.start_synced().await;
    sleep(secs(1)).await;
    cluster
        .change(&map_path("child"), json!({ "ownerReferences": [to(&owner, false)] }))
        .await;
    sleep(secs(60)).await;
    assert!(cluster.is_there("child").await);
}

#[tokio::test(start_paused = true)]
async fn a_dependent_heard_of_only_after_its_orphaning_owner_has_gone_stays() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    cluster.start_synced().await;
    cluster.trouble(Fault::new(Action::StallWatch).resource("secrets").once());
    cluster.secret("child", owned([to(&owner, true)])).await;
    cluster.delete(&map_path("owner"), "Orphan").await;
    cluster.gone("owner").await;
    // A watch that says nothing is given up after three minutes.
    sleep(secs(200)).await;
    until("it is released", async || {
        cluster.owners(&secret_path("child")).await.is_empty()
    })
    .await;
}

/// The collector took the finalizer off itself, and the watch does not show that yet.
#[tokio::test(start_paused = true)]
async fn an_owner_that_stays_after_its_finalizer_was_removed_is_solid_for_a_dependent_that_comes_then() {
    for policy in ["Foreground", "Orphan"] {
        let mut cluster = Cluster::new().await;
        let owner = cluster.map("owner", held([])).await;
        cluster.secret("early", owned([to(&owner, true)])).await;
        cluster.trouble(Fault::delay(secs(2)).verb("patch").name("owner"));
        cluster.start_synced().await;
        cluster.delete(&map_path("owner"), policy).await;
        sleep(secs(1)).await;
        cluster.trouble(Fault::new(Action::StallWatch).resource("configmaps").once());
        until("the finalizer is removed", async || {
            let owner = cluster.get(&map_path("owner")).await.unwrap();
            owner["metadata"]["finalizers"] == json!([HELD])
        })
        .await;
        cluster
            .secret("late", owned([to(&owner, false), never("v1", "ConfigMap", 1)]))
            .await;
        sleep(secs(60)).await;
        assert!(cluster.get(&secret_path("late")).await.is_some(), "{policy}");
        assert_eq!(cluster.owners(&secret_path("late")).await, ["owner"], "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_that_began_unseen_ends() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    cluster.map("child", owned([to(&owner, true)])).await;
    cluster.start_synced().await;
    for verb in ["watch", "list"] {
        cluster.trouble(Fault::status(503).verb(verb).resource("configmaps"));
    }
    cluster.trouble(Fault::new(Action::CutWatch).resource("configmaps").once());
    sleep(secs(1)).await;
    cluster.delete(&map_path("owner"), "Foreground").await;
    cluster.api.compact();
    sleep(secs(10)).await;
    assert!(cluster.is_there("child").await);
    cluster.api.faults().clear();
    cluster.gone("child").await;
    cluster.gone("owner").await;
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_that_is_begun_twice_ends_twice() {
    let mut cluster = Cluster::new().await;
    cluster.map("owner", held([])).await;
    cluster.start_synced().await;
    for _ in 0..3 {
        cluster.delete(&map_path("owner"), "Foreground").await;
        until("the finalizer is taken off", async || {
            let owner = cluster.get(&map_path("owner")).await.unwrap();
            owner["metadata"]["finalizers"] == json!([HELD])
        })
        .await;
    }
    cluster.change(&map_path("owner"), json!({ "finalizers": null })).await;
    cluster.gone("owner").await;
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_is_dropped_takes_its_requests_along() {
    let mut cluster = Cluster::new().await;
    for number in 0..10 {
        let owner = never("v1", "ConfigMap", number);
        cluster.map(&format!("child-{number}"), owned([owner])).await;
    }
    cluster.trouble(Fault::delay(secs(20)).verb("delete"));
    cluster.start_synced().await;
    sleep(secs(1)).await;
    cluster.stop();
    sleep(secs(1)).await;
    cluster.api.forget_requests();
    sleep(secs(120)).await;
    for number in 0..10 {
        assert!(cluster.is_there(&format!("child-{number}")).await);
    }
    assert_eq!(cluster.requests(), []);
}
