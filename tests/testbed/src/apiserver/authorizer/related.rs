//! Which volumes and device claims the pods of a node use.

use serde_json::Value;

use crate::apiserver::kinds;
use crate::apiserver::object;
use crate::apiserver::route::Target;
use crate::apiserver::store::Store;

/// Whether a pod bound to `node` uses this PersistentVolume or ResourceClaim.
pub fn is_used(store: &Store, node: &str, target: &Target) -> bool {
    let Some(pods) = kinds::find("", "v1", "pods") else {
        return false;
    };
    let pods = store.table(pods).range(&target.prefix(), "").map(|pod| pod.value());
    let mut pods = pods.filter(|pod| object::node_name(pod) == node);
    if target.kind.resource == "persistentvolumes" {
        pods.any(|pod| claims_volume(store, &pod, &target.name))
    } else {
        pods.any(|pod| claims_devices(&pod, &target.name))
    }
}

/// By its spec, or by a claim that was made for it.
fn claims_devices(pod: &Value, claim: &str) -> bool {
    let lists = [&pod["spec"]["resourceClaims"], &pod["status"]["resourceClaimStatuses"]];
    let listed = lists.iter().filter_map(|list| list.as_array()).flatten();
    let extended = &pod["status"]["extendedResourceClaimStatus"];
    listed.chain([extended]).any(|it| it["resourceClaimName"] == claim)
}

fn claims_volume(store: &Store, pod: &Value, volume: &str) -> bool {
    let Some(claims) = kinds::find("", "v1", "persistentvolumeclaims") else {
        return false;
    };
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.into_iter().any(|it| {
        let claim = object::text(it, "/persistentVolumeClaim/claimName");
        let claim = store.get(claims, &claims.key(object::namespace(pod), claim));
        claim.is_some_and(|claim| claim.value()["spec"]["volumeName"] == volume)
    })
}
