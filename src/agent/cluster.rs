//! The API server of this node's cluster, as teardown needs it: pods, and volumes. The attach/detach controller detaches a volume once
//! the Node's `volumesInUse` no longer lists it.

use futures::future::{BoxFuture, FutureExt as _};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{
    api::{ApiClient, ApiError},
    handover::{
        cluster::{self, read_node},
        guard::Guard,
    },
    model::{
        failure::Reasoned as _,
        pod::{PodObject, PodRef, PodView},
    },
    node::plugins::ClaimRef,
    teardown::boundary::{ApiFailure, PodApi},
};

/// Maximum attempts to change a list that others change at the same time.
const MAX_ATTEMPTS: usize = 5;

/// The API server of this node's cluster.
pub struct NodeCluster {
    /// Sends the requests.
    pub api: ApiClient,
    /// Checks the identity of the Node, and decides what an absence proves.
    pub guard: Guard,
    /// Serializes changes of the list of volumes: concurrent ones would fail and use up attempts.
    pub update_lock: Mutex<()>,
}

// === impl NodeCluster ===

impl PodApi for NodeCluster {
    fn pod<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Option<PodObject>, ApiFailure>> {
        async { Ok(self.api.pod(pod).await?) }.boxed()
    }

    fn each_pod<'a>(&'a self, each: &'a mut (dyn FnMut(PodView) + Send)) -> BoxFuture<'a, Result<(), ApiFailure>> {
        async { Ok(self.api.each_pod_view(each).await?) }.boxed()
    }

    fn reserved_for<'a>(&'a self, claim: &'a ClaimRef) -> BoxFuture<'a, Result<Vec<String>, ApiFailure>> {
        async {
            let (uid, pods) = self.api.reserved_for(&claim.namespace, &claim.name).await?;
            // A claim of this name with another UID proves nothing about the prepared one.
            Ok(if uid == claim.uid { pods } else { Vec::new() })
        }
        .boxed()
    }

    fn patch_status<'a>(&'a self, pod: &'a PodRef, patch: &'a Value) -> BoxFuture<'a, Result<(), ApiFailure>> {
        async { Ok(self.api.patch_pod_status(pod, patch).await?) }.boxed()
    }

    fn delete<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<Vec<String>, ApiFailure>> {
        async { Ok(self.api.delete_pod(pod).await?) }.boxed()
    }

    fn is_deleted<'a>(&'a self, pod: &'a PodRef) -> BoxFuture<'a, Result<bool, ApiFailure>> {
        async { Ok(cluster::is_deleted(&self.guard, &self.api, pod).await?) }.boxed()
    }

    fn persistent_volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<(String, String)>, ApiFailure>> {
        async move {
            match self.api.persistent_volume(name).await {
                Ok(volume) => {
                    let csi = volume.spec.and_then(|spec| spec.csi);
                    Ok(csi.map(|csi| (csi.driver, csi.volume_handle)))
                }
                // It is deleted, or no pod of this node refers to it any more: then the node may not read it.
                Err(error) if matches!(error.code(), Some(403 | 404)) => {
                    tracing::debug!(volume = name, %error, "PersistentVolume cannot be read");
                    Ok(None)
                }
                Err(error) => Err(error.into()),
            }
        }
        .boxed()
    }

    fn volumes_in_use(&self) -> BoxFuture<'_, Result<Vec<String>, ApiFailure>> {
        async { Ok(in_use(&read_node(&self.guard, &self.api).await?).to_vec()) }.boxed()
    }

    fn remove_volume_in_use<'a>(&'a self, volume: &'a str) -> BoxFuture<'a, Result<(), ApiFailure>> {
        async { Ok(self.patch_in_use(volume).await?) }.boxed()
    }
}

impl NodeCluster {
    async fn patch_in_use(&self, volume: &str) -> Result<(), ApiError> {
        let _guard = self.update_lock.lock().await;
        let mut attempt = 1;
        loop {
            let node = read_node(&self.guard, &self.api).await?;
            let Some(patch) = patch(&node, volume) else {
                return Ok(());
            };
            match self.api.patch_node_status(&patch).await {
                Ok(()) => {
                    tracing::info!(volume, "Volume is no longer in use on this node: it may be detached");
                    return Ok(());
                }
                // The list has changed meanwhile.
                Err(error) if error.code() == Some(422) && attempt < MAX_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

fn in_use(node: &Node) -> &[String] {
    let in_use = node.status.as_ref().and_then(|status| status.volumes_in_use.as_deref());
    in_use.unwrap_or_default()
}

/// A JSON patch that removes the volume, with the Node's UID and the present list as preconditions; `None` if it is not listed.
fn patch(node: &Node, volume: &str) -> Option<Value> {
    const PATH: &str = "/status/volumesInUse";
    let before = in_use(node);
    if !before.iter().any(|name| name == volume) {
        return None;
    }
    let after: Vec<_> = before.iter().filter(|name| *name != volume).collect();
    Some(json!([
        { "op": "test", "path": "/metadata/uid", "value": node.metadata.uid },
        { "op": "test", "path": PATH, "value": before },
        { "op": "replace", "path": PATH, "value": after },
    ]))
}

// === impl ApiFailure ===

impl From<ApiError> for ApiFailure {
    fn from(error: ApiError) -> Self {
        Self {
            code: error.code(),
            cause: error.to_string(),
            reason: error.reason(),
            retry_after: error.retry_after(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_removes_only_this_volume_and_has_preconditions() {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "uid": "n1" },
            "status": { "volumesInUse": ["kubernetes.io/csi/d^a", "kubernetes.io/csi/d^b"] },
        }))
        .unwrap();
        let patch = patch(&node, "kubernetes.io/csi/d^a").unwrap();
        assert_eq!(patch[0]["value"], "n1");
        assert_eq!(
            patch[1]["value"],
            json!(["kubernetes.io/csi/d^a", "kubernetes.io/csi/d^b"])
        );
        assert_eq!(patch[2]["value"], json!(["kubernetes.io/csi/d^b"]));
        assert_eq!(super::patch(&node, "kubernetes.io/csi/d^c"), None);
        assert_eq!(super::patch(&Node::default(), "kubernetes.io/csi/d^c"), None);
    }
}
