//! A server that is busy, that was put back to an older state, or that is another one.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use testbed::{
    api::ApiServer as _,
    apiserver::{
        Config, MemApiServer,
        faults::{Action, Fault},
    },
};
use tokio::time::{Instant, sleep};

use crate::world::{COLLECTOR, Cluster, Like, map_path, never, owned, secs, to, until};

/// Another server answers behind the same address, with these objects in it.
async fn replaced(cluster: &mut Cluster, first_version: u64, objects: &[Value]) {
    let listen = cluster.api.url().trim_start_matches("http://").parse().unwrap();
    let config = Config {
        listen,
        first_version,
        ..Config::default()
    };
    // Dropping the old one closes its connections.
    cluster.api = MemApiServer::start(Config::default()).await.unwrap();
    let free = Instant::now() + secs(60);
    loop {
        if let Ok(server) = MemApiServer::start(config.clone()).await {
            for object in objects {
                server.insert_raw(object.clone()).unwrap();
            }
            cluster.api = server;
            break;
        }
        assert!(Instant::now() < free, "the address is not free");
        sleep(secs(1)).await;
    }
    cluster.admin = cluster.api.admin().unwrap();
}

/// What tells clusters apart.
async fn identity(cluster: &Cluster) -> Value {
    let namespace = cluster.get("/api/v1/namespaces/kube-system").await.unwrap();
    let metadata = json!({ "name": "kube-system", "uid": namespace["metadata"]["uid"] });
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata })
}

fn map(name: &str, number: u64, owners: &[Value]) -> Value {
    let uid = format!("5eed0000-0000-4000-8000-{number:012}");
    let metadata = json!({ "name": name, "namespace": "default", "uid": uid, "ownerReferences": owners });
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata })
}

fn insert(cluster: &Cluster, object: &Value) {
    cluster.api.insert_raw(object.clone()).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_put_back_makes_it_forget_everything_and_deletes_nothing() {
    let mut cluster = Cluster::new().await;
    let owner = map("owner", 1, &[]);
    let child = map("child", 2, &[to(&owner, false)]);
    insert(&cluster, &owner);
    insert(&cluster, &child);
    for number in 0..500 {
        insert(&cluster, &map(&format!("other-{number}"), 100 + number, &[]));
    }
    cluster.start_synced().await;
    let known = identity(&cluster).await;
    replaced(&mut cluster, 1, &[known, child, owner]).await;
    let why = cluster.ended().await;
    assert!(why.contains("was restored from a backup"), "{why}");
    assert!(cluster.is_there("child").await && cluster.is_there("owner").await);
    // From nothing it learns what there is.
    cluster.start_synced().await;
    sleep(secs(60)).await;
    assert!(cluster.is_there("child").await && cluster.is_there("owner").await);
    cluster.delete(&map_path("owner"), "Background").await;
    cluster.gone("child").await;
}

#[tokio::test(start_paused = true)]
async fn what_was_about_to_be_deleted_is_not_when_the_store_is_put_back() {
    let mut cluster = Cluster::new().await;
    let owner = map("owner", 1, &[]);
    let child = map("child", 2, &[to(&owner, false)]);
    let known = identity(&cluster).await;
    // Two stores with the same past: the child has the same version in both.
    replaced(&mut cluster, 1_000, &[known.clone(), child.clone(), owner.clone()]).await;
    let before = cluster.get(&map_path("child")).await.unwrap();
    cluster.start_synced().await;
    cluster.trouble(Fault::status(503).verb("delete").name("child"));
    cluster.delete(&map_path("owner"), "Background").await;
    until("it is tried", async || cluster.asked("delete", "configmaps") > 0).await;
    // The state of half a minute ago is remembered; nobody restores a younger one.
    for number in 0..10 {
        insert(&cluster, &map(&format!("other-{number}"), 100 + number, &[]));
    }
    sleep(secs(40)).await;
    // The restored one has the owner.
    replaced(&mut cluster, 1_000, &[known, child, owner]).await;
    let after = cluster.get(&map_path("child")).await.unwrap();
    assert_eq!(
        before["metadata"]["resourceVersion"],
        after["metadata"]["resourceVersion"]
    );
    let why = cluster.ended().await;
    assert!(why.contains("was restored from a backup"), "{why}");
    assert!(cluster.is_there("child").await);
}

#[tokio::test(start_paused = true)]
async fn another_cluster_behind_the_address_is_not_used() {
    let mut cluster = Cluster::new().await;
    let owner = map("owner", 1, &[]);
    let child = map("child", 2, &[to(&owner, false)]);
    insert(&cluster, &owner);
    insert(&cluster, &child);
    cluster.start_synced().await;
    let known = identity(&cluster).await;
    for first_version in [1, 1_000_000] {
        replaced(&mut cluster, first_version, std::slice::from_ref(&child)).await;
        sleep(secs(300)).await;
        assert!(cluster.is_there("child").await);
        let asked = cluster.requests();
        // But for the question which one it is.
        assert!(
            asked.iter().all(|it| it.asked.path.contains("kube-system")),
            "{asked:?}"
        );
    }
    replaced(&mut cluster, 2_000_000, &[known, owner, child]).await;
    sleep(secs(300)).await;
    assert!(cluster.is_there("child").await);
    cluster.delete(&map_path("owner"), "Background").await;
    cluster.gone("child").await;
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_busy_is_left_alone_as_long_as_it_asks_and_all_is_done_in_the_end() {
    let mut cluster = Cluster::new().await;
    for number in 0..200 {
        let owner = never("v1", "ConfigMap", number);
        cluster.map(&format!("map-{number}"), owned([owner])).await;
    }
    cluster.trouble(Fault::too_many(7).verb("delete").times(30));
    cluster.trouble(Fault::too_many(3).verb("get").resource("configmaps").times(30));
    cluster.start_synced().await;
    // Refused three times in a row it begins nothing of the kind for as long as it was told.
    let refused = async |verb: &str| {
        let all = cluster.requests();
        all.iter()
            .filter(|it| it.asked.verb == verb && it.code == Some(429))
            .count()
    };
    until("it is refused", async || refused("delete").await >= 3).await;
    sleep(secs(1)).await;
    let before = cluster.asked("delete", "configmaps");
    sleep(secs(5)).await;
    assert_eq!(cluster.asked("delete", "configmaps"), before);
    until("all is done", async || {
        cluster.api.objects("v1", "ConfigMap").is_empty()
    })
    .await;
    assert_eq!((refused("get").await, refused("delete").await), (30, 30));
}

#[tokio::test(start_paused = true)]
async fn a_conflict_makes_it_look_and_decide_again() {
    let mut cluster = Cluster::new().await;
    let solid = cluster.map("solid", Like::default()).await;
    for name in ["changed", "adopted"] {
        cluster.map(name, owned([never("v1", "ConfigMap", 1)])).await;
        cluster.trouble(Fault::delay(secs(2)).verb("delete").name(name).once());
    }
    cluster.start_synced().await;
    sleep(secs(1)).await;
    cluster
        .change(&map_path("changed"), json!({ "labels": { "is": "changed" } }))
        .await;
    cluster
        .change(&map_path("adopted"), json!({ "ownerReferences": [to(&solid, false)] }))
        .await;
    cluster.gone("changed").await;
    sleep(secs(60)).await;
    assert!(cluster.is_there("adopted").await);
    let asked = cluster.about_objects();
    let of = |name: &str| -> Vec<String> {
        let all = asked.iter().filter(|it| it.asked.name == name);
        all.map(|it| format!("{} {:?}", it.asked.verb, it.code)).collect()
    };
    assert_eq!(of("changed"), ["delete Some(409)", "get Some(200)", "delete Some(200)"]);
    assert_eq!(of("adopted"), ["delete Some(409)", "get Some(200)"]);
    assert_eq!(cluster.counts().conflicts, 2);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_for_another_reason_is_tried_again_and_again() {
    let mut cluster = Cluster::new().await;
    cluster.map("child", owned([never("v1", "ConfigMap", 1)])).await;
    cluster.trouble(Fault::status(409).verb("delete").times(5));
    cluster.start_synced().await;
    cluster.gone("child").await;
    assert_eq!(cluster.asked("delete", "configmaps"), 6);
}

#[tokio::test(start_paused = true)]
async fn what_the_server_refuses_is_told_near_the_top_as_long_as_it_goes_on() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    cluster.map("child", owned([to(&owner, false)])).await;
    cluster.start_synced().await;
    cluster.trouble(Fault::status(403).verb("delete").resource("configmaps"));
    cluster.delete(&map_path("owner"), "Background").await;
    sleep(secs(600)).await;
    let report = cluster.report();
    let [refused] = report.refused.as_slice() else {
        panic!("{:?}", report.refused)
    };
    assert_eq!(
        (&*refused.step, &*refused.resource, refused.code),
        ("delete", "configmaps", 403)
    );
    assert!(
        refused.since_seconds >= 590 && refused.last_seconds <= 300 && refused.times > 5,
        "{refused:?}"
    );
    let text = report.text();
    assert!(
        text.lines()
            .nth(1)
            .unwrap()
            .starts_with("REFUSED    delete of configmaps: 403"),
        "{text}"
    );
    cluster.api.faults().clear();
    cluster.gone("child").await;
    sleep(secs(700)).await;
    assert_eq!(cluster.report().refused, []);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_vanishes_without_an_event_is_missed_by_the_list_that_follows_a_watch_error() {
    let mut cluster = Cluster::new().await;
    cluster.map("other", Like::default()).await;
    cluster.start_synced().await;
    sleep(secs(5)).await;
    let lists = cluster.asked("list", "configmaps");
    cluster.trouble(Fault::new(Action::FailWatch).resource("configmaps").once());
    until("it is listed anew", async || {
        cluster.asked("list", "configmaps") > lists
    })
    .await;
    assert!(cluster.is_there("other").await);
}

#[tokio::test(start_paused = true)]
async fn a_kind_with_an_object_that_cannot_be_read_is_not_known_and_nothing_is_concluded_from_that() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", Like::default()).await;
    cluster.map("child", owned([to(&owner, false)])).await;
    cluster.start_synced().await;
    cluster.trouble(Fault::status(500).verb("list").resource("configmaps"));
    cluster.trouble(Fault::status(500).verb("get").resource("configmaps"));
    cluster.trouble(Fault::new(Action::FailWatch).resource("configmaps").once());
    until("it is not known", async || cluster.unsynced().is_some()).await;
    sleep(secs(600)).await;
    assert!(cluster.is_there("child").await);
    let listed = cluster.asked("list", "configmaps");
    assert!(listed < 60, "{listed} lists within ten minutes");
    cluster.api.faults().clear();
    cluster.synced().await;
    assert!(cluster.is_there("child").await);
}

#[tokio::test(start_paused = true)]
async fn no_request_asks_for_a_compressed_answer_or_for_an_unsafe_deletion() {
    let mut cluster = Cluster::new().await;
    let bodies: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&bodies);
    cluster.api.tell(Box::new(move |asked, body, code| {
        if asked.user == COLLECTOR && asked.verb == "delete" && code.is_none() {
            told.lock().unwrap().push(String::from_utf8_lossy(body).into_owned());
        }
    }));
    cluster.circle().await;
    let owner = cluster.map("owner", Like::default()).await;
    cluster.map("child", owned([to(&owner, true)])).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("a"), "Foreground").await;
    cluster.delete(&map_path("owner"), "Background").await;
    for name in ["a", "b", "c", "child"] {
        cluster.gone(name).await;
    }
    let bodies = bodies.lock().unwrap();
    assert!(bodies.len() >= 3, "{bodies:?}");
    for body in bodies.iter() {
        assert!(
            body.contains(r#""uid":"#) && !body.contains("ignoreStoreRead"),
            "{body}"
        );
    }
    assert!(!cluster.api.was_asked_to_compress());
}
