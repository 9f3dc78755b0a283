use std::time::Duration;

use super::client::{Client, Line, server};
use super::{MAPS, PODS, map, pod};

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
async fn watches_end_when_the_server_stops() {
    let server = server().await;
    let mut watch = Client::admin(&server).watch(&format!("{MAPS}?watch=1")).await;
    drop(server);
    assert_eq!(watch.next().await, Line::Broken);
}
