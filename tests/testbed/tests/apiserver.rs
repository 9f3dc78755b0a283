//! What only the API server in memory has: faults, times that a paused clock makes short, and connections in memory. All else
//! that its clients see is claimed in `testbed::contract`.

#![allow(
    clippy::unwrap_used,
    reason = "an unwrap in a test is an assertion, also outside of test functions"
)]

use std::{io::ErrorKind, time::Duration};

use http::{Method, Uri, header};
use serde_json::{Value, json};
use testbed::{
    api::ApiServer as _,
    apiserver::{
        Config, MemApiServer,
        faults::{Action, Fault},
    },
    network::{self, Route},
    rest::{Client, Error, EventType, Watch},
};
use tokio::time::{Instant, timeout};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

async fn server() -> (MemApiServer, Client) {
    let server = MemApiServer::start(Config::default()).await.unwrap();
    let admin = server.admin().unwrap();
    (server, admin)
}

async fn create(admin: &Client, name: &str) {
    let map = json!({ "metadata": { "name": name } });
    admin.create(MAPS, &map).await.unwrap().ok().unwrap();
}

/// Whether nothing comes within this time.
async fn is_silent(watch: &mut Watch, within: Duration) -> bool {
    timeout(within, watch.next()).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn a_refused_request_did_nothing_and_a_lost_answer_did_everything() {
    let (server, admin) = server().await;
    for (action, expected) in [(Action::Refuse, 404), (Action::LoseResponse, 200)] {
        server.faults().inject(Fault::new(action).verb("create").once());
        let answer = admin.create(MAPS, &json!({ "metadata": { "name": "a" } })).await;
        assert!(matches!(answer, Err(Error::Transport { .. })), "{answer:?}");
        assert_eq!(admin.get(&format!("{MAPS}/a")).await.unwrap().code(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_meets_what_it_names_as_often_as_it_says() {
    let (server, admin) = server().await;
    let fault = Fault::too_many(3).resource("configmaps").name("a").times(2);
    server.faults().inject(fault);
    assert_eq!(admin.get(MAPS).await.unwrap().code(), 200);
    for expected in [429, 429, 404] {
        assert_eq!(admin.get(&format!("{MAPS}/a")).await.unwrap().code(), expected);
    }
    server.faults().inject(Fault::too_many(3).once());
    let answer = admin.get(MAPS).await.unwrap();
    assert_eq!(answer.header("retry-after"), "3");
    assert_eq!(answer.body["details"]["retryAfterSeconds"], 3);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_is_done_afterwards() {
    let (server, admin) = server().await;
    server.faults().inject(Fault::delay(secs(20)).once());
    let began = Instant::now();
    assert_eq!(admin.get(MAPS).await.unwrap().code(), 200);
    assert_eq!(began.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_running_watch_can_be_cut_and_another_hangs() {
    let (server, admin) = server().await;
    let mut watch = admin.watch(MAPS, &[]).await.unwrap();
    assert!(is_silent(&mut watch, secs(1)).await);
    server
        .faults()
        .inject(Fault::new(Action::CutWatch).resource("configmaps").once());
    assert!(watch.next().await.is_err());
    let mut watch = admin.watch(MAPS, &[("timeoutSeconds", "5")]).await.unwrap();
    server.faults().inject(Fault::new(Action::StallWatch).once());
    create(&admin, "a").await;
    assert!(is_silent(&mut watch, secs(3600)).await);
}

#[tokio::test(start_paused = true)]
async fn a_running_watch_survives_a_compaction_and_breaks_with_the_server() {
    let (server, admin) = server().await;
    let mut watch = admin.watch(MAPS, &[]).await.unwrap();
    create(&admin, "a").await;
    server.compact();
    assert_eq!(watch.next().await.unwrap().unwrap().kind, EventType::Added);
    drop(server);
    assert!(watch.next().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_every_minute_and_before_the_end_once_something_is_new() {
    let (_server, admin) = server().await;
    let list = admin.get(MAPS).await.unwrap().body;
    let options = [
        ("resourceVersion", list["metadata"]["resourceVersion"].as_str().unwrap()),
        ("allowWatchBookmarks", "true"),
        ("timeoutSeconds", "150"),
    ];
    let mut watch = admin.watch(MAPS, &options).await.unwrap();
    assert!(is_silent(&mut watch, secs(70)).await);
    let event = json!({ "metadata": { "name": "a" }, "involvedObject": { "namespace": "default" } });
    let created = admin.create("/api/v1/namespaces/default/events", &event).await;
    created.unwrap().ok().unwrap();
    let began = Instant::now();
    let mut kinds = Vec::new();
    while let Some(event) = watch.next().await.unwrap() {
        kinds.push((event.kind, began.elapsed().as_secs()));
    }
    assert_eq!(kinds, [(EventType::Bookmark, 50), (EventType::Bookmark, 78)]);
    assert_eq!(began.elapsed().as_secs(), 80);
}

#[tokio::test(start_paused = true)]
async fn a_group_version_may_be_away_for_a_while() {
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
    let (server, admin) = server().await;
    let mut watch = admin.watch(DEPLOYMENTS, &[]).await.unwrap();
    let freshness = async || {
        let call = admin.call(Method::GET, "/apis").header(header::ACCEPT, AGGREGATED);
        let groups = call.send().await.unwrap().body;
        let mut groups = groups["items"].as_array().unwrap().iter();
        let apps = groups.find(|group| group["metadata"]["name"] == "apps").unwrap();
        apps["versions"][0]["freshness"].clone()
    };
    server.set_unavailable("apps/v1", true);
    assert_eq!(freshness().await, "Stale");
    assert_eq!(admin.get(DEPLOYMENTS).await.unwrap().code(), 503);
    assert_eq!(admin.get(MAPS).await.unwrap().code(), 200);
    server.set_unavailable("apps/v1", false);
    assert_eq!(freshness().await, "Current");
    // A running watch continues.
    let created = admin.create(DEPLOYMENTS, &json!({ "metadata": { "name": "a" } })).await;
    assert_eq!(created.unwrap().code(), 201);
    assert!(watch.next().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn no_virtual_time_passes_while_a_request_is_on_the_way() {
    let (_server, admin) = server().await;
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(admin.get(MAPS).await.unwrap().code(), 200);
    }
    let many = (0..100).map(|_| admin.get("/api/v1/nodes"));
    futures::future::join_all(many).await;
    assert_eq!(begun.elapsed().as_millis(), 0);
}

#[tokio::test]
async fn an_address_leads_to_its_last_server_until_that_is_gone() {
    let (api, _admin) = server().await;
    network::connect(&api.url().parse().unwrap()).unwrap();

    let (first, mut at_first) = network::listen();
    let first = Route::new(first);
    let url: Uri = format!("http://{}", first.address()).parse().unwrap();
    network::connect(&url).unwrap();
    at_first.try_recv().unwrap();

    let (second, mut at_second) = network::listen();
    let second = Route::at(first.address(), second);
    drop(first);
    network::connect(&url).unwrap();
    at_second.try_recv().unwrap();
    drop(second);
    assert_eq!(network::connect(&url).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

/// The client's own.
#[tokio::test]
async fn a_pod_is_waited_for_until_its_uid_is_gone() {
    let (_server, admin) = server().await;
    let spec = json!({ "nodeName": "n", "containers": [{ "name": "main", "image": "example.test/main" }] });
    let pod = admin
        .create_pod(&json!({ "metadata": { "name": "a" }, "spec": spec }))
        .await;
    let Value::String(uid) = pod.unwrap()["metadata"]["uid"].take() else {
        panic!("a pod without a UID");
    };
    admin
        .wait_gone("default", "a", "of-an-earlier-one", secs(30))
        .await
        .unwrap();
    let late = admin.wait_gone("default", "a", &uid, Duration::from_millis(50)).await;
    assert!(matches!(late, Err(Error::TimedOut { .. })), "{late:?}");
    let deletion = async {
        admin.delete_pod("default", "a", Some(60)).await?;
        admin.delete_pod("default", "a", Some(0)).await
    };
    tokio::try_join!(admin.wait_gone("default", "a", &uid, secs(30)), deletion).unwrap();
}
