use http::Method;
use serde_json::{Value, json};

use super::client::{Client, Line, server};
use super::{LEASES, MAPS, PODS, map, pod};

#[tokio::test(start_paused = true)]
async fn a_write_that_changes_nothing_keeps_the_version_and_sends_no_event() {
    let server = server().await;
    let admin = Client::admin(&server);
    let made = admin.create(MAPS, map("a")).await.body;
    let mut watch = admin.watch(&format!("{MAPS}?watch=1&resourceVersion=207")).await;
    let patched = admin
        .patch(&format!("{MAPS}/a"), json!({ "metadata": { "finalizers": null } }))
        .await;
    assert_eq!(patched.body, made);
    assert_eq!(admin.put(&format!("{MAPS}/a"), made.clone()).await.body, made);
    assert_eq!(watch.next().await, Line::Silence);
}

#[tokio::test(start_paused = true)]
async fn the_patch_that_takes_the_last_finalizer_is_answered_with_the_object() {
    let server = server().await;
    let admin = Client::admin(&server);
    let path = format!("{MAPS}/a");
    admin
        .create(MAPS, json!({ "metadata": { "name": "a", "finalizers": ["x/y"] } }))
        .await;
    let held = admin.delete(&path, Value::Null).await;
    assert_eq!(
        (held.code, &held.body["metadata"]["deletionGracePeriodSeconds"]),
        (200, &json!(0))
    );
    let version = held.body["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = admin.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    let answer = admin.patch(&path, json!({ "metadata": { "finalizers": [] } })).await;
    assert_eq!((answer.code, &answer.body["kind"]), (200, &json!("ConfigMap")));
    assert_eq!(answer.body["metadata"]["resourceVersion"], version);
    assert_eq!(answer.body["metadata"].get("finalizers"), None);
    let (change, last) = watch.event().await;
    assert_eq!(
        (change.as_str(), &last["metadata"]["finalizers"]),
        ("DELETED", &json!(["x/y"]))
    );
    assert_ne!(last["metadata"]["resourceVersion"], version);
    assert_eq!(admin.get(&path).await.code, 404);
}

#[tokio::test(start_paused = true)]
async fn a_removal_is_answered_by_a_status_for_most_kinds() {
    let server = server().await;
    let admin = Client::admin(&server);
    let uid = admin.create(MAPS, map("a")).await.body["metadata"]["uid"].clone();
    let answer = admin.delete(&format!("{MAPS}/a"), Value::Null).await;
    let details = json!({ "name": "a", "kind": "configmaps", "uid": uid });
    let expected =
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
    assert_eq!((answer.code, answer.body), (200, expected));
}

#[tokio::test(start_paused = true)]
async fn a_pod_recreated_under_the_same_name_is_another_pod() {
    let server = server().await;
    let (admin, node) = (Client::admin(&server), Client::node(&server));
    let path = format!("{PODS}/a");
    let old = admin.create(PODS, pod("a", "n1")).await.body["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    admin.delete(&path, json!({ "gracePeriodSeconds": 0 })).await;
    let new = admin.create(PODS, pod("a", "n1")).await.body["metadata"]["uid"]
        .as_str()
        .unwrap()
        .to_owned();
    let refused = node
        .delete(
            &path,
            json!({ "gracePeriodSeconds": 0, "preconditions": { "uid": old } }),
        )
        .await;
    assert_eq!((refused.code, &refused.body["reason"]), (409, &json!("Conflict")));
    assert_eq!(refused.body["details"], json!({ "name": "a", "kind": "Pod" }));
    assert_eq!(
        refused.body["message"],
        format!(
            "Operation cannot be fulfilled on Pod \"a\": the UID in the precondition ({old}) does not match the UID \
             in record ({new}). The object might have been deleted and then recreated"
        )
    );
    let refused = node
        .patch(&format!("{path}/status"), json!({ "metadata": { "uid": old } }))
        .await;
    assert_eq!((refused.code, &refused.body["reason"]), (422, &json!("Invalid")));
    let causes = refused.body["details"]["causes"].as_array().unwrap();
    assert!(
        causes.len() == 2 && causes.iter().all(|cause| cause["field"] == "metadata.uid"),
        "{causes:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_stale_version_is_a_conflict() {
    let server = server().await;
    let admin = Client::admin(&server);
    let made = admin.create(MAPS, map("a")).await.body;
    admin.patch(&format!("{MAPS}/a"), json!({ "data": { "k": "v" } })).await;
    let answer = admin.put(&format!("{MAPS}/a"), made).await;
    assert_eq!(answer.code, 409);
    assert_eq!(answer.body["details"], json!({ "name": "a", "kind": "configmaps" }));
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_made_by_put_and_replaced_only_by_version() {
    let server = server().await;
    let admin = Client::admin(&server);
    let path = format!("{LEASES}/n1");
    let lease = json!({ "metadata": { "name": "n1" }, "spec": { "renewTime": "2026-11-21T08:00:00.000000Z" } });
    assert_eq!(admin.put(&path, lease.clone()).await.code, 201);
    let refused = admin.put(&path, lease).await;
    assert_eq!(refused.code, 422);
    assert_eq!(
        refused.body["message"],
        "leases.coordination.k8s.io \"n1\" is invalid: metadata.resourceVersion: Invalid value: 0x0: must be \
         specified for an update"
    );
    assert_eq!(
        admin
            .patch(&path, json!({ "spec": { "renewTime": "2026-11-21T08:00:00Z" } }))
            .await
            .code,
        422
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_created_where_there_is_no_namespace_or_one_that_goes() {
    let server = server().await;
    let admin = Client::admin(&server);
    let answer = admin.create("/api/v1/namespaces/none/configmaps", map("a")).await;
    assert_eq!(
        (answer.code, &answer.body["details"]["kind"]),
        (404, &json!("namespaces"))
    );
    admin.create("/api/v1/namespaces", map("going")).await;
    let going = admin.delete("/api/v1/namespaces/going", Value::Null).await;
    assert_eq!(
        (going.code, &going.body["status"]["phase"]),
        (200, &json!("Terminating"))
    );
    let answer = admin.create("/api/v1/namespaces/going/configmaps", map("a")).await;
    assert_eq!(
        (answer.code, &answer.body["details"]["causes"][0]["reason"]),
        (403, &json!("NamespaceTerminating"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_stores_nothing() {
    let server = server().await;
    let admin = Client::admin(&server);
    assert_eq!(
        admin.create(&format!("{PODS}?dryRun=All"), pod("a", "n1")).await.code,
        201
    );
    assert_eq!(admin.get(&format!("{PODS}/a")).await.code, 404);
    admin.create(PODS, pod("a", "n1")).await;
    let answer = admin
        .delete(
            &format!("{PODS}/a"),
            json!({ "gracePeriodSeconds": 0, "dryRun": ["All"] }),
        )
        .await;
    assert_eq!(answer.code, 200);
    assert_eq!(
        admin.get(&format!("{PODS}/a")).await.body["metadata"].get("deletionTimestamp"),
        None
    );
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_selector_and_listed() {
    let server = server().await;
    let admin = Client::admin(&server);
    for (name, label) in [("a", "1"), ("b", "2")] {
        admin
            .create(MAPS, json!({ "metadata": { "name": name, "labels": { "x": label } } }))
            .await;
    }
    let answer = admin.delete(&format!("{MAPS}?labelSelector=x%3D1"), Value::Null).await;
    assert_eq!(
        (answer.code, answer.body["items"].as_array().map(Vec::len)),
        (200, Some(1))
    );
    assert_eq!(admin.get(MAPS).await.body["items"][0]["metadata"]["name"], "b");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_marks_the_pod_and_deletes_it_by_the_usual_rules() {
    let server = server().await;
    let admin = Client::admin(&server);
    admin.create(PODS, pod("a", "n1")).await;
    let eviction = json!({ "metadata": { "name": "a" }, "deleteOptions": { "gracePeriodSeconds": 7 } });
    assert_eq!(admin.create(&format!("{PODS}/a/eviction"), eviction).await.code, 201);
    let pod = admin.get(&format!("{PODS}/a")).await.body;
    assert_eq!(pod["metadata"]["deletionGracePeriodSeconds"], 7);
    assert_eq!(pod["status"]["conditions"][0]["reason"], "EvictionByEvictionAPI");
}

#[tokio::test(start_paused = true)]
async fn hostile_objects_are_stored_only_past_the_rules() {
    let server = server().await;
    let admin = Client::admin(&server);
    let mut hostile = pod("..", "n1");
    hostile["metadata"]["namespace"] = "default".into();
    hostile["spec"]["terminationGracePeriodSeconds"] = (-5).into();
    assert_eq!(admin.create(PODS, hostile.clone()).await.code, 422);
    server.insert_raw(hostile).unwrap();
    let stored = admin.get(&format!("{PODS}/%2E%2E")).await;
    assert_eq!(
        (stored.code, &stored.body["spec"]["terminationGracePeriodSeconds"]),
        (200, &json!(-5))
    );
    let listed = admin.get("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1").await.body;
    assert_eq!(listed["items"][0]["metadata"]["name"], "..");
}

#[tokio::test(start_paused = true)]
async fn a_patch_of_an_unknown_type_is_not_taken() {
    let server = server().await;
    let admin = Client::admin(&server);
    admin.create(MAPS, map("a")).await;
    let answer = admin
        .try_ask(Method::PATCH, &format!("{MAPS}/a"), "text/plain", &json!({}))
        .await
        .unwrap();
    assert_eq!(
        (answer.code, &answer.body["reason"]),
        (415, &json!("UnsupportedMediaType"))
    );
}

#[tokio::test(start_paused = true)]
async fn invalid_body_is_refused_without_effect() {
    let server = server().await;
    let admin = Client::admin(&server);
    admin.create(PODS, pod("a", "n1")).await;
    for body in [
        json!([]),
        json!("x"),
        json!({ "metadata": 1 }),
        json!({ "metadata": { "name": "b" }, "spec": 1 }),
    ] {
        for path in [
            PODS,
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "/api/v1/nodes",
        ] {
            let code = admin.create(path, body.clone()).await.code;
            assert!(code < 500, "{path} {body}: {code}");
        }
        assert!(
            admin.put(&format!("{PODS}/a"), body.clone()).await.code >= 400,
            "{body}"
        );
        assert!(
            admin.delete(&format!("{PODS}/none"), body.clone()).await.code >= 400,
            "{body}"
        );
        assert!(
            admin.create(&format!("{PODS}/a/binding"), body.clone()).await.code >= 400,
            "{body}"
        );
    }
    let replaced = json!([{ "op": "replace", "path": "", "value": "x" }]);
    let path = format!("{PODS}/a");
    let answer = admin
        .try_ask(Method::PATCH, &path, "application/json-patch+json", &replaced)
        .await
        .unwrap();
    assert_eq!(answer.code, 422);
    assert_eq!(admin.get(&path).await.code, 200);
}
