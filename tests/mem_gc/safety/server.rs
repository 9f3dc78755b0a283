//! An overloaded API server, a restored store, and another cluster at the same address.

use std::sync::Mutex;

use testbed::api::ApiServer as _;

use crate::cluster::COLLECTOR;
use crate::prelude::*;

/// Starts another server at the same address, with these objects.
async fn replace_server(cluster: &mut Cluster, first_version: u64, objects: &[Value]) {
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

/// The object whose UID identifies a cluster.
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
async fn a_restored_store_restarts_the_collector_and_deletes_nothing() {
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
    replace_server(&mut cluster, 1, &[known, child, owner]).await;
    let why = cluster.wait_for_stop().await;
    assert!(why.contains("was restored from a backup"), "{why}");
    assert!(cluster.exists("child").await && cluster.exists("owner").await);
    // It starts again with an empty state.
    cluster.start_synced().await;
    sleep(secs(60)).await;
    assert!(cluster.exists("child").await && cluster.exists("owner").await);
    cluster.delete(&map_path("owner"), "Background").await;
    cluster.wait_for_deletion("child").await;
}

#[tokio::test(start_paused = true)]
async fn a_pending_deletion_is_not_sent_after_the_store_is_restored() {
    let mut cluster = Cluster::new().await;
    let owner = map("owner", 1, &[]);
    let child = map("child", 2, &[to(&owner, false)]);
    let known = identity(&cluster).await;
    // Two stores with the same past: the child has the same version in both.
    replace_server(&mut cluster, 1_000, &[known.clone(), child.clone(), owner.clone()]).await;
    let before = cluster.get(&map_path("child")).await.unwrap();
    cluster.start_synced().await;
    cluster.inject(Fault::status(503).verb("delete").name("child"));
    cluster.delete(&map_path("owner"), "Background").await;
    until!(cluster.count_requests("delete", "configmaps") > 0);
    // The store's version of half a minute ago is remembered; a test cannot restore a younger one.
    for number in 0..10 {
        insert(&cluster, &map(&format!("other-{number}"), 100 + number, &[]));
    }
    sleep(secs(40)).await;
    // The restored store has the owner.
    replace_server(&mut cluster, 1_000, &[known, child, owner]).await;
    let after = cluster.get(&map_path("child")).await.unwrap();
    assert_eq!(
        before["metadata"]["resourceVersion"],
        after["metadata"]["resourceVersion"]
    );
    let why = cluster.wait_for_stop().await;
    assert!(why.contains("was restored from a backup"), "{why}");
    assert!(cluster.exists("child").await);
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
        replace_server(&mut cluster, first_version, std::slice::from_ref(&child)).await;
        sleep(secs(300)).await;
        assert!(cluster.exists("child").await);
        let asked = cluster.requests();
        // Except for the request for the cluster's identity.
        assert!(
            asked.iter().all(|it| it.asked.path.contains("kube-system")),
            "{asked:?}"
        );
    }
    replace_server(&mut cluster, 2_000_000, &[known, owner, child]).await;
    sleep(secs(300)).await;
    assert!(cluster.exists("child").await);
    cluster.delete(&map_path("owner"), "Background").await;
    cluster.wait_for_deletion("child").await;
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_an_overloaded_server_is_honored_and_all_is_done_in_the_end() {
    let mut cluster = Cluster::new().await;
    for number in 0..200 {
        let owner = absent_owner("v1", "ConfigMap", number);
        cluster.map(&format!("map-{number}"), owned([owner])).await;
    }
    cluster.inject(Fault::too_many(7).verb("delete").times(30));
    cluster.inject(Fault::too_many(3).verb("get").resource("configmaps").times(30));
    cluster.start_synced().await;
    // After three refusals in a row it pauses for the requested time.
    let refused = async |verb: &str| {
        let all = cluster.requests();
        all.iter()
            .filter(|it| it.asked.verb == verb && it.code == Some(429))
            .count()
    };
    until!(refused("delete").await >= 3);
    sleep(secs(1)).await;
    let before = cluster.count_requests("delete", "configmaps");
    sleep(secs(5)).await;
    assert_eq!(cluster.count_requests("delete", "configmaps"), before);
    until!(cluster.api.objects("v1", "ConfigMap").is_empty());
    assert_eq!((refused("get").await, refused("delete").await), (30, 30));
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_followed_by_a_get_and_a_new_decision() {
    let mut cluster = Cluster::new().await;
    let solid = cluster.map("solid", ObjectSpec::default()).await;
    for name in ["changed", "adopted"] {
        cluster.map(name, owned([absent_owner("v1", "ConfigMap", 1)])).await;
        cluster.inject(Fault::delay(secs(2)).verb("delete").name(name).once());
    }
    cluster.start_synced().await;
    sleep(secs(1)).await;
    cluster
        .change(&map_path("changed"), json!({ "labels": { "is": "changed" } }))
        .await;
    cluster
        .change(&map_path("adopted"), json!({ "ownerReferences": [to(&solid, false)] }))
        .await;
    cluster.wait_for_deletion("changed").await;
    sleep(secs(60)).await;
    assert!(cluster.exists("adopted").await);
    let asked = cluster.object_requests();
    let of = |name: &str| -> Vec<String> {
        let all = asked.iter().filter(|it| it.asked.name == name);
        all.map(|it| format!("{} {:?}", it.asked.verb, it.code)).collect()
    };
    assert_eq!(of("changed"), ["delete Some(409)", "get Some(200)", "delete Some(200)"]);
    assert_eq!(of("adopted"), ["delete Some(409)", "get Some(200)"]);
    assert_eq!(cluster.counts().conflicts, 2);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_for_another_reason_is_retried() {
    let mut cluster = Cluster::new().await;
    cluster.map("child", owned([absent_owner("v1", "ConfigMap", 1)])).await;
    cluster.inject(Fault::status(409).verb("delete").times(5));
    cluster.start_synced().await;
    cluster.wait_for_deletion("child").await;
    assert_eq!(cluster.count_requests("delete", "configmaps"), 6);
}

#[tokio::test(start_paused = true)]
async fn refused_requests_are_reported_near_the_top_while_they_continue() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    cluster.map("child", owned([to(&owner, false)])).await;
    cluster.start_synced().await;
    cluster.inject(Fault::status(403).verb("delete").resource("configmaps"));
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
    assert!(refused.since_seconds >= 590 && refused.times > 5, "{refused:?}");
    let text = report.text(false);
    assert!(
        text.lines()
            .nth(1)
            .unwrap()
            .starts_with("REFUSED    delete of configmaps: 403"),
        "{text}"
    );
    cluster.api.faults().clear();
    cluster.wait_for_deletion("child").await;
    sleep(secs(700)).await;
    assert_eq!(cluster.report().refused, []);
}

#[tokio::test(start_paused = true)]
async fn a_watch_error_is_followed_by_a_list() {
    let mut cluster = Cluster::new().await;
    cluster.map("other", ObjectSpec::default()).await;
    cluster.start_synced().await;
    sleep(secs(5)).await;
    let lists = cluster.count_requests("list", "configmaps");
    cluster.inject(Fault::new(Action::FailWatch).resource("configmaps").once());
    until!(cluster.count_requests("list", "configmaps") > lists);
    assert!(cluster.exists("other").await);
}

#[tokio::test(start_paused = true)]
async fn no_request_accepts_compression_or_asks_for_an_unsafe_deletion() {
    let mut cluster = Cluster::new().await;
    let bodies: Arc<Mutex<Vec<String>>> = Arc::default();
    let recorded = Arc::clone(&bodies);
    cluster.api.set_witness(Box::new(move |asked, body, code| {
        if asked.user == COLLECTOR && asked.verb == "delete" && code.is_none() {
            recorded
                .lock()
                .unwrap()
                .push(String::from_utf8_lossy(body).into_owned());
        }
    }));
    cluster.create_cycle().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    cluster.map("child", owned([to(&owner, true)])).await;
    cluster.start_synced().await;
    cluster.delete(&map_path("a"), "Foreground").await;
    cluster.delete(&map_path("owner"), "Background").await;
    for name in ["a", "b", "c", "child"] {
        cluster.wait_for_deletion(name).await;
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
