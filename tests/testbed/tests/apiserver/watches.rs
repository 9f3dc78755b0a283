use std::time::Duration;

use serde_json::json;

use super::client::{Client, Line, server};
use super::{MAPS, PODS, map, pod};

#[tokio::test(start_paused = true)]
async fn a_watch_without_a_version_begins_with_what_is_there() {
    let server = server().await;
    let admin = Client::admin(&server);
    admin.create(MAPS, map("a")).await;
    let mut watch = admin
        .watch(&format!("{MAPS}?watch=true&allowWatchBookmarks=true"))
        .await;
    assert_eq!(watch.event().await.0, "ADDED");
    let (change, end) = watch.event().await;
    assert_eq!(change, "BOOKMARK");
    assert_eq!(
        end["metadata"]["annotations"],
        json!({ "k8s.io/initial-events-end": "true" })
    );
    assert_eq!(watch.next().await, Line::Silence);
    admin.create(MAPS, map("b")).await;
    assert_eq!(watch.event().await.1["metadata"]["name"], "b");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_with_grace_zero_is_two_events_with_two_versions() {
    let server = server().await;
    let admin = Client::admin(&server);
    let made = admin.create(PODS, pod("a", "n1")).await.body;
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("/api/v1/pods?watch=1&resourceVersion={version}&fieldSelector=spec.nodeName%3Dn1");
    let mut watch = Client::node(&server).watch(&path).await;
    let answer = admin
        .delete(&format!("{PODS}/a"), json!({ "gracePeriodSeconds": 0 }))
        .await;
    assert_eq!((answer.code, &answer.body["kind"]), (200, &json!("Pod")));
    let (modified, deleted) = (watch.event().await, watch.event().await);
    assert_eq!((modified.0.as_str(), deleted.0.as_str()), ("MODIFIED", "DELETED"));
    assert_eq!(modified.1["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_ne!(
        modified.1["metadata"]["resourceVersion"],
        deleted.1["metadata"]["resourceVersion"]
    );
    assert_eq!(
        deleted.1["metadata"]["resourceVersion"],
        answer.body["metadata"]["resourceVersion"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_appears_to_its_node_when_it_is_bound() {
    let server = server().await;
    let admin = Client::admin(&server);
    admin.create(PODS, pod("a", "")).await;
    let mut watch = Client::node(&server)
        .watch("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1")
        .await;
    assert_eq!(watch.next().await, Line::Silence);
    assert_eq!(
        admin
            .create(&format!("{PODS}/a/binding"), json!({ "target": { "name": "n1" } }))
            .await
            .code,
        201
    );
    assert_eq!(watch.event().await.0, "ADDED");
}

#[tokio::test(start_paused = true)]
async fn a_label_that_goes_deletes_the_object_for_who_selects_it() {
    let server = server().await;
    let admin = Client::admin(&server);
    admin
        .create(MAPS, json!({ "metadata": { "name": "a", "labels": { "x": "1" } } }))
        .await;
    let mut watch = admin
        .watch(&format!("{MAPS}?watch=1&labelSelector=x%20in%20(1,2)"))
        .await;
    assert_eq!(watch.event().await.0, "ADDED");
    let now = admin
        .patch(&format!("{MAPS}/a"), json!({ "metadata": { "labels": { "x": "3" } } }))
        .await
        .body;
    let (change, object) = watch.event().await;
    assert_eq!(change, "DELETED");
    assert_eq!(object["metadata"]["labels"]["x"], "1");
    assert_eq!(
        object["metadata"]["resourceVersion"],
        now["metadata"]["resourceVersion"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_version_from_before_a_compaction_is_an_error_inside_the_stream() {
    let server = server().await;
    let admin = Client::admin(&server);
    let old = admin.create(MAPS, map("a")).await.body;
    admin.create(MAPS, map("b")).await;
    server.compact();
    let old = old["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = admin.watch(&format!("{MAPS}?watch=1&resourceVersion={old}")).await;
    let (change, status) = watch.event().await;
    assert_eq!(
        (change.as_str(), &status["code"], &status["reason"]),
        ("ERROR", &json!(410), &json!("Expired"))
    );
    assert_eq!(status["message"], format!("too old resource version: {old} (208)"));
    assert_eq!(watch.next().await, Line::End);
}

#[tokio::test(start_paused = true)]
async fn a_running_watch_survives_a_compaction() {
    let server = server().await;
    let admin = Client::admin(&server);
    let mut watch = admin.watch(&format!("{MAPS}?watch=1")).await;
    admin.create(MAPS, map("a")).await;
    server.compact();
    assert_eq!(watch.event().await.0, "ADDED");
}

#[tokio::test(start_paused = true)]
async fn a_future_version_is_met_with_silence() {
    let server = server().await;
    let admin = Client::admin(&server);
    let mut watch = admin.watch(&format!("{MAPS}?watch=1&resourceVersion=208")).await;
    for name in ["a", "b"] {
        admin.create(MAPS, map(name)).await;
    }
    assert_eq!(watch.next().await, Line::Silence);
    admin.create(MAPS, map("c")).await;
    assert_eq!(watch.event().await.1["metadata"]["name"], "c");
}

#[tokio::test(start_paused = true)]
async fn a_list_of_the_future_times_out_and_says_when_to_try_again() {
    let server = server().await;
    let admin = Client::admin(&server);
    let began = tokio::time::Instant::now();
    let answer = admin.get(&format!("{MAPS}?resourceVersion=9999")).await;
    assert_eq!(began.elapsed().as_secs(), 3);
    assert_eq!(
        (answer.code, &answer.headers["retry-after"]),
        (504, &http::HeaderValue::from_static("1"))
    );
    assert_eq!(answer.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
    let path = format!("{MAPS}?watch=1&resourceVersion=9999&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    let (change, status) = admin.watch(&path).await.event().await;
    assert_eq!((change.as_str(), &status["code"]), ("ERROR", &json!(504)));
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_before_the_end_once_something_is_new() {
    let server = server().await;
    let admin = Client::admin(&server);
    let rv = admin.get(MAPS).await.body["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("{MAPS}?watch=1&resourceVersion={rv}&allowWatchBookmarks=true&timeoutSeconds=150");
    let mut watch = admin.watch(&path).await;
    assert_eq!(watch.next_within(Duration::from_secs(70)).await, Line::Silence);
    admin.create(PODS, pod("a", "n1")).await;
    let began = tokio::time::Instant::now();
    let mut kinds = Vec::new();
    while let Line::Event(kind, object) = watch.next_within(Duration::from_secs(70)).await {
        assert_eq!(object.as_object().unwrap().len(), 3, "{object}");
        kinds.push((kind, began.elapsed().as_secs()));
    }
    assert_eq!(kinds, [("BOOKMARK".to_owned(), 50), ("BOOKMARK".to_owned(), 78)]);
    assert_eq!(began.elapsed().as_secs(), 80);
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_what_is_no_number_or_contradicts_itself_is_refused_at_once() {
    let server = server().await;
    let admin = Client::admin(&server);
    let answer = admin.get(&format!("{MAPS}?watch=1&resourceVersion=x")).await;
    assert_eq!((answer.code, answer.body.get("reason")), (500, None));
    assert_eq!(
        admin.get(&format!("{MAPS}?watch=1&sendInitialEvents=true")).await.code,
        422
    );
    assert_eq!(
        admin
            .get(&format!("{MAPS}?watch=1&resourceVersionMatch=NotOlderThan"))
            .await
            .code,
        422
    );
}

#[tokio::test(start_paused = true)]
async fn watches_end_when_the_server_stops() {
    let server = server().await;
    let mut watch = Client::admin(&server).watch(&format!("{MAPS}?watch=1")).await;
    drop(server);
    assert_eq!(watch.next().await, Line::Broken);
}
