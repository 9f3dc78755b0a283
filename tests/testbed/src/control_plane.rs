//! A real control plane: etcd and kube-apiserver as plain processes, with the Node authorizer and NodeRestriction on.
//!
//! `binaries → credentials → etcd → kube-apiserver → /readyz`. Everything is in one directory, which is removed with it.
//! Controllers are started separately by [`ControllerManager`].

mod accounts;
pub(crate) mod binaries;
mod controller_manager;
mod credentials;
mod directory;
mod leader;
pub(crate) mod process;

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use futures::future::BoxFuture;
use serde_json::json;

use self::{binaries::Binaries, credentials::Credentials, directory::Directory, process::Process};
pub use self::{
    controller_manager::{ControllerManager, Settings},
    leader::Leader,
};
use crate::{
    api::{ADMIN, Access, ApiServer, kubeconfig_of, node_user},
    rest::Client,
};

/// Limit of a start: about 4 s on an idle machine, several times that on a busy one.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// A free port may be taken before it is used: then others are tried.
const ATTEMPTS: usize = 3;
/// The server creates it after it is ready.
const SYSTEM_NAMESPACES: [&str; 3] = ["default", "kube-node-lease", "kube-system"];

const AUDIT_POLICY: &str = "audit-policy.yaml";
const AUDIT_LOG: &str = "audit.log";

/// A running control plane. It is stopped when this is dropped, or when the process that started it is killed.
#[derive(Debug)]
pub struct ControlPlane {
    url: String,
    etcd_url: String,
    credentials: Credentials,
    admin: Client,
    // Fields are dropped in this order: the server, then its store, then their directory.
    _apiserver: Process,
    _etcd: Process,
    directory: Directory,
}

impl ControlPlane {
    /// The names of the nodes that have an identity here; all others are answered with 401.
    pub fn nodes() -> impl Iterator<Item = String> {
        credentials::nodes()
    }

    /// Starts a control plane and returns once it serves.
    ///
    /// The first start on a machine may build it, which takes minutes and is logged.
    pub async fn start() -> Result<Self> {
        let binaries = Binaries::find().await?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            match Self::start_on_free_ports(&binaries).await {
                Ok(control_plane) => return Ok(control_plane),
                Err(e) if format!("{e:#}").contains("address already in use") => last = Some(e),
                Err(e) => return Err(e),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    async fn start_on_free_ports(binaries: &Binaries) -> Result<Self> {
        let [client_port, peer_port, port] = free_ports()?;
        let etcd_url = format!("http://127.0.0.1:{client_port}");
        let peer_url = format!("http://127.0.0.1:{peer_port}");
        let url = format!("https://127.0.0.1:{port}");
        let directory = Directory::new()?;
        let credentials = Credentials::new(directory.path())?;

        let mut etcd = start(
            &binaries.etcd,
            &directory.path().join("etcd.log"),
            &[
                "--name=testbed".to_owned(),
                format!("--data-dir={}", directory.path().join("etcd").display()),
                format!("--listen-client-urls={etcd_url}"),
                format!("--advertise-client-urls={etcd_url}"),
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                format!("--initial-cluster=testbed={peer_url}"),
                "--unsafe-no-fsync".to_owned(),
                "--log-level=warn".to_owned(),
            ],
        )?;
        ready(&mut etcd, &Client::new(&etcd_url, "", None)?, "/health").await?;

        let file = |name: &str| directory.path().join(name).display().to_string();
        fs::write(file(AUDIT_POLICY), audit_policy()).context("write the audit policy")?;
        let mut apiserver = start(
            &binaries.kube_apiserver,
            &directory.path().join("kube-apiserver.log"),
            &[
                format!("--etcd-servers={etcd_url}"),
                "--bind-address=127.0.0.1".to_owned(),
                "--advertise-address=127.0.0.1".to_owned(),
                format!("--secure-port={port}"),
                format!("--tls-cert-file={}", file(credentials::SERVER_CERTIFICATE)),
                format!("--tls-private-key-file={}", file(credentials::SERVER_KEY)),
                format!("--token-auth-file={}", file(credentials::TOKENS)),
                format!("--client-ca-file={}", file(credentials::CA)),
                "--authorization-mode=Node,RBAC".to_owned(),
                "--enable-admission-plugins=NodeRestriction".to_owned(),
                // The server requires a service account in every namespace, which the controller manager would create.
                "--disable-admission-plugins=ServiceAccount".to_owned(),
                "--allow-privileged=true".to_owned(),
                "--service-account-issuer=https://testbed.test".to_owned(),
                format!("--service-account-key-file={}", file(credentials::ACCOUNT_PUBLIC_KEY)),
                format!("--service-account-signing-key-file={}", file(credentials::ACCOUNT_KEY)),
                "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
                "--endpoint-reconciler-type=none".to_owned(),
                format!("--audit-policy-file={}", file(AUDIT_POLICY)),
                format!("--audit-log-path={}", file(AUDIT_LOG)),
            ],
        )?;
        let admin = Client::new(&url, &credentials.token(ADMIN), Some(credentials.ca()))?;
        ready(&mut apiserver, &admin, "/readyz").await?;
        for namespace in SYSTEM_NAMESPACES {
            ready(&mut apiserver, &admin, &format!("/api/v1/namespaces/{namespace}")).await?;
        }
        Ok(Self {
            url,
            etcd_url,
            credentials,
            admin,
            _apiserver: apiserver,
            _etcd: etcd,
            directory,
        })
    }

    pub async fn kubectl() -> Result<PathBuf> {
        binaries::find("kubectl").await
    }

    /// Starts controllers; they are stopped when the result is dropped.
    ///
    /// Controllers without leader election run when this returns.
    pub async fn start_controllers(&self, settings: &Settings) -> Result<ControllerManager> {
        ControllerManager::start(self, settings).await
    }

    fn access_with(&self, user: &str, token: String) -> Access {
        Access {
            url: self.url.clone(),
            ca: Some(self.credentials.ca().to_owned()),
            socket: None,
            user: user.to_owned(),
            token,
        }
    }

    /// A certificate of a node that expires after this time, and its key, in one file as a kubelet stores them.
    pub fn node_certificate(&self, node: &str, valid: Duration) -> Result<String> {
        self.credentials.node_certificate(node, valid)
    }

    /// A kubeconfig of a node with its certificate and key in that file.
    pub fn node_kubeconfig_with(&self, node: &str, pem: &Path) -> String {
        let pair = format!("client-certificate: {0}\n    client-key: {0}", pem.display());
        kubeconfig_of(&self.url, Some(self.credentials.ca()), &node_user(node), &pair)
    }

    /// The server's audit log of writes to pods, one line of JSON each.
    pub fn audit_log(&self) -> PathBuf {
        self.directory.path().join(AUDIT_LOG)
    }

    /// Compacts the store up to now, which the server would do within ten minutes.
    async fn compact(&self) -> Result<()> {
        let etcd = Client::new(&self.etcd_url, "", None)?;
        let range = etcd.create("/v3/kv/range", &json!({"key": "Lw=="})).await?.ok()?;
        let revision = &range["header"]["revision"];
        etcd.create("/v3/kv/compaction", &json!({"revision": revision, "physical": true}))
            .await?
            .ok()?;
        Ok(())
    }
}

impl ApiServer for ControlPlane {
    fn access(&self, user: &str) -> Access {
        self.access_with(user, self.credentials.token(user))
    }

    fn forget_history(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.compact())
    }
}

fn start(program: &Path, log: &Path, arguments: &[String]) -> Result<Process> {
    let mut command = Command::new(program);
    command.args(arguments);
    Process::start(command, log)
}

/// Waits until the answer is 200; fails if the process exits.
async fn ready(process: &mut Process, client: &Client, path: &str) -> Result<()> {
    let ready = process.until_ok(START_TIMEOUT, async || {
        let answer = client.get(path).await?;
        ensure!(
            answer.status.is_success(),
            "{path}: {} {}",
            answer.code(),
            answer.message()
        );
        Ok(())
    });
    ready.await
}

/// Audit policy: only completed writes of pods.
fn audit_policy() -> String {
    let pods = json!([{"group": "", "resources": ["pods", "pods/status", "pods/eviction"]}]);
    let policy = json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "verbs": ["create", "update", "patch", "delete"], "resources": pods},
            {"level": "None"},
        ],
    });
    // JSON is YAML.
    format!("{policy:#}\n")
}

pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    // All ports are reserved until all are known, so that none is used twice.
    let mut held = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0").context("no free port on 127.0.0.1")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::eventually;

    fn shell(directory: &Directory, script: &str) -> Result<Process> {
        let arguments = ["-c".to_owned(), script.to_owned()];
        start("/bin/sh".as_ref(), &directory.path().join("log"), &arguments)
    }

    #[tokio::test]
    async fn server_that_exits_at_its_start_is_reported_with_its_log() -> Result<()> {
        let directory = Directory::new()?;
        let mut process = shell(&directory, "echo cannot go on >&2; exit 3")?;
        let unreachable = Client::new("http://127.0.0.1:1", "", None)?;
        let error = ready(&mut process, &unreachable, "/readyz")
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("sh ended with exit status: 3") && error.contains("cannot go on"),
            "{error}"
        );
        Ok(())
    }

    #[test]
    fn process_is_reaped_on_drop() -> Result<()> {
        let directory = Directory::new()?;
        let process = shell(&directory, "exec sleep 600")?;
        let proc = std::path::PathBuf::from(format!("/proc/{}", process.id()));
        assert!(proc.exists());
        drop(process);
        assert!(!proc.exists());
        Ok(())
    }

    #[tokio::test]
    async fn only_unused_directories_are_removed() -> Result<()> {
        let in_use = Directory::new()?;
        let left_behind = in_use.path().with_extension("left-behind");
        std::fs::create_dir(&left_behind)?;
        std::fs::write(left_behind.join("in-use"), "")?;
        // Each new one sweeps. The sweep of another process may hold the lock and not have removed everything yet.
        let removed = eventually(Duration::from_secs(30), "the removal", async || {
            let another = Directory::new()?;
            Ok((!left_behind.exists()).then_some(another))
        });
        let another = removed.await?;
        assert!(in_use.path().exists() && another.path().exists());
        Ok(())
    }

    #[test]
    fn free_ports_are_different_ones() -> Result<()> {
        let [a, b, c] = free_ports()?;
        assert!(a != b && b != c && a != c);
        Ok(())
    }
}
