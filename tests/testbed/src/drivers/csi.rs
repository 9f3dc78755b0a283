//! A CSI driver that really unmounts.

use std::fs;
use std::io::ErrorKind;
use std::ops::Deref;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, chroot};
use tokio::time::sleep;
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

/// A call to the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CsiCall {
    /// NodeUnpublishVolume.
    Unpublish {
        volume_id: String,
        /// The pod's mount point.
        target_path: PathBuf,
    },
    /// NodeUnstageVolume.
    Unstage {
        volume_id: String,
        /// The staging mount point.
        staging_target_path: PathBuf,
    },
    /// NodeGetCapabilities.
    Capabilities,
}

/// A CSI driver on a node. Dropping it leaves its sockets, as a crash does.
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
    container: Arc<OnceLock<Container>>,
}

/// A container whose only directory is `path`, which is the node's directory `source`. Mounts propagate.
#[derive(Debug, Clone)]
struct Container {
    path: PathBuf,
    source: PathBuf,
}

impl CsiDriver {
    /// Starts the driver with this name below a kubelet's root. It stages volumes.
    pub fn start(root: &Path, name: &str) -> Result<Self> {
        let node = Driver {
            play: Arc::new(Play::new()),
            stages: Arc::new(AtomicBool::new(true)),
            container: Arc::default(),
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

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets whether it reports to stage volumes.
    pub fn stages(&self, stages: bool) {
        self.node.stages.store(stages, Ordering::Relaxed);
    }

    /// From now on it runs in a container whose only directory is `path`, which is the node's directory `source`.
    pub fn contain(&self, path: &Path, source: &Path) {
        let (path, source) = (path.to_owned(), source.to_owned());
        self.node.container.set(Container { path, source }).ok();
    }

    /// Sets its behavior for all calls.
    pub fn behave(&self, behavior: Behavior) {
        self.node.play.behave(behavior);
    }

    /// Sets its behavior for selected calls.
    pub fn behave_if(&self, when: When<CsiCall>, behavior: Behavior) {
        self.node.play.behave_if(when, behavior);
    }

    /// Sets its behavior for the next `n` calls.
    pub fn behave_for(&self, n: usize, behavior: Behavior) {
        self.node.play.behave_for(n, behavior);
    }

    /// Recorded calls with their times.
    pub fn called(&self) -> Vec<Called<CsiCall>> {
        self.node.play.calls()
    }

    /// Recorded calls, without capability requests.
    pub fn effects(&self) -> Vec<CsiCall> {
        let calls = self.called().into_iter().map(|called| called.call);
        calls.filter(|call| *call != CsiCall::Capabilities).collect()
    }
}

/// Its sockets.
impl Deref for CsiDriver {
    type Target = Home;

    fn deref(&self) -> &Home {
        &self.home
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
            self.unmount(&target_path).await?;
            self.run(|| remove(&target_path))?;
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
            self.unmount(&staging_target_path).await?;
        }
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        /// EXPAND_VOLUME: unknown to the agent.
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

/// Checks that every driver makes.
fn asked(volume_id: &str, path: String) -> Result<PathBuf, Status> {
    if volume_id.is_empty() || !path.starts_with('/') {
        return Err(Status::invalid_argument(format!("volume {volume_id:?} at {path:?}")));
    }
    Ok(path.into())
}

impl Driver {
    /// Unmounts what is mounted at and below a path, the last mount first; what is not mounted is no failure.
    async fn unmount(&self, path: &Path) -> Result<(), Status> {
        let failed = |error| Status::internal(format!("{error:#}"));
        let points = self.run(|| mounts::below(path)).map_err(failed)?;
        for point in points.iter().rev() {
            let umount = || self.run(|| umount2(point, MntFlags::empty()));
            let mut done = umount();
            // A child that another thread has forked has copies of its file descriptors until exec. Real users stay longer than this.
            for _ in 0..100 {
                if done != Err(Errno::EBUSY) {
                    break;
                }
                sleep(Duration::from_millis(20)).await;
                done = umount();
            }
            done.map_err(|errno| Status::internal(format!("umount: {}: {errno}.", point.display())))?;
        }
        Ok(())
    }

    /// Runs work in the driver's container, if it has one.
    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let Some(container) = self.container.get() else {
            return work();
        };
        let inside = || {
            container.enter().expect("root may enter a container");
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| resume_unwind(panic))
    }
}

impl Container {
    /// Moves this thread into a mount namespace of its own.
    fn enter(&self) -> Result<()> {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
        let root = Path::new("/mnt");
        mount(None::<&str>, root, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
        for (source, path) in [(&*self.source, &*self.path), (Path::new("/proc"), Path::new("/proc"))] {
            let inside = root.join(path.strip_prefix("/")?);
            fs::create_dir_all(&inside)?;
            mount(
                Some(source),
                &inside,
                None::<&str>,
                MsFlags::MS_BIND | MsFlags::MS_REC,
                None::<&str>,
            )?;
        }
        chroot(root)?;
        chdir("/")?;
        Ok(())
    }
}

/// Removes the directory or file that was the mount point.
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
