//! Kubernetes' own tests of its garbage collector, as far as `cascades`, `defects` and `safety` do not have them.

use crate::prelude::*;

const CONTROLLERS: &str = "/api/v1/namespaces/default/replicationcontrollers";

async fn controller(cluster: &Cluster, name: &str, finalizers: &[&str]) -> Value {
    let template = json!({
        "metadata": { "labels": { "app": "a" } },
        "spec": { "containers": [{ "name": "main", "image": "example.test/main" }] },
    });
    let object = json!({
        "metadata": { "name": name, "finalizers": finalizers },
        "spec": { "replicas": 0, "selector": { "app": "a" }, "template": template },
    });
    let created = cluster.admin.create(CONTROLLERS, &object).await;
    created.unwrap().ok().unwrap()
}

/// TestStressingCascadingDeletion: finalizers of an owner, options of its deletion, and whether its dependents stay.
#[tokio::test(start_paused = true)]
async fn fifty_owners_deleted_in_five_ways_delete_or_orphan_their_dependents() {
    let mixes: [(&[&str], Value, bool); 5] = [
        (&[], json!({ "orphanDependents": false }), false),
        // The default of replication controllers is to orphan.
        (&[], json!({}), true),
        (&["orphan"], json!({}), true),
        (&["orphan"], json!({ "orphanDependents": false }), false),
        (&[], json!({ "propagationPolicy": "Foreground" }), false),
    ];
    let mut cluster = Cluster::new().await;
    cluster.start_synced().await;
    for number in 0..50 {
        let (finalizers, options, _) = &mixes[number % 5];
        let path = format!("{CONTROLLERS}/owner-{number}");
        let owner = controller(&cluster, &format!("owner-{number}"), finalizers).await;
        for child in 0..3 {
            let name = format!("child-{number}-{child}");
            cluster.secret(&name, owned([to(&owner, true)])).await;
        }
        let deleted = cluster.admin.delete(&path, Some(options)).await;
        deleted.unwrap().ok().unwrap();
    }
    until!(cluster.api.objects("v1", "ReplicationController").is_empty());
    sleep(secs(60)).await;
    let left = cluster.api.objects("v1", "Secret");
    assert!(left.iter().all(|it| owners_of(it).is_empty()), "{left:?}");
    let stays = |it: &Value| {
        let name = it["metadata"]["name"].as_str().unwrap();
        let number: usize = name.split('-').nth(1).unwrap().parse().unwrap();
        mixes[number % 5].2
    };
    assert_eq!((left.len(), left.iter().filter(|it| stays(it)).count()), (60, 60));
    let report = cluster.report();
    assert_eq!((report.linked, report.queue.delayed), (0, 0), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn dependents_created_while_their_owner_is_deleted_are_collected() {
    for policy in ["Background", "Foreground"] {
        let mut cluster = Cluster::new().await;
        let owner = cluster.map("owner", ObjectSpec::default()).await;
        cluster.start_synced().await;
        for number in 0..60 {
            if number == 20 {
                cluster.delete(&map_path("owner"), policy).await;
            }
            cluster
                .secret(&format!("child-{number}"), owned([to(&owner, number % 2 == 0)]))
                .await;
        }
        until!(cluster.api.objects("v1", "Secret").is_empty());
        cluster.wait_for_deletion("owner").await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_applies_three_levels_below_a_deployment() {
    for (policy, stays) in [("Background", false), ("Foreground", false), ("Orphan", true)] {
        let mut cluster = Cluster::new().await;
        cluster.start_synced().await;
        let apps = "/apis/apps/v1/namespaces/default";
        let path = |plural: &str, name: &str| format!("{apps}/{plural}/{name}");
        let insert = |kind: &str, number: usize, owner: Option<Value>| {
            let uid = format!("5eed0000-0000-4000-8000-{number:012}");
            let version = if kind == "Pod" { "v1" } else { "apps/v1" };
            let object = json!({ "apiVersion": version, "kind": kind, "metadata": {
                "name": "web", "namespace": "default", "uid": uid, "ownerReferences": owner.as_slice(),
            }, "spec": {} });
            cluster.api.insert_raw(object.clone()).unwrap();
            object
        };
        let deployment = insert("Deployment", 1, None);
        let set = insert("ReplicaSet", 2, Some(to(&deployment, true)));
        insert("Pod", 3, Some(to(&set, true)));
        sleep(secs(1)).await;
        cluster.delete(&path("deployments", "web"), policy).await;
        until!(cluster.get(&path("deployments", "web")).await.is_none());
        sleep(secs(60)).await;
        let set = cluster.get(&path("replicasets", "web")).await;
        let pod = cluster.get("/api/v1/namespaces/default/pods/web").await;
        assert_eq!((set.is_some(), pod.is_some()), (stays, stays), "{policy}");
        if stays {
            assert!(owners_of(&set.unwrap()).is_empty());
            assert_eq!(owners_of(&pod.unwrap()), ["web"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_dependent_that_no_longer_blocks_or_names_its_owner_does_not_delay_it() {
    let mut cluster = Cluster::new().await;
    cluster.start_synced().await;
    for blocks in [Some(false), None] {
        let owner = cluster.map("owner", ObjectSpec::default()).await;
        cluster.map("child", with_finalizer([to(&owner, true)])).await;
        cluster.delete(&map_path("owner"), "Foreground").await;
        sleep(secs(30)).await;
        assert!(cluster.exists("owner").await);
        let references: Vec<Value> = blocks.map(|blocks| to(&owner, blocks)).into_iter().collect();
        cluster
            .change(&map_path("child"), json!({ "ownerReferences": references }))
            .await;
        cluster.wait_for_deletion("owner").await;
        cluster.change(&map_path("child"), json!({ "finalizers": null })).await;
        cluster.wait_for_deletion("child").await;
    }
}

#[tokio::test(start_paused = true)]
async fn custom_and_built_in_objects_can_own_each_other() {
    for namespaced in [true, false] {
        for policy in ["Background", "Foreground", "Orphan"] {
            let mut cluster = Cluster::new().await;
            cluster.start_synced().await;
            // Defined while the collector runs.
            let things = Things::define(&cluster, "a.test", namespaced, &["v1"]).await;
            let thing = things.create(&cluster, "thing", ObjectSpec::default()).await;
            things.create(&cluster, "of-a-thing", owned([to(&thing, true)])).await;
            cluster.map("of-a-thing", owned([to(&thing, true)])).await;
            let map = cluster.map("map", ObjectSpec::default()).await;
            if namespaced {
                things.create(&cluster, "of-a-map", owned([to(&map, true)])).await;
            }
            cluster.secret("of-a-map", owned([to(&map, true)])).await;
            cluster.delete(&things.path("thing"), policy).await;
            cluster.delete(&map_path("map"), policy).await;
            things.wait_for_deletion(&cluster, "thing").await;
            cluster.wait_for_deletion("map").await;
            sleep(secs(90)).await;
            let stays = policy == "Orphan";
            let mut left = vec![
                cluster.get(&things.path("of-a-thing")).await,
                cluster.get(&map_path("of-a-thing")).await,
                cluster.get(&secret_path("of-a-map")).await,
            ];
            if namespaced {
                left.push(cluster.get(&things.path("of-a-map")).await);
            }
            for object in left {
                assert_eq!(object.is_some(), stays, "{policy}: {object:?}");
                assert!(object.is_none_or(|it| owners_of(&it).is_empty()));
            }
        }
    }
}

/// TestCRDDeletionCascading, twice with the same definition.
#[tokio::test(start_paused = true)]
async fn deleting_a_definition_deletes_its_instances_and_their_dependents_each_time() {
    let mut cluster = Cluster::new().await;
    cluster.start_synced().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    for wait in [0, 40] {
        let thing = things.create(&cluster, "owner", ObjectSpec::default()).await;
        cluster.map("child", owned([to(&thing, false)])).await;
        // Each is seen before it is deleted.
        sleep(secs(65)).await;
        assert!(cluster.exists("child").await);
        things.undefine(&cluster).await;
        cluster.wait_for_deletion("child").await;
        sleep(secs(wait)).await;
        things.define_now(&cluster).await;
    }
}

#[tokio::test(start_paused = true)]
async fn dependents_of_an_unseen_instance_are_deleted_once_its_kind_returns() {
    let mut cluster = Cluster::new().await;
    cluster.start_synced().await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let thing = things.create(&cluster, "owner", ObjectSpec::default()).await;
    cluster.map("child", owned([to(&thing, false)])).await;
    // It was deleted before its kind was watched: it is unknown until the kind is served again.
    things.undefine(&cluster).await;
    sleep(secs(120)).await;
    assert!(cluster.exists("child").await);
    things.define_now(&cluster).await;
    cluster.wait_for_deletion("child").await;
}

/// TestCrossNamespaceReferences at a cold start.
#[tokio::test(start_paused = true)]
async fn at_a_cold_start_invalid_references_do_not_affect_valid_ones() {
    let mut cluster = Cluster::new().await;
    cluster.namespace("other");
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    let good = [to(&owner, false)];
    for number in 0..300 {
        cluster.insert_secret("other", &format!("single-{number}"), &good);
        let kind = format!("Nothing{}", number % 25);
        let owners = [good[0].clone(), absent_owner("absent.test/v1", &kind, number)];
        cluster.insert_secret("other", &format!("double-{number}"), &owners);
    }
    for number in 0..10 {
        cluster.insert_secret("default", &format!("good-{number}"), &good);
    }
    cluster.start_synced().await;
    until!(cluster.api.objects("v1", "Secret").len() == 310);
    cluster.insert_secret("other", "late", &good);
    sleep(secs(60)).await;
    assert_eq!(cluster.api.objects("v1", "Secret").len(), 310);
    assert!(cluster.exists("owner").await);
    assert_eq!(cluster.count_requests("get", "configmaps"), 1);
}
