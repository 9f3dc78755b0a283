//! Which secrets, maps and claims the pods of a node use.

use serde_json::Value;

use crate::apiserver::kinds;
use crate::apiserver::object;
use crate::apiserver::store::Store;

/// Whether a pod bound to `node` in `namespace` names this object.
#[must_use]
pub fn is_used(store: &Store, node: &str, resource: &str, namespace: &str, name: &str) -> bool {
    let Some(pods) = kinds::find("", "v1", "pods") else {
        return false;
    };
    let prefix = if namespace.is_empty() {
        String::new()
    } else {
        format!("{namespace}/")
    };
    let mut pods = store
        .table(pods)
        .range(&prefix, "")
        .map(|pod| pod.value())
        .filter(|pod| object::node_name(pod) == node);
    if resource == "persistentvolumes" {
        return pods.any(|pod| claims_volume(store, &pod, name));
    }
    if resource == "resourceclaims" {
        return pods.any(|pod| claims_devices(&pod, name));
    }
    pods.any(|pod| names(&pod["spec"], resource, name))
}

/// By its spec, or by a claim that was made for it.
fn claims_devices(pod: &Value, claim: &str) -> bool {
    let lists = [&pod["spec"]["resourceClaims"], &pod["status"]["resourceClaimStatuses"]];
    let listed = lists.iter().filter_map(|list| list.as_array()).flatten();
    let extended = &pod["status"]["extendedResourceClaimStatus"];
    listed.chain([extended]).any(|it| it["resourceClaimName"] == claim)
}

fn names(part: &Value, resource: &str, name: &str) -> bool {
    match part {
        Value::Array(list) => list.iter().any(|part| names(part, resource, name)),
        Value::Object(map) => map.iter().any(|(field, value)| {
            let named = match (resource, field.as_str()) {
                ("secrets", "secret") => value["secretName"] == name || value["name"] == name,
                ("secrets", "secretRef" | "secretKeyRef" | "nodePublishSecretRef") => value["name"] == name,
                ("secrets", "imagePullSecrets") => value
                    .as_array()
                    .is_some_and(|list| list.iter().any(|secret| secret["name"] == name)),
                ("configmaps", "configMap" | "configMapRef" | "configMapKeyRef") => value["name"] == name,
                ("persistentvolumeclaims", "persistentVolumeClaim") => value["claimName"] == name,
                _ => false,
            };
            named || names(value, resource, name)
        }),
        _ => false,
    }
}

fn claims_volume(store: &Store, pod: &Value, volume: &str) -> bool {
    let Some(claims) = kinds::find("", "v1", "persistentvolumeclaims") else {
        return false;
    };
    let prefix = format!("{}/", object::namespace(pod));
    store.table(claims).range(&prefix, "").any(|claim| {
        let claim = claim.value();
        claim["spec"]["volumeName"] == volume && names(&pod["spec"], "persistentvolumeclaims", object::name(&claim))
    })
}
