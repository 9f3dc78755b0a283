//! Calls of a CSI driver that unpublish and unstage volumes.
//!
//! `NOT_FOUND` is an error here: a driver must report success if nothing is published any more. `NOT_FOUND` means that
//! the driver does not know the volume, which proves nothing about the mount. The volume counts as removed only if the
//! mount table does not show it either.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    call::CallRequest,
    wire::csi::v1::{
        NodeGetCapabilitiesRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
        node_client::NodeClient,
        node_service_capability::{Type, rpc},
    },
};
use crate::node::{
    effects::Effects,
    grpc::{Call, CallFailure, GrpcError},
};

/// The kubelet's timeout.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// A CSI driver on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Csi {
    driver: String,
    endpoint: PathBuf,
}

// === impl Csi ===

impl Csi {
    /// The driver with this name and socket.
    pub fn new(driver: impl Into<String>, endpoint: impl Into<PathBuf>) -> Self {
        Self {
            driver: driver.into(),
            endpoint: endpoint.into(),
        }
    }

    /// Calls `NodeUnpublishVolume` for one pod's volume. The caller checks the mount table.
    ///
    /// # Errors
    /// When the call fails, is blocked, or is not answered.
    pub async fn unpublish(&self, volume_id: &str, target_path: &Path, effects: &Effects) -> Result<(), GrpcError> {
        let (call, target_path) = self.volume_request("NodeUnpublishVolume", volume_id, target_path)?;
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            target_path,
        };
        let answer = call.send(Some(effects), async |channel| {
            NodeClient::new(channel).node_unpublish_volume(request).await
        });
        answer.await.map(drop)
    }

    /// Calls `NodeUnstageVolume` for a volume that no pod of the node uses. The caller checks the mount table.
    ///
    /// # Errors
    /// When the call fails, is blocked, or is not answered.
    pub async fn unstage(
        &self,
        volume_id: &str,
        staging_target_path: &Path,
        effects: &Effects,
    ) -> Result<(), GrpcError> {
        let (call, staging_target_path) = self.volume_request("NodeUnstageVolume", volume_id, staging_target_path)?;
        let request = NodeUnstageVolumeRequest {
            volume_id: volume_id.to_owned(),
            staging_target_path,
        };
        let answer = call.send(Some(effects), async |channel| {
            NodeClient::new(channel).node_unstage_volume(request).await
        });
        answer.await.map(drop)
    }

    /// Whether the driver stages volumes, so that they must be unstaged. Called each time: an update of the driver may
    /// change it.
    ///
    /// # Errors
    /// When the call fails or is not answered.
    pub async fn supports_staging(&self) -> Result<bool, GrpcError> {
        let call = self.request(Call::to_driver("NodeGetCapabilities", &self.driver, ""));
        let answer = call
            .send(None, async |channel| {
                let request = NodeGetCapabilitiesRequest {};
                NodeClient::new(channel).node_get_capabilities(request).await
            })
            .await?;
        let stages = i32::from(rpc::Type::StageUnstageVolume);
        let mut capabilities = answer.capabilities.into_iter();
        Ok(capabilities.any(|it| matches!(it.r#type, Some(Type::Rpc(rpc)) if rpc.r#type == stages)))
    }

    fn volume_request(
        &self,
        name: &'static str,
        volume: &str,
        path: &Path,
    ) -> Result<(CallRequest<'_>, String), GrpcError> {
        let call = Call::to_driver(name, &self.driver, path.to_string_lossy()).for_volume(volume);
        match path.to_str() {
            Some(text) => Ok((self.request(call), text.to_owned())),
            None => Err(call.failed(CallFailure::PathNotUtf8)),
        }
    }

    fn request(&self, call: Call) -> CallRequest<'_> {
        CallRequest {
            call,
            socket: &self.endpoint,
            deadline: DEADLINE,
        }
    }
}
