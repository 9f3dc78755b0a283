//! Requests of the collector that hang.

use std::sync::Arc;

use pod_teardown::{
    api::MetadataClient,
    collector::{Mode, collect::collect, leader_election::LeaderElection, shared::Shared},
    node::effects::Effects,
};
use serde_json::json;
use testbed::{
    apiserver::faults::Fault,
    things::{DEFINITIONS, definition},
};
use tokio::time::sleep;

use crate::cluster::{Cluster, dial, secs, wait_until};

/// A kind with GETs of a minute each (a conversion webhook, an unreachable aggregated API), named by 300 objects.
#[tokio::test(start_paused = true)]
async fn slow_answers_of_a_kind_do_not_end_leadership() {
    let cluster = Cluster::new().await;
    let (config, path) = cluster.credentials("one").await;
    let election = LeaderElection::new("one".to_owned(), Mode::Always);
    let client = MetadataClient::new(&config, path, Effects::new(election.gate()), Some(dial())).unwrap();
    let (running, same) = (election.clone(), client.clone());
    tokio::spawn(async move { running.run(&same, std::future::pending()).await });
    wait_until(secs(30), || election.may_write().is_ok()).await;
    let things = definition("a.test", true, &["v1"]);
    cluster.admin.create(DEFINITIONS, &things).await.unwrap().ok().unwrap();
    let shared = Arc::new(Shared::default());
    tokio::spawn(collect(client, Arc::clone(&shared)));
    sleep(secs(40)).await;
    let insert = |name: String, version: &str, kind: &str, number: u64| {
        let owner = json!({ "apiVersion": version, "kind": kind, "name": "never",
            "uid": format!("00000000-0000-4000-8000-{number:012}") });
        let metadata = json!({ "name": name, "namespace": "default", "ownerReferences": [owner] });
        let object = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata });
        cluster.api.insert_raw(object).unwrap();
    };
    for millis in [17, 23, 31, 13, 29, 19].repeat(500) {
        let late = Fault::delay(std::time::Duration::from_millis(millis))
            .verb("delete")
            .resource("secrets");
        cluster.api.faults().inject(late.once());
    }
    // The collector's limit grows first.
    for number in 0..3000 {
        insert(format!("a-{number}"), "v1", "ConfigMap", 1);
    }
    sleep(secs(30)).await;

    cluster
        .api
        .faults()
        .inject(Fault::delay(secs(60)).verb("get").resource("things"));
    for number in 0..300 {
        insert(format!("b-{number}"), "a.test/v1", "Thing", 1000 + number);
    }
    let mut turn = election.watch();
    for _ in 0..120 {
        sleep(secs(1)).await;
        let now = turn.borrow_and_update().clone();
        assert!(now.is_ok(), "{now:?}");
    }
}
