//! A private containerd: its own root, state, socket, bridge, subnet and images, all in one [`Workspace`].
//!
//! `binary → config → network → daemon → images`. Several can run in parallel. The daemon may crash and restart; its
//! shims, and so its pods, keep running. Dropping the value removes its pods.

pub mod binary;
pub mod config;
mod daemon;
pub mod images;
pub mod network;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use k8s_cri::v1::image_service_client::ImageServiceClient;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::cgroups::Driver;
use crate::control_plane::process::Process;
use crate::workspace::Workspace;
use binary::Binary;
use network::Network;

pub use images::{PAUSE_IMAGE, POLITE, TOOL_IMAGE, USR1_IMAGE};

/// As the kubelet: a list of all containers of a full node is larger than the usual 4 MiB.
const MAX_MESSAGE: usize = 16 << 20;

pub type Cri = RuntimeServiceClient<Channel>;

/// See the module's documentation.
#[derive(Debug)]
pub struct Containerd {
    // Dropped in this order: the daemon exits before the workspace is removed.
    daemon: Option<Process>,
    binary: Binary,
    network: Network,
    paths: Paths,
    workspace: Workspace,
}

/// Paths of one instance.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Images, snapshots, metadata.
    pub root: PathBuf,
    /// Bundles, mounts, network namespaces of what runs.
    pub state: PathBuf,
    /// State of runc.
    pub runc: PathBuf,
    /// Link to the machine's runc.
    pub runc_program: PathBuf,
    /// gRPC socket, also of the CRI.
    pub socket: PathBuf,
    /// The daemon's configuration.
    pub config: PathBuf,
    /// CNI configuration directory.
    pub cni: PathBuf,
    /// Links to the CNI plugins of the machine.
    pub plugins: PathBuf,
    /// Addresses allocated by host-local.
    pub ipam: PathBuf,
    /// Log of the daemon.
    pub log: PathBuf,
}

impl Containerd {
    /// Starts an instance with both images; ready when this returns.
    pub async fn start() -> Result<Self> {
        let binary = Binary::find().await?;
        let workspace = Workspace::claim()?;
        let paths = Paths::below(&workspace.dir().join("containerd"));
        fs::create_dir_all(&paths.cni).with_context(|| format!("create {}", paths.cni.display()))?;
        let network = Network::create(workspace.id()).await?;
        fs::create_dir_all(&paths.plugins).with_context(|| format!("create {}", paths.plugins.display()))?;
        binary::link_cni_plugins(&paths.plugins)?;
        binary::link_runc(&paths.runc_program)?;
        write(&paths.config, &config::daemon(&paths, &binary, Driver::from_env()?))?;
        write(&paths.network(), &config::network(&network, &paths).to_string())?;
        let daemon = daemon::spawn(&binary, &paths, &[])?;
        let mut containerd = Self {
            daemon: Some(daemon),
            binary,
            network,
            paths,
            workspace,
        };
        containerd.wait_until_ready().await?;
        images::import(&containerd.binary, &containerd.paths, containerd.image_service()).await?;
        Ok(containerd)
    }

    pub fn socket(&self) -> &Path {
        &self.paths.socket
    }

    /// The socket as a flag of the agent.
    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.paths.socket.display())
    }

    /// A new client; connects at its first call, and reconnects after a restart. It belongs to the calling async runtime.
    pub fn cri(&self) -> Cri {
        RuntimeServiceClient::new(connect(&self.paths.socket)).max_decoding_message_size(MAX_MESSAGE)
    }

    pub fn image_service(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(connect(&self.paths.socket))
    }

    /// The machine's address as seen by its pods.
    pub fn host_ip(&self) -> String {
        self.network.host_ip().to_string()
    }

    /// Such as `1.6.20`.
    pub fn version(&self) -> &str {
        &self.binary.version
    }

    /// PID of the daemon, unless it was killed.
    pub fn pid(&self) -> Option<u32> {
        self.daemon.as_ref().map(Process::id)
    }

    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }

    pub fn paths(&self) -> &Paths {
        &self.paths
    }

    /// Removes the network plugins, as a failed upgrade would, or restores them.
    pub fn set_plugins_away(&self, away: bool) -> Result<()> {
        move_away(&self.paths.plugins, away)
    }

    /// Replaces the OCI runtime's program by a shell script, which may call the machine's runc.
    pub fn replace_runc(&self, script: &str) -> Result<()> {
        let path = &self.paths.runc_program;
        fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
        write(path, script)?;
        fs::set_permissions(path, Permissions::from_mode(0o755)).with_context(|| format!("chmod {}", path.display()))
    }

    /// Removes the OCI runtime's program, as a failed upgrade would, or restores it.
    pub fn set_runc_away(&self, away: bool) -> Result<()> {
        move_away(&self.paths.runc_program, away)
    }

    /// Removes the network's configuration, or restores it.
    pub fn set_network_away(&self, away: bool) -> Result<()> {
        move_away(&self.paths.network(), away)
    }

    pub fn shim(&self, sandbox_id: &str) -> Result<u32> {
        let is_shim = |pid: &u32| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = command.split(|byte| *byte == 0).collect();
            words
                .first()
                .is_some_and(|name| name.ends_with(b"containerd-shim-runc-v2"))
                && words.contains(&sandbox_id.as_bytes())
        };
        let processes = fs::read_dir("/proc").context("list /proc")?;
        let mut pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.find(is_shim)
            .with_context(|| format!("sandbox {sandbox_id} has no shim"))
    }

    /// Kills the daemon with SIGKILL. Its shims and pods stay.
    pub fn kill(&mut self) {
        self.daemon = None;
    }

    /// Kills the daemon, if it runs, and starts it again on the same root and state; ready when this returns.
    pub async fn restart(&mut self) -> Result<()> {
        self.restart_with(&[]).await
    }

    /// As [`Self::restart`], with these environment variables.
    pub async fn restart_with(&mut self, env: &[(&str, &str)]) -> Result<()> {
        self.kill();
        self.daemon = Some(daemon::spawn(&self.binary, &self.paths, env)?);
        self.wait_until_ready().await
    }

    /// Stops it and everything that it ran, and returns what could not be removed. Dropping it does the same.
    pub async fn stop(mut self) -> Result<()> {
        self.kill();
        self.workspace.release().await
    }

    async fn wait_until_ready(&mut self) -> Result<()> {
        let cri = self.cri();
        match &mut self.daemon {
            Some(daemon) => daemon::wait_until_ready(daemon, cri).await,
            None => Ok(()),
        }
    }
}

impl Paths {
    fn below(dir: &Path) -> Self {
        Self {
            root: dir.join("root"),
            state: dir.join("state"),
            runc: dir.join("runc"),
            runc_program: dir.join("runc-program"),
            socket: dir.join("containerd.sock"),
            config: dir.join("config.toml"),
            cni: dir.join("cni"),
            plugins: dir.join("cni-bin"),
            ipam: dir.join("ipam"),
            log: dir.join("log"),
        }
    }

    /// The network's configuration.
    fn network(&self) -> PathBuf {
        self.cni.join("10-bridge.conflist")
    }
}

fn move_away(path: &Path, away: bool) -> Result<()> {
    let elsewhere = path.with_extension("away");
    let (from, to) = if away { (path, &*elsewhere) } else { (&*elsewhere, path) };
    fs::rename(from, to).with_context(|| format!("rename {} to {}", from.display(), to.display()))
}

/// A channel to a unix socket that connects when it is first used.
fn connect(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    // The address is ignored: the connector has the path.
    let endpoint = Endpoint::from_static("http://runtime.invalid");
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    }))
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
