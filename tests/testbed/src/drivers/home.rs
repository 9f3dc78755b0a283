//! Sockets of a driver: its registration socket and its own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::behavior::{Behavior, Play};
use super::wire::pluginregistration::registration_server::{Registration, RegistrationServer};
use super::wire::pluginregistration::{InfoRequest, PluginInfo};
use crate::grpc_socket::{Manner, Socket};

/// The two sockets of a driver and their servers.
#[derive(Debug)]
pub struct Home {
    introduction: Introduction,
    registration: PathBuf,
    endpoint: PathBuf,
    services: Routes,
    sockets: Mutex<Vec<Socket>>,
}

/// A driver's registration answer.
#[derive(Debug, Clone)]
struct Introduction {
    info: PluginInfo,
    play: Arc<Play<()>>,
}

impl Home {
    /// Listens below a kubelet's root as most drivers do: `plugins_registry/REGISTRATION` and `plugins/DRIVER/ENDPOINT`.
    pub(super) fn open(
        root: &Path,
        kind: &str,
        driver: &str,
        (registration, endpoint): (&str, &str),
        versions: &[&str],
        services: Routes,
    ) -> Result<Self> {
        let registry = root.join("plugins_registry");
        let own = root.join("plugins").join(driver);
        for dir in [&registry, &own] {
            fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        }
        let endpoint = own.join(endpoint);
        let home = Self {
            introduction: Introduction {
                info: PluginInfo {
                    r#type: kind.to_owned(),
                    name: driver.to_owned(),
                    endpoint: endpoint.display().to_string(),
                    supported_versions: versions.iter().map(ToString::to_string).collect(),
                },
                play: Arc::new(Play::new()),
            },
            registration: registry.join(registration),
            endpoint,
            services,
            sockets: Mutex::new(Vec::new()),
        };
        home.come_back()?;
        Ok(home)
    }

    pub fn registration(&self) -> &Path {
        &self.registration
    }

    /// Path of the socket for its calls.
    pub fn endpoint(&self) -> &Path {
        &self.endpoint
    }

    /// Sets its behavior for registration calls.
    pub fn introduces_itself(&self, behavior: Behavior) {
        self.introduction.play.behave(behavior);
    }

    /// Listens again after a crash, on new sockets at the same paths.
    pub fn come_back(&self) -> Result<()> {
        let registration = Routes::new(RegistrationServer::new(self.introduction.clone()));
        let listen = |path: &Path, services: Routes| {
            Socket::open(path, Manner::Serve, services).with_context(|| format!("listen at {}", path.display()))
        };
        *self.sockets() = vec![
            listen(&self.endpoint, self.services.clone())?,
            listen(&self.registration, registration)?,
        ];
        Ok(())
    }

    /// Crashes: connections are closed, and the socket files stay.
    pub async fn crash(&self) {
        let sockets = std::mem::take(&mut *self.sockets());
        for socket in sockets {
            socket.close().await;
        }
    }

    fn sockets(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl Registration for Introduction {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.play.play(()).await?;
        Ok(Response::new(self.info.clone()))
    }
}
