//! The agent's binary with the ServiceAccount of `deploy/gc-rbac.yaml` and no other rights.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tempfile::TempDir;
use testbed::{
    api::{Access, ApiServer as _},
    control_plane::ControlPlane,
    stage::{AgentCommand, AgentProcess},
};

use crate::scene::eventually;

pub const BINARY: &str = env!("CARGO_BIN_EXE_pod-teardown");
const MANIFEST: &str = include_str!("../../deploy/gc-rbac.yaml");
pub const ACCOUNT: &str = "pod-teardown-gc";
/// If the Lease was not released, the agent waits 15 s for it; the rest is for a busy machine.
const START: Duration = Duration::from_secs(180);

/// A running agent that only collects.
pub struct Agent {
    // Dropped in this order: the process, then its directory.
    process: AgentProcess,
    directory: TempDir,
}

/// Applies the manifest; returns the ServiceAccount's access.
pub async fn account(plane: &ControlPlane) -> Result<Access> {
    let admin = plane.admin()?;
    for document in MANIFEST.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).context("read deploy/gc-rbac.yaml")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let root = if version.contains('/') { "apis" } else { "api" };
        let space = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("namespaces/{namespace}/"),
            None => String::new(),
        };
        let path = format!("/{root}/{version}/{space}{}s", kind.to_lowercase());
        let applied = admin.create(&path, &object).await?.ok();
        applied.with_context(|| format!("apply {kind} of deploy/gc-rbac.yaml"))?;
    }
    plane.access_of(ACCOUNT).await
}

impl Agent {
    /// Starts it with this `--gc`; does not wait.
    pub fn start(access: &Access, gc: &str) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a directory for the agent")?;
        Ok(Self {
            process: AgentCommand::collector(Path::new(BINARY), directory.path(), access, gc)?.spawn()?,
            directory,
        })
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// Waits until all kinds are synced.
    pub async fn until_synced(&mut self) -> Result<()> {
        let synced = self.until(START, "the agent to have seen everything", |status| {
            status["synced"] == true
        });
        let Err(error) = synced.await else { return Ok(()) };
        let ended = self.process.has_ended()?;
        Err(error.context(format!("it ended with {ended:?}; its log: {}", self.process.log_tail())))
    }

    /// Output of `gc status -o json`.
    pub async fn status(&self) -> Result<Value> {
        let text = self.process.ask(&["gc", "status", "-ojson"]).await?;
        serde_json::from_str(&text).context("read the collector's status")
    }

    /// Waits until its status is as wanted. It answers only once it listens.
    pub async fn until(&self, limit: Duration, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let seen = eventually(limit, what, async || {
            let Ok(status) = self.status().await else {
                return Ok(None);
            };
            Ok(Some(status).filter(&wanted))
        });
        match seen.await {
            Ok(status) => Ok(status),
            Err(error) => {
                let last = self.status().await.unwrap_or_default();
                bail!("{error:#}; it says {}", last["election"])
            }
        }
    }

    /// Waits until it watches a resource of this group.
    pub async fn until_watched(&self, resource: &str) -> Result<()> {
        let start = format!("{resource}/");
        let watched = |status: &Value| {
            let kinds = status["work"]["kinds"].as_array();
            kinds.into_iter().flatten().any(|kind| {
                kind["synced"] == true && kind["resource"].as_str().is_some_and(|name| name.starts_with(&start))
            })
        };
        let what = format!("{resource} to be watched");
        self.until(START, &what, watched).await.map(drop)
    }

    /// Runs `work`. If it fails, the error has the end of the agent's log.
    pub async fn during<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.process.during(work).await
    }

    /// Stops it; it must exit with 0.
    pub async fn stop(self) -> Result<()> {
        self.process.stop().await
    }
}
