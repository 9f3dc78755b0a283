//! A CSI driver: it really unmounts.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use nix::mount::{MntFlags, umount2};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::behavior::{Behavior, Called, Play, When};
use super::home::Home;
use super::wire::csi::v1::node_server::{Node, NodeServer};
use super::wire::csi::v1::node_service_capability::{Rpc, Type, rpc};
use super::wire::csi::v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeServiceCapability, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use crate::mounts;

/// What a CSI driver was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CsiCall {
    /// NodeUnpublishVolume.
    Unpublish {
        /// The volume.
        volume_id: String,
        /// Where a pod sees it.
        target_path: PathBuf,
    },
    /// NodeUnstageVolume.
    Unstage {
        /// The volume.
        volume_id: String,
        /// Where it is mounted for all pods.
        staging_target_path: PathBuf,
    },
    /// NodeGetCapabilities.
    Capabilities,
}

/// A CSI driver on a node. It lives until it is dropped, which leaves its sockets as a crash does.
#[derive(Debug)]
pub struct CsiDriver {
    name: String,
    home: Home,
    node: Driver,
}

#[derive(Debug, Clone)]
struct Driver {
    play: Arc<Play<CsiCall>>,
    stages: Arc<AtomicBool>,
}

// === impl CsiDriver ===

impl CsiDriver {
    /// Starts the driver of this name below a kubelet's root. It stages volumes.
    pub fn start(root: &Path, name: &str) -> Result<Self> {
        let node = Driver {
            play: Arc::new(Play::new()),
            stages: Arc::new(AtomicBool::new(true)),
        };
        let services = Routes::new(NodeServer::new(node.clone()));
        let registration = format!("{name}-reg.sock");
        Ok(Self {
            name: name.to_owned(),
            home: Home::open(
                root,
                "CSIPlugin",
                name,
                (&registration, "csi.sock"),
                &["1.0.0"],
                services,
            )?,
            node,
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The socket that takes its calls.
    pub fn endpoint(&self) -> &Path {
        self.home.endpoint()
    }

    /// The socket by which it registers.
    pub fn registration(&self) -> &Path {
        self.home.registration()
    }

    /// Whether it says that it stages volumes.
    pub fn stages(&self, stages: bool) {
        self.node.stages.store(stages, Ordering::Relaxed);
    }

    /// How it behaves from now on, to whatever call.
    pub fn behave(&self, behavior: Behavior) {
        self.node.play.behave(behavior);
    }

    /// How it behaves from now on to such calls, one kind of them or one volume.
    pub fn behave_if(&self, when: When<CsiCall>, behavior: Behavior) {
        self.node.play.behave_if(when, behavior);
    }

    /// How it behaves for the next `n` calls of whatever kind.
    pub fn behave_for(&self, n: usize, behavior: Behavior) {
        self.node.play.behave_for(n, behavior);
    }

    /// How it answers when it is asked who it is.
    pub fn introduces_itself(&self, behavior: Behavior) {
        self.home.introduces_itself(behavior);
    }

    /// Ends as in a crash: connections are cut, and the files of the sockets stay.
    pub async fn crash(&self) {
        self.home.crash().await;
    }

    /// Listens again after a crash.
    pub fn come_back(&self) -> Result<()> {
        self.home.come_back()
    }

    /// What it was asked so far, and when.
    pub fn called(&self) -> Vec<Called<CsiCall>> {
        self.node.play.calls()
    }

    /// What it was asked so far to do, without the questions what it can.
    pub fn effects(&self) -> Vec<CsiCall> {
        let calls = self.called().into_iter().map(|called| called.call);
        calls.filter(|call| *call != CsiCall::Capabilities).collect()
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        let target_path = asked(&volume_id, target_path)?;
        let call = CsiCall::Unpublish {
            volume_id,
            target_path: target_path.clone(),
        };
        if self.play.play(call).await? {
            unmount(&target_path)?;
            remove(&target_path)?;
        }
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let NodeUnstageVolumeRequest {
            volume_id,
            staging_target_path,
        } = request.into_inner();
        let staging_target_path = asked(&volume_id, staging_target_path)?;
        let call = CsiCall::Unstage {
            volume_id,
            staging_target_path: staging_target_path.clone(),
        };
        if self.play.play(call).await? {
            unmount(&staging_target_path)?;
        }
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        /// EXPAND_VOLUME: one that the agent has no name for.
        const EXPAND: i32 = 3;
        self.play.play(CsiCall::Capabilities).await?;
        let stages = self.stages.load(Ordering::Relaxed);
        let types = [EXPAND]
            .into_iter()
            .chain(stages.then_some(rpc::Type::StageUnstageVolume.into()));
        let capabilities = types.map(|r#type| NodeServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type })),
        });
        Ok(Response::new(NodeGetCapabilitiesResponse {
            capabilities: capabilities.collect(),
        }))
    }
}

/// What every driver checks first.
fn asked(volume_id: &str, path: String) -> Result<PathBuf, Status> {
    if volume_id.is_empty() || !path.starts_with('/') {
        return Err(Status::invalid_argument(format!("volume {volume_id:?} at {path:?}")));
    }
    Ok(path.into())
}

/// Unmounts what is mounted at and below a path, the last mount first; what is not mounted is no failure.
fn unmount(path: &Path) -> Result<(), Status> {
    let points = mounts::below(path).map_err(|error| Status::internal(format!("{error:#}")))?;
    for point in points.iter().rev() {
        umount2(point, MntFlags::empty())
            .map_err(|errno| Status::internal(format!("umount: {}: {errno}.", point.display())))?;
    }
    Ok(())
}

/// Removes the directory or file that was made to be mounted on.
fn remove(path: &Path) -> Result<(), Status> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Status::internal(format!("remove {}: {error}", path.display())))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
