//! A start at a server that refuses requests beyond a limit: kubernetes/kubernetes#139436.

use testbed::apiserver::requests::Request;

use crate::cluster::COLLECTOR;
use crate::prelude::*;

/// Owners, each with [`DEPENDENTS`] dependents.
const OWNERS: usize = 2_400;
const DEPENDENTS: usize = 10;
/// Objects per page.
const PAGE: usize = 500;

/// Secrets that own ConfigMaps: their list comes later, so that all owners are unknown at first.
fn insert_owned_objects(cluster: &Cluster) {
    for owner in 0..OWNERS {
        let uid = format!("5eed0000-0000-4000-8000-{owner:012}");
        let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": {
            "name": format!("owner-{owner:05}"), "namespace": "default", "uid": uid,
        } });
        cluster.api.insert_raw(secret.clone()).unwrap();
        for dependent in 0..DEPENDENTS {
            let name = format!("child-{owner:05}-{dependent}");
            let owners = owned([to(&secret, true)]).owners;
            let metadata = json!({ "name": name, "namespace": "default", "ownerReferences": owners });
            let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
            cluster.api.insert_raw(map).unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn owned_objects_cost_one_request_for_each_page_and_no_get_until_ready() {
    let mut cluster = Cluster::new().await;
    insert_owned_objects(&cluster);
    cluster.start_synced().await;
    let lists = cluster.count_requests("list", "configmaps") + cluster.count_requests("list", "secrets");
    assert_eq!(lists, (OWNERS * DEPENDENTS).div_ceil(PAGE) + OWNERS.div_ceil(PAGE));
    sleep(secs(60)).await;
    assert!(cluster.object_requests().is_empty(), "{:?}", cluster.object_requests());
}

#[tokio::test(start_paused = true)]
async fn a_tenth_of_240000_owned_objects_is_ready_within_a_minute_at_a_tenth_of_100_requests_a_second() {
    let mut cluster = Cluster::new().await;
    insert_owned_objects(&cluster);
    cluster.api.limit_requests(COLLECTOR, 10);
    cluster.start().await;
    let started = Instant::now();
    until!(cluster.unsynced().is_none());
    assert!(started.elapsed() < secs(60), "{:?}", started.elapsed());
    let requests = cluster.requests();
    assert!(
        requests.iter().any(|it| it.code == Some(429)),
        "the limit was never reached"
    );
    let is_page = |it: &&Request| (&*it.asked.verb, &*it.asked.resource, it.code) == ("list", "configmaps", Some(200));
    let pages = requests.iter().filter(is_page).count();
    assert_eq!(pages, (OWNERS * DEPENDENTS).div_ceil(PAGE), "no list has restarted");
    assert!(cluster.object_requests().is_empty(), "{:?}", cluster.object_requests());
}
