//! Where etcd and kube-apiserver are: `control-plane/build.sh` finds or builds them.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// The two programs of the control plane.
#[derive(Debug)]
pub struct Binaries {
    /// The store.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
}

// === impl Binaries ===

impl Binaries {
    /// Asks the script; what it says while it builds goes to standard error.
    pub async fn find() -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("control-plane/build.sh");
        let output = Command::new(&script)
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("running {}", script.display()))?;
        ensure!(
            output.status.success(),
            "{} failed: {}",
            script.display(),
            output.status
        );
        let printed = String::from_utf8(output.stdout).context("the directory of the binaries is not UTF-8")?;
        let directory = Path::new(printed.lines().last().context("the script named no directory")?);
        Ok(Self {
            etcd: directory.join("etcd"),
            kube_apiserver: directory.join("kube-apiserver"),
        })
    }
}
