//! Long lists, and tables that clients fill.

use crate::prelude::*;

/// The owner is on the first page of a slow list, and its dependents are known before the list is complete.
#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_first_seen_in_a_list_of_several_pages_ends() {
    let mut cluster = Cluster::new().await;
    let owner = cluster.map("a-owner", ObjectSpec::default()).await;
    cluster.secret("child", owned([to(&owner, true)])).await;
    for number in 0..600 {
        let metadata = json!({ "name": format!("filler-{number}"), "namespace": "default" });
        let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata });
        cluster.api.insert_raw(object).unwrap();
    }
    cluster.delete(&map_path("a-owner"), "Foreground").await;
    cluster.inject(Fault::delay(secs(1)).verb("list").resource("configmaps"));
    cluster.start_synced().await;
    // It must not stay, either.
    sleep(secs(7200)).await;
    cluster.wait_for_deletion("a-owner").await;
}

/// The same when the monitor restarts because its kind is served in another version.
#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_while_the_preferred_version_changes_ends() {
    let mut cluster = Cluster::new().await;
    let things = Things::define(&cluster, "a.test", true, &["v1", "v1beta1"]).await;
    let owner = things.create(&cluster, "a-owner", ObjectSpec::default()).await;
    cluster.secret("child", owned([to(&owner, true)])).await;
    for number in 0..600 {
        let metadata = json!({ "name": format!("filler-{number}"), "namespace": "default" });
        let object = json!({ "apiVersion": "a.test/v1", "kind": "Thing", "metadata": metadata });
        cluster.api.insert_raw(object).unwrap();
    }
    cluster.start_synced().await;
    cluster.inject(Fault::delay(secs(2)).verb("list").resource("things"));
    // From now on only the other version is served.
    things.serve(&cluster, 0, false).await;
    let other = "/apis/a.test/v1beta1/namespaces/default/things/a-owner";
    // The list of that version has started when this is done.
    cluster.inject(Fault::new(Action::StallWatch).resource("things").times(1));
    sleep(secs(1)).await;
    cluster.delete(other, "Foreground").await;
    until!(cluster.get(other).await.is_none());
}

/// A client names 66,000 kinds; then a kind is defined.
#[tokio::test(start_paused = true)]
async fn made_up_kinds_do_not_prevent_a_definition_from_being_collected() {
    let mut cluster = Cluster::new().await;
    cluster.start_synced().await;
    for object in 0..66 {
        let made_up = |number: u64| absent_owner("made-up.test/v1", &format!("K{object}x{number}"), number);
        let owners: Vec<Value> = (0..1000).map(made_up).collect();
        cluster.insert_secret("default", &format!("evil-{object}"), &owners);
    }
    sleep(secs(60)).await;
    let things = Things::define(&cluster, "a.test", true, &["v1"]).await;
    let owner = cluster.map("owner", ObjectSpec::default()).await;
    things.create(&cluster, "child", owned([to(&owner, true)])).await;
    sleep(secs(60)).await;
    let unsynced = cluster.unsynced();
    cluster.delete(&map_path("owner"), "Foreground").await;
    sleep(secs(120)).await;
    let (owner, child) = (cluster.exists("owner").await, things.exists(&cluster, "child").await);
    assert!(
        !child,
        "never collected; owner exists: {owner}; not synced: {unsynced:?}"
    );
}
