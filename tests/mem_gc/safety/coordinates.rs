//! Coordinates of owner references.

use crate::prelude::*;

fn with(mut reference: Value, field: &str, value: &str) -> Value {
    reference[field] = value.into();
    reference
}

#[tokio::test(start_paused = true)]
async fn a_cluster_scoped_owner_has_dependents_in_all_namespaces() {
    let mut cluster = Cluster::new().await;
    cluster.namespace("other");
    let things = Things::define(&cluster, "a.test", false, &["v1"]).await;
    let volume = cluster.volume("volume", ObjectSpec::default()).await;
    let thing = things.create(&cluster, "thing", ObjectSpec::default()).await;
    cluster.map("early", owned([to(&volume, true)])).await;
    cluster.start_synced().await;
    let paths = ["default", "other"].map(|space| format!("/api/v1/namespaces/{space}/configmaps/child"));
    for space in ["default", "other"] {
        let owners = [to(&volume, true), to(&thing, true)];
        cluster.map_in(space, "child", owned(owners)).await;
    }
    cluster.volume("small", owned([to(&thing, false)])).await;
    sleep(secs(60)).await;
    cluster.delete("/api/v1/persistentvolumes/volume", "Foreground").await;
    cluster.wait_for_deletion("early").await;
    until!(cluster.owners(&paths[0]).await == ["thing"] && cluster.owners(&paths[1]).await == ["thing"]);
    cluster.delete(&things.path("thing"), "Foreground").await;
    things.wait_for_deletion(&cluster, "thing").await;
    for path in paths
        .iter()
        .map(String::as_str)
        .chain(["/api/v1/persistentvolumes/small"])
    {
        until!(cluster.get(path).await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn references_in_two_versions_to_a_deleted_owner_are_both_dropped() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1", "v2"]).await;
    let owner = things.create(&cluster, "owner", ObjectSpec::default()).await;
    let solid = cluster.map("solid", ObjectSpec::default()).await;
    let other = with(to(&owner, false), "apiVersion", "a.test/v9");
    let owners = [to(&owner, true), other, to(&solid, false)];
    cluster.map("child", owned(owners.clone())).await;
    things.create(&cluster, "thing", owned(owners)).await;
    cluster.start_synced().await;
    cluster.delete(&things.path("owner"), "Background").await;
    for path in [map_path("child"), things.path("thing")] {
        until!(cluster.owners(&path).await == ["solid"]);
    }
}

/// TestConflictingData: whatever the order, a reference with wrong coordinates affects only its own object.
#[tokio::test(start_paused = true)]
async fn in_any_order_of_events_only_objects_with_wrong_references_are_deleted() {
    let orders = [
        "GBP", "GPB", "BGP", "BPG", "PGB", "PBG", "|GBP", "|GPB", "|BGP", "|BPG", "|PGB", "|PBG", "P|GB", "P|BG",
        "G|BP", "B|GP", "GB|P",
    ];
    let bad = ["namespace", "name", "kind", "group", "unknown"];
    for order in orders {
        let mut cluster = Cluster::new().await;
        cluster.namespace("other");
        let parent = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "parent", "namespace": "default", "uid": "5eed0000-0000-4000-8000-000000000001" },
        });
        let good = to(&parent, false);
        for step in order.chars() {
            match step {
                '|' => cluster.start_synced().await,
                'P' => cluster.api.insert_raw(parent.clone()).unwrap(),
                'G' => drop(cluster.secret("good", owned([good.clone()])).await),
                _ => {
                    cluster.map_in("other", "namespace", owned([good.clone()])).await;
                    cluster
                        .map("name", owned([with(good.clone(), "name", "another")]))
                        .await;
                    cluster.map("kind", owned([with(good.clone(), "kind", "Secret")])).await;
                    let group = with(with(good.clone(), "kind", "Deployment"), "apiVersion", "apps/v1");
                    cluster.map("group", owned([group])).await;
                    cluster
                        .map("unknown", owned([with(good.clone(), "kind", "Nothing")]))
                        .await;
                    cluster.volume("cluster", owned([good.clone()])).await;
                }
            }
        }
        if !order.contains('|') {
            cluster.start_synced().await;
        }
        sleep(secs(60)).await;
        let is_there = async |name: &str| {
            let space = if name == "namespace" { "other" } else { "default" };
            let path = format!("/api/v1/namespaces/{space}/configmaps/{name}");
            cluster.get(&path).await.is_some()
        };
        for name in bad {
            // An owner of an unserved kind is unknown.
            assert_eq!(is_there(name).await, name == "unknown", "{name} in {order}");
        }
        assert!(cluster.get("/api/v1/persistentvolumes/cluster").await.is_some());
        let good = cluster.get(&secret_path("good")).await;
        // A dependent that is seen before its owner exists may be deleted.
        let may_go = order.find('|') < order.find('P') && order.contains('|') && order.find('G') < order.find('P');
        assert!(good.is_some() || may_go, "{order}");
        assert!(is_there("parent").await, "{order}");
    }
}

/// kube-controller-manager's RESTMapper also resolves kinds in lower case.
#[tokio::test(start_paused = true)]
async fn a_reference_may_have_the_kind_in_lower_case() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    let other = cluster.map("other", ObjectSpec::default()).await;
    let small = |owner: &Value| with(to(owner, true), "kind", "configmap");
    cluster.secret("child", owned([small(&owner)])).await;
    cluster.secret("twice", owned([small(&owner), to(&owner, true)])).await;
    things
        .create(&cluster, "thing", owned([small(&owner), to(&other, false)]))
        .await;
    cluster
        .secret("odd", owned([with(small(&owner), "kind", "configMap")]))
        .await;
    cluster.start_synced().await;
    sleep(secs(60)).await;
    let there = async |name: &str| cluster.get(&secret_path(name)).await.is_some();
    assert!(there("child").await && there("twice").await);
    cluster.delete(&map_path("owner"), "Foreground").await;
    cluster.wait_for_deletion("owner").await;
    assert!(!there("child").await && !there("twice").await);
    assert_eq!(cluster.owners(&things.path("thing")).await, ["other"]);
    sleep(secs(60)).await;
    assert!(there("odd").await, "there is no such kind");
}

#[tokio::test(start_paused = true)]
async fn a_kind_in_lower_case_may_be_referenced_before_it_is_defined() {
    let mut cluster = Cluster::new().await;
    cluster.start_synced().await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    let small = with(with(to(&owner, true), "apiVersion", "a.test/v1"), "kind", "thing");
    cluster.map("child", owned([small])).await;
    sleep(secs(60)).await;
    assert!(cluster.exists("child").await);
    Things::define(&cluster, "a.test", true, &["v1"]).await;
    cluster.wait_for_deletion("child").await;
    assert!(cluster.exists("owner").await);
}
