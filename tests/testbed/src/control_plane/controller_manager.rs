//! kube-controller-manager: real controllers, all or some of them, beside a control plane.
//!
//! Each runs with its own service account and ClusterRole of the bootstrap policy.

mod settings;

use std::{fs, future::Future, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::json;

pub use self::settings::Settings;
use super::{ATTEMPTS, ControlPlane, Directory, Process, START_TIMEOUT, binaries, free_ports, ready, start};
use crate::{api::ADMIN, rest::Client};

const LOG: &str = "kube-controller-manager.log";
/// The collector logs this once it is synced; its health check does not show it. The start of the line differs between
/// releases.
const COLLECTOR_AT_WORK: &str = "ll resource monitors have synced";
/// Namespace with objects that show whether controllers work.
const PROBES: &str = "/apis/apps/v1/namespaces/kube-system/replicasets";

/// A running kube-controller-manager; killed when this is dropped.
#[derive(Debug)]
pub struct ControllerManager {
    settings: Settings,
    admin: Client,
    own: Client,
    // Dropped in this order: the process, then its directory.
    process: Process,
    directory: Directory,
}

impl ControllerManager {
    pub(super) async fn start(plane: &ControlPlane, settings: &Settings) -> Result<Self> {
        let program = binaries::find("kube-controller-manager").await?;
        let mut last = None;
        for _ in 0..ATTEMPTS {
            let mut manager = Self::start_on_free_port(&program, plane, settings)?;
            match manager.until_started().await {
                Ok(()) => return Ok(manager),
                Err(e) if format!("{e:#}").contains("address already in use") => last = Some(e),
                Err(e) => return Err(e),
            }
        }
        Err(last.context("no attempt was made")?)
    }

    fn start_on_free_port(program: &Path, plane: &ControlPlane, settings: &Settings) -> Result<Self> {
        let [port] = free_ports()?;
        let directory = Directory::new()?;
        let kubeconfig = directory.path().join("kubeconfig");
        fs::write(&kubeconfig, plane.credentials.manager_kubeconfig(&plane.url))
            .with_context(|| format!("writing {}", kubeconfig.display()))?;
        let mut arguments = settings.arguments();
        arguments.extend([
            format!("--kubeconfig={}", kubeconfig.display()),
            // These two flags let the control plane's users in: the administrator may read metrics and the graph.
            format!("--authentication-kubeconfig={}", kubeconfig.display()),
            format!("--authorization-kubeconfig={}", kubeconfig.display()),
            // Otherwise it keeps requesting the certificate of a proxy, which does not exist here.
            "--authentication-skip-lookup=true".to_owned(),
            // Otherwise it creates one where a kubelet of this machine would look.
            format!(
                "--flex-volume-plugin-dir={}",
                directory.path().join("volume-plugins").display()
            ),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
        ]);
        let log = directory.path().join(LOG);
        Ok(Self {
            settings: settings.clone(),
            admin: plane.admin.clone(),
            own: Client::new(
                &format!("https://127.0.0.1:{port}"),
                &plane.credentials.token(ADMIN),
                None,
            )?,
            process: start(program, &log, &arguments)?,
            directory,
        })
    }

    async fn until_started(&mut self) -> Result<()> {
        ready(&mut self.process, &self.own, "/healthz").await?;
        if !self.settings.elect() {
            self.until_at_work().await?;
        }
        Ok(())
    }

    /// Waits until its controllers work; with leader election, not before it leads.
    pub async fn until_at_work(&mut self) -> Result<()> {
        let (own, admin) = (self.own.clone(), self.admin.clone());
        // Its health check has a line for each controller once all are created.
        let has_controllers = async || {
            let health = own.get("/healthz?verbose").await?;
            ensure!(health.message().contains("-controller ok"), "{}", health.message());
            Ok(())
        };
        self.process.until_ok(START_TIMEOUT, has_controllers).await?;
        if self.settings.collect() {
            let log = self.directory.path().join(LOG);
            let works = async || {
                ensure!(
                    fs::read_to_string(&log)?.contains(COLLECTOR_AT_WORK),
                    "it is not synced"
                );
                Ok(())
            };
            return self.process.until_ok(START_TIMEOUT, works).await;
        }
        // A controller that has handled an object of its kind has its caches and its rights.
        let labels = json!({"app": "probe"});
        let probe = json!({
            "metadata": {"generateName": "probe-"},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}},
            },
        });
        let probe = admin.create(PROBES, &probe).await?.ok()?;
        let name = probe["metadata"]["name"].as_str().context("the probe has no name")?;
        let path = format!("{PROBES}/{name}");
        let handled = async || {
            let probe = admin.get(&path).await?.ok()?;
            ensure!(
                !probe["status"]["observedGeneration"].is_null(),
                "{path} is not handled"
            );
            Ok(())
        };
        self.process.until_ok(START_TIMEOUT, handled).await?;
        admin.delete(&path, None).await?.ok()?;
        Ok(())
    }

    /// Its PID, for measurements.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// A client of its own port, as the administrator: for `/metrics` and
    /// `/debug/controllers/garbage-collector-controller/graph`.
    pub fn client(&self) -> &Client {
        &self.own
    }

    /// Runs a test's work; if it fails, the error has the end of the log, which is removed afterwards.
    pub async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        work.await
            .with_context(|| format!("the controllers' log ends with:\n{}", self.process.log_tail()))
    }
}
