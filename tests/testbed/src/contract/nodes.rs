//! Claims about what a node's identity may do with pods and with its own object.

use anyhow::{Result, bail};
use http::Method;
use serde_json::{Value, json};

use super::scene::{Scene, names, next_of, refuses, uid, version};
use crate::rest::{Error, EventType::Added, Patch};

async fn pod_elsewhere(s: &Scene<'_>, name: &str) -> Result<Value> {
    s.new_pod_with(name, json!({}), json!({"nodeName": s.other_node})).await
}

async fn watch_refused(s: &Scene<'_>, path: &str, selector: &str) -> Result<()> {
    match s.as_node.watch(path, &[("fieldSelector", selector)]).await {
        Err(Error::Refused { answer, .. }) => refuses(&answer, 403, "Forbidden"),
        other => bail!("expected a refusal, got {other:?}"),
    }
    Ok(())
}

fn final_delete_of(uid: &str) -> Value {
    json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
}

fn failed(uid: &str) -> Value {
    json!({"metadata": {"uid": uid}, "status": {"phase": "Failed"}})
}

/// Creates a pod on the node that the server knows as the node's.
///
/// It learns from a watch which pods are whose, in order: it knows by then of all pods that were created earlier, too.
async fn own_pod(s: &Scene<'_>, name: &str) -> Result<Value> {
    let pod = s.new_pod(name).await?;
    while s.as_node.get(&s.pod(name)).await?.code() == 403 {
        tokio::task::yield_now().await;
    }
    Ok(pod)
}

pub(super) async fn it_reads_its_own_pods_only(s: &Scene<'_>) -> Result<()> {
    pod_elsewhere(s, "other").await?;
    let own = own_pod(s, "own").await?;
    assert_eq!(uid(&s.as_node.get(&s.pod("own")).await?.ok()?), uid(&own));
    refuses(&s.as_node.get(&s.pod("other")).await?, 403, "Forbidden");
    Ok(())
}

pub(super) async fn a_pod_that_is_not_there_is_forbidden_not_missing(s: &Scene<'_>) -> Result<()> {
    refuses(&s.as_node.get(&s.pod("never")).await?, 403, "Forbidden");
    own_pod(s, "own").await?;
    s.as_node
        .delete(&s.pod("own"), Some(&json!({"gracePeriodSeconds": 0})))
        .await?
        .ok()?;
    while s.as_node.get(&s.pod("own")).await?.code() == 404 {
        tokio::task::yield_now().await;
    }
    refuses(&s.as_node.get(&s.pod("own")).await?, 403, "Forbidden");
    Ok(())
}

pub(super) async fn node_lists_pods_only_by_its_name(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    s.new_pod("b").await?;
    pod_elsewhere(s, "c").await?;
    let list = async |selector: &str| s.as_node.list("/api/v1/pods", &[("fieldSelector", selector)]).await;
    let own = format!("spec.nodeName={}", s.node);
    assert_eq!(names(&list(&own).await?.ok()?), ["a", "b"]);
    assert_eq!(names(&list(&format!("{own},metadata.name=b")).await?.ok()?), ["b"]);
    refuses(
        &list(&format!("spec.nodeName={}", s.other_node)).await?,
        403,
        "Forbidden",
    );
    refuses(&s.as_node.list("/api/v1/pods", &[]).await?, 403, "Forbidden");
    Ok(())
}

pub(super) async fn an_absent_pod_is_an_empty_list_to_its_node(s: &Scene<'_>) -> Result<()> {
    let selector = format!("spec.nodeName={},metadata.name=never", s.node);
    let list = s.as_node.list(&s.pods(), &[("fieldSelector", &selector)]).await?.ok()?;
    assert_eq!(list["items"], json!([]));
    Ok(())
}

pub(super) async fn node_watches_pods_only_by_its_name(s: &Scene<'_>) -> Result<()> {
    let other = pod_elsewhere(s, "other").await?;
    own_pod(s, "own").await?;
    let own = format!("spec.nodeName={}", s.node);
    let options = [("fieldSelector", own.as_str()), ("resourceVersion", version(&other))];
    let mut watch = s.as_node.watch("/api/v1/pods", &options).await?;
    assert_eq!(next_of(&mut watch).await?, (Added, "own".to_owned()));
    watch_refused(s, "/api/v1/pods", &format!("spec.nodeName={}", s.other_node)).await?;
    watch_refused(s, "/api/v1/pods", "").await
}

pub(super) async fn node_deletes_its_own_pods_gracefully_or_not(s: &Scene<'_>) -> Result<()> {
    let pod = own_pod(s, "own").await?;
    let graceful = s
        .as_node
        .delete(&s.pod("own"), Some(&json!({"gracePeriodSeconds": 60})))
        .await?
        .ok()?;
    assert_eq!(graceful["metadata"]["deletionGracePeriodSeconds"], 60);
    s.as_node
        .delete(&s.pod("own"), Some(&final_delete_of(uid(&pod))))
        .await?
        .ok()?;
    refuses(&s.admin.get(&s.pod("own")).await?, 404, "NotFound");
    Ok(())
}

pub(super) async fn node_does_not_delete_pods_of_other_nodes(s: &Scene<'_>) -> Result<()> {
    pod_elsewhere(s, "other").await?;
    own_pod(s, "own").await?;
    let answer = s
        .as_node
        .delete(&s.pod("other"), Some(&json!({"gracePeriodSeconds": 0})))
        .await?;
    refuses(&answer, 403, "Forbidden");
    Ok(())
}

pub(super) async fn deleting_a_pod_that_is_gone_is_not_found(s: &Scene<'_>) -> Result<()> {
    let answer = s
        .as_node
        .delete(&s.pod("gone"), Some(&final_delete_of("of-old")))
        .await?;
    refuses(&answer, 404, "NotFound");
    assert_eq!(answer.body["details"], json!({"name": "gone", "kind": "pods"}));
    Ok(())
}

pub(super) async fn deleting_under_an_old_uid_is_a_conflict_wherever_the_new_pod_is(s: &Scene<'_>) -> Result<()> {
    pod_elsewhere(s, "there").await?;
    own_pod(s, "here").await?;
    for name in ["here", "there"] {
        let answer = s.as_node.delete(&s.pod(name), Some(&final_delete_of("of-old"))).await?;
        refuses(&answer, 409, "Conflict");
    }
    Ok(())
}

pub(super) async fn node_does_not_delete_collections(s: &Scene<'_>) -> Result<()> {
    own_pod(s, "own").await?;
    let selector = format!("spec.nodeName={}", s.node);
    let call = s
        .as_node
        .call(Method::DELETE, &s.pods())
        .options(&[("fieldSelector", &selector)]);
    refuses(&call.send().await?, 403, "Forbidden");
    Ok(())
}

pub(super) async fn node_changes_the_status_of_its_own_pods_only(s: &Scene<'_>) -> Result<()> {
    let other = pod_elsewhere(s, "other").await?;
    let own = own_pod(s, "own").await?;
    let status = |name: &str| format!("{}/status", s.pod(name));
    let after = s
        .as_node
        .patch(&status("own"), Patch::Strategic, &failed(uid(&own)))
        .await?
        .ok()?;
    assert_eq!(after["status"]["phase"], "Failed");
    refuses(
        &s.as_node
            .patch(&status("other"), Patch::Strategic, &failed(uid(&other)))
            .await?,
        403,
        "Forbidden",
    );
    refuses(&s.as_node.get(&status("own")).await?, 403, "Forbidden");
    Ok(())
}

pub(super) async fn a_status_under_an_old_uid_is_refused_by_where_the_new_pod_is(s: &Scene<'_>) -> Result<()> {
    pod_elsewhere(s, "there").await?;
    own_pod(s, "here").await?;
    for (name, code, reason) in [
        ("here", 422, "Invalid"),
        ("there", 403, "Forbidden"),
        ("gone", 404, "NotFound"),
    ] {
        let path = format!("{}/status", s.pod(name));
        refuses(
            &s.as_node.patch(&path, Patch::Strategic, &failed("of-old")).await?,
            code,
            reason,
        );
    }
    Ok(())
}

pub(super) async fn node_does_not_change_labels_through_the_status(s: &Scene<'_>) -> Result<()> {
    own_pod(s, "own").await?;
    let patch = json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Failed"}});
    let path = format!("{}/status", s.pod("own"));
    refuses(
        &s.as_node.patch(&path, Patch::Strategic, &patch).await?,
        403,
        "Forbidden",
    );
    Ok(())
}

pub(super) async fn node_changes_nothing_else_of_a_pod(s: &Scene<'_>) -> Result<()> {
    let pod = own_pod(s, "own").await?;
    let patch = json!({"metadata": {"annotations": {"a": "b"}}});
    refuses(
        &s.as_node.patch(&s.pod("own"), Patch::Merge, &patch).await?,
        403,
        "Forbidden",
    );
    refuses(&s.as_node.update(&s.pod("own"), &pod).await?, 403, "Forbidden");
    Ok(())
}

pub(super) async fn node_creates_only_mirror_pods(s: &Scene<'_>) -> Result<()> {
    let spec = json!({"nodeName": s.node, "containers": [{"name": "main", "image": "example.test/main"}]});
    let answer = s
        .as_node
        .create(&s.pods(), &json!({"metadata": {"name": "a"}, "spec": spec}))
        .await?;
    refuses(&answer, 403, "Forbidden");
    Ok(())
}

pub(super) async fn it_reads_its_own_node_only(s: &Scene<'_>) -> Result<()> {
    for name in [&s.node, &s.other_node] {
        s.admin
            .create("/api/v1/nodes", &json!({"metadata": {"name": name}}))
            .await?
            .ok()?;
    }
    let path = |name: &str| format!("/api/v1/nodes/{name}");
    assert_eq!(s.as_node.get(&path(&s.node)).await?.ok()?["metadata"]["name"], s.node);
    refuses(&s.as_node.get(&path(&s.other_node)).await?, 403, "Forbidden");
    let by_name = format!("metadata.name={}", s.node);
    let list = s
        .as_node
        .list("/api/v1/nodes", &[("fieldSelector", &by_name)])
        .await?
        .ok()?;
    assert_eq!(names(&list), [s.node.as_str()]);
    let mut watch = s.as_node.watch("/api/v1/nodes", &[("fieldSelector", &by_name)]).await?;
    assert_eq!(next_of(&mut watch).await?, (Added, s.node.clone()));
    watch_refused(s, "/api/v1/nodes", &format!("metadata.name={}", s.other_node)).await
}

pub(super) async fn a_node_that_does_not_exist_is_missing_to_itself(s: &Scene<'_>) -> Result<()> {
    refuses(
        &s.as_node.get(&format!("/api/v1/nodes/{}", s.node)).await?,
        404,
        "NotFound",
    );
    Ok(())
}

pub(super) async fn unknown_token_is_unauthorized(s: &Scene<'_>) -> Result<()> {
    refuses(
        &s.admin.with_token("never-heard-of").get(&s.pods()).await?,
        401,
        "Unauthorized",
    );
    Ok(())
}
