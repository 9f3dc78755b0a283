//! A CSI driver: the calls that take a volume off the node.
//!
//! `NOT_FOUND` is an error here, other than everywhere else: a driver that no longer has what it is to take away must answer
//! with success, so `NOT_FOUND` says that it does not know the volume at all, and nothing of the mount. Only where the mount
//! table shows nothing of it either is the volume gone.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    call::Way,
    wire::csi::v1::{
        NodeGetCapabilitiesRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
        node_client::NodeClient,
        node_service_capability::{Type, rpc},
    },
};
use crate::node::{
    effects::{Effects, Outcome},
    grpc::{Call, GrpcError},
};

/// How long the kubelet waits for an answer.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// A CSI driver that takes calls on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Csi {
    driver: String,
    endpoint: PathBuf,
    deadline: Duration,
}

// === impl Csi ===

impl Csi {
    /// The driver of this name that listens there.
    pub fn new(driver: impl Into<String>, endpoint: impl Into<PathBuf>) -> Self {
        Self {
            driver: driver.into(),
            endpoint: endpoint.into(),
            deadline: DEADLINE,
        }
    }

    /// The same, with another time for each call.
    #[must_use]
    pub fn with_deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Its name.
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// Has a volume taken out of the place where one pod sees it. That the mount is gone is for the kernel to say.
    ///
    /// # Errors
    /// When the call fails, is held back, or is not answered.
    pub async fn unpublish(
        &self,
        volume_id: &str,
        target_path: &Path,
        effects: &Effects,
    ) -> Result<Outcome, GrpcError> {
        let (way, target_path) = self.way_to("NodeUnpublishVolume", volume_id, target_path)?;
        let request = NodeUnpublishVolumeRequest {
            volume_id: volume_id.to_owned(),
            target_path,
        };
        let answer = way.change(request, effects, async |channel, request| {
            NodeClient::new(channel).node_unpublish_volume(request).await
        });
        Ok(outcome(answer.await?.as_ref()))
    }

    /// Has a volume taken off the node, which no pod of the node uses any more. That the mount is gone is for the kernel to
    /// say.
    ///
    /// # Errors
    /// When the call fails, is held back, or is not answered.
    pub async fn unstage(
        &self,
        volume_id: &str,
        staging_target_path: &Path,
        effects: &Effects,
    ) -> Result<Outcome, GrpcError> {
        let (way, staging_target_path) = self.way_to("NodeUnstageVolume", volume_id, staging_target_path)?;
        let request = NodeUnstageVolumeRequest {
            volume_id: volume_id.to_owned(),
            staging_target_path,
        };
        let answer = way.change(request, effects, async |channel, request| {
            NodeClient::new(channel).node_unstage_volume(request).await
        });
        Ok(outcome(answer.await?.as_ref()))
    }

    /// Whether it stages volumes, so that they must be unstaged. Asked each time: a driver that was updated may have begun
    /// to.
    ///
    /// # Errors
    /// When the call fails or is not answered.
    pub async fn supports_staging(&self) -> Result<bool, GrpcError> {
        let way = self.way(Call::to_driver("NodeGetCapabilities", &self.driver, ""));
        let answer = way
            .look(NodeGetCapabilitiesRequest {}, async |channel, request| {
                NodeClient::new(channel).node_get_capabilities(request).await
            })
            .await?;
        let stages = i32::from(rpc::Type::StageUnstageVolume);
        let mut capabilities = answer.capabilities.into_iter();
        Ok(capabilities.any(|it| matches!(it.r#type, Some(Type::Rpc(rpc)) if rpc.r#type == stages)))
    }

    fn way_to(&self, name: &'static str, volume: &str, path: &Path) -> Result<(Way<'_>, String), GrpcError> {
        let call = Call::to_driver(name, &self.driver, path.to_string_lossy()).about(volume);
        match path.to_str() {
            Some(text) => Ok((self.way(call), text.to_owned())),
            None => Err(GrpcError::PathNotUtf8 { call }),
        }
    }

    fn way(&self, call: Call) -> Way<'_> {
        Way {
            call,
            socket: &self.endpoint,
            deadline: self.deadline,
        }
    }
}

fn outcome<T>(answer: Option<&T>) -> Outcome {
    match answer {
        Some(_) => Outcome::Done,
        None => Outcome::Withheld,
    }
}
