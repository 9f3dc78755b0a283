//! Claims about the status subresource of pods, and who may change what through it.

use anyhow::Result;
use serde_json::{Value, json};

use super::scene::{Scene, refuses, version};
use crate::rest::Patch;

async fn patch_status(s: &Scene<'_>, kind: Patch, patch: Value) -> Result<Value> {
    Ok(s.admin
        .patch(&format!("{}/status", s.pod("a")), kind, &patch)
        .await?
        .ok()?)
}

pub(super) async fn the_object_itself_does_not_take_a_status(s: &Scene<'_>) -> Result<()> {
    let pod = s.new_pod("a").await?;
    let after = s
        .admin
        .patch(&s.pod("a"), Patch::Merge, &json!({"status": {"phase": "Failed"}}))
        .await?
        .ok()?;
    assert_eq!(
        (&after["status"]["phase"], version(&after)),
        (&json!("Pending"), version(&pod))
    );
    Ok(())
}

pub(super) async fn a_status_given_at_creation_is_not_taken(s: &Scene<'_>) -> Result<()> {
    let spec = json!({"nodeName": s.node, "containers": [{"name": "main", "image": "example.test/main"}]});
    let pod = json!({"metadata": {"name": "a"}, "spec": spec, "status": {"phase": "Failed", "reason": "Given"}});
    let pod = s.admin.create(&s.pods(), &pod).await?.ok()?;
    assert_eq!(
        (&pod["status"]["phase"], &pod["status"]["reason"]),
        (&json!("Pending"), &Value::Null)
    );
    Ok(())
}

pub(super) async fn the_status_does_not_take_a_spec(s: &Scene<'_>) -> Result<()> {
    let pod = s.new_pod("a").await?;
    let patch = json!({
        "spec": {"containers": [{"name": "main", "image": "example.test/other"}]},
        "status": {"phase": "Running"},
    });
    let after = patch_status(s, Patch::Merge, patch).await?;
    assert_eq!(after["spec"], pod["spec"]);
    assert_eq!(after["status"]["phase"], "Running");
    assert_eq!(after["metadata"]["generation"], 1);
    Ok(())
}

pub(super) async fn labels_and_finalizers_do_come_in_through_the_status(s: &Scene<'_>) -> Result<()> {
    s.new_pod_with(
        "a",
        json!({"finalizers": ["example.test/held"]}),
        json!({"nodeName": s.node}),
    )
    .await?;
    let metadata = json!({"labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": null});
    let after = patch_status(s, Patch::Merge, json!({"metadata": metadata})).await?;
    assert_eq!(after["metadata"]["labels"], json!({"a": "b"}));
    assert_eq!(after["metadata"]["annotations"]["c"], "d");
    assert_eq!(after["metadata"]["finalizers"], Value::Null);
    Ok(())
}

pub(super) async fn owners_do_not_come_in_through_the_status(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "uid-of-x"});
    let after = patch_status(s, Patch::Merge, json!({"metadata": {"ownerReferences": [owner]}})).await?;
    assert_eq!(after["metadata"]["ownerReferences"], Value::Null);
    Ok(())
}

pub(super) async fn conditions_are_merged_by_their_type(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let conditions = |list: Value| json!({"status": {"conditions": list}});
    let two = json!([{"type": "Ready", "status": "True"}, {"type": "Initialized", "status": "True"}]);
    patch_status(s, Patch::Strategic, conditions(two)).await?;
    let change = json!([{"type": "Ready", "status": "False", "reason": "Stopped"}]);
    let after = patch_status(s, Patch::Strategic, conditions(change)).await?;
    let mut found: Vec<_> = after["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|condition| (condition["type"].as_str(), condition["status"].as_str()))
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [(Some("Initialized"), Some("True")), (Some("Ready"), Some("False"))]
    );
    Ok(())
}

pub(super) async fn addresses_are_merged_by_their_ip(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let address = |ip: &str| json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
    patch_status(s, Patch::Strategic, address("10.0.0.1")).await?;
    let out = json!({"status": {"podIP": null, "podIPs": [{"$patch": "delete", "ip": "10.0.0.1"}]}});
    let after = patch_status(s, Patch::Strategic, out).await?;
    assert!(
        after["status"]["podIPs"].as_array().is_none_or(Vec::is_empty),
        "{}",
        after["status"]
    );
    Ok(())
}

pub(super) async fn container_statuses_are_replaced_as_a_whole(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let entry = |name: &str| json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0});
    let two = json!({"status": {"containerStatuses": [entry("main"), entry("other")]}});
    patch_status(s, Patch::Strategic, two).await?;
    let one = json!({"status": {"containerStatuses": [entry("main")]}});
    let after = patch_status(s, Patch::Strategic, one).await?;
    assert_eq!(after["status"]["containerStatuses"].as_array().map(Vec::len), Some(1));
    Ok(())
}

pub(super) async fn exit_is_stored_as_sent(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let terminated = json!({
        "exitCode": 143, "reason": "Error", "containerID": "containerd://abc",
        "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:05Z",
    });
    let main = json!({
        "name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": terminated},
    });
    let patch = json!({"status": {"phase": "Failed", "containerStatuses": [main]}});
    let after = patch_status(s, Patch::Strategic, patch).await?;
    assert_eq!(
        after["status"]["containerStatuses"][0]["state"]["terminated"],
        terminated
    );
    Ok(())
}

pub(super) async fn the_phase_may_go_back(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    patch_status(s, Patch::Merge, json!({"status": {"phase": "Succeeded"}})).await?;
    let after = patch_status(s, Patch::Merge, json!({"status": {"phase": "Running"}})).await?;
    assert_eq!(after["status"]["phase"], "Running");
    Ok(())
}

pub(super) async fn a_status_for_another_uid_is_invalid(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    let patch = json!({"metadata": {"uid": "another"}, "status": {"phase": "Failed"}});
    let path = format!("{}/status", s.pod("a"));
    refuses(&s.admin.patch(&path, Patch::Strategic, &patch).await?, 422, "Invalid");
    Ok(())
}

pub(super) async fn a_status_for_its_own_uid_is_taken(s: &Scene<'_>) -> Result<()> {
    let pod = s.new_pod("a").await?;
    let patch = json!({"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"phase": "Failed"}});
    assert_eq!(
        patch_status(s, Patch::Strategic, patch).await?["status"]["phase"],
        "Failed"
    );
    Ok(())
}

pub(super) async fn status_of_a_deleted_pod_is_not_found(s: &Scene<'_>) -> Result<()> {
    let path = format!("{}/status", s.pod("a"));
    let answer = s
        .admin
        .patch(&path, Patch::Strategic, &json!({"status": {"phase": "Failed"}}))
        .await?;
    refuses(&answer, 404, "NotFound");
    assert_eq!(answer.body["details"], json!({"name": "a", "kind": "pods"}));
    Ok(())
}

/// A pod whose status says what was allocated for it.
async fn pod_with_claim_statuses(s: &Scene<'_>) -> Result<(Value, Value)> {
    let resources = json!({"requests": {"example.test/gpu": "1"}, "limits": {"example.test/gpu": "1"}});
    let spec = json!({
        "nodeName": s.node,
        "resourceClaims": [{"name": "claim", "resourceClaimTemplateName": "template"}],
        "containers": [{"name": "main", "image": "example.test/main", "resources": resources}],
    });
    let pod = json!({"metadata": {"name": "a"}, "spec": spec});
    s.admin.create(&s.pods(), &pod).await?.ok()?;
    let list = json!([{"name": "claim", "resourceClaimName": "a-claim"}]);
    let mapping = json!({"containerName": "main", "resourceName": "example.test/gpu", "requestName": "gpu"});
    let extended = json!({"resourceClaimName": "a-extended", "requestMappings": [mapping]});
    let status = json!({"resourceClaimStatuses": list, "extendedResourceClaimStatus": extended});
    let after = patch_status(s, Patch::Merge, json!({"status": status})).await?;
    assert_eq!(
        (
            &after["status"]["resourceClaimStatuses"],
            &after["status"]["extendedResourceClaimStatus"]
        ),
        (&list, &extended)
    );
    Ok((list, extended))
}

pub(super) async fn claim_statuses_stay_if_a_status_sets_them_to_null(s: &Scene<'_>) -> Result<()> {
    let (list, extended) = pod_with_claim_statuses(s).await?;
    let nothing = json!({"resourceClaimStatuses": null, "extendedResourceClaimStatus": null, "message": "new"});
    for kind in [Patch::Merge, Patch::Strategic] {
        let after = patch_status(s, kind, json!({"status": nothing})).await?;
        assert_eq!(after["status"]["message"], "new");
        assert_eq!(after["status"]["resourceClaimStatuses"], list, "{kind:?}");
        assert_eq!(after["status"]["extendedResourceClaimStatus"], extended, "{kind:?}");
    }
    Ok(())
}

pub(super) async fn an_empty_list_clears_claim_statuses(s: &Scene<'_>) -> Result<()> {
    pod_with_claim_statuses(s).await?;
    let empty = json!({"status": {"resourceClaimStatuses": []}});
    let after = patch_status(s, Patch::Merge, empty).await?;
    assert_eq!(after["status"]["resourceClaimStatuses"], Value::Null);
    Ok(())
}

pub(super) async fn a_node_changes_no_claim_statuses(s: &Scene<'_>) -> Result<()> {
    pod_with_claim_statuses(s).await?;
    let path = format!("{}/status", s.pod("a"));
    for field in ["resourceClaimStatuses", "extendedResourceClaimStatus"] {
        let patch = json!({"status": {field: null, "phase": "Failed"}});
        refuses(&s.as_node.patch(&path, Patch::Merge, &patch).await?, 403, "Forbidden");
    }
    let others = json!({"status": {"phase": "Failed"}});
    s.as_node.patch(&path, Patch::Strategic, &others).await?.ok()?;
    Ok(())
}

pub(super) async fn a_cleared_time_in_the_status_is_left_out(s: &Scene<'_>) -> Result<()> {
    s.new_pod("a").await?;
    patch_status(
        s,
        Patch::Merge,
        json!({"status": {"startTime": "2026-01-01T00:00:00.75Z"}}),
    )
    .await?;
    let after = patch_status(s, Patch::Merge, json!({"status": {"message": "changed"}})).await?;
    assert_eq!(
        after["status"]["startTime"], "2026-01-01T00:00:00Z",
        "whole seconds are kept"
    );
    let cleared = patch_status(s, Patch::Merge, json!({"status": {"startTime": null}})).await?;
    assert_eq!(cleared["status"]["startTime"], Value::Null);
    Ok(())
}
