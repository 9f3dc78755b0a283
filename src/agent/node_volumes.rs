//! What the API server knows of this node's volumes, and when one may be detached: `volumesInUse` of the Node, which a
//! controller waits for.

use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt as _};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::{
    api::{ApiClient, ApiError},
    handover::guard::Guard,
    teardown::volumes::storage::Cluster,
};

/// How often the Node may change between a look and a write.
const TRIES: usize = 5;

/// The API server's side of volumes.
#[derive(Clone)]
pub struct NodeVolumes {
    /// Who is asked.
    pub api: ApiClient,
    /// Knows which Node this one is.
    pub guard: Guard,
    /// One change of the list at a time: many pods end at once, and each that overtakes another costs that a try.
    pub turn: Arc<Mutex<()>>,
}

// === impl NodeVolumes ===

impl Cluster for NodeVolumes {
    fn persistent_volume(&self, name: String) -> BoxFuture<'static, Result<Option<(String, String)>, String>> {
        let api = self.api.clone();
        async move {
            match api.persistent_volume(&name).await {
                Ok(volume) => {
                    let csi = volume.spec.and_then(|spec| spec.csi);
                    Ok(csi.map(|csi| (csi.driver, csi.volume_handle)))
                }
                // Gone, or one that no pod of this node refers to any more: such a node may not read it.
                Err(error) if matches!(error.code(), Some(403 | 404)) => {
                    tracing::debug!(volume = name, %error, "PersistentVolume cannot be read");
                    Ok(None)
                }
                Err(error) => Err(error.to_string()),
            }
        }
        .boxed()
    }

    fn in_use(&self) -> BoxFuture<'static, Result<Vec<String>, String>> {
        let Self { api, guard, .. } = self.clone();
        async move {
            let node = guard.node(&api).await.map_err(|error| error.to_string())?;
            Ok(in_use(&node).to_vec())
        }
        .boxed()
    }

    fn out_of_use(&self, volume: String) -> BoxFuture<'static, Result<(), String>> {
        let node = self.clone();
        async move { out_of_use(&node, &volume).await.map_err(|error| error.to_string()) }.boxed()
    }
}

async fn out_of_use(NodeVolumes { api, guard, turn }: &NodeVolumes, volume: &str) -> Result<(), ApiError> {
    let _turn = turn.lock().await;
    for last in [false; TRIES - 1].into_iter().chain([true]) {
        // Another Node of this name has a list of its own.
        let node = guard.node(api).await?;
        let Some(patch) = patch(&node, volume) else {
            return Ok(());
        };
        match api.patch_node_status(&patch).await {
            Ok(sent) => {
                if sent {
                    tracing::info!(volume, "Volume is no longer in use on this node: it may be detached");
                }
                return Ok(());
            }
            // Somebody has changed the list meanwhile.
            Err(error) if error.code() == Some(422) && !last => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn in_use(node: &Node) -> &[String] {
    let status = node.status.as_ref();
    status
        .and_then(|status| status.volumes_in_use.as_deref())
        .unwrap_or_default()
}

/// The list without this volume, for the Node and the list that were seen; the list has no keys to merge by.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_volume_is_taken_out_and_only_of_the_list_that_was_seen() {
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
