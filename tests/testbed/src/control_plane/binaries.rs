//! Where the programs of the control plane are: `control-plane/build.sh` finds or builds them.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// The two programs without which there is no control plane.
#[derive(Debug)]
pub struct Binaries {
    /// The store.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
}

// === impl Binaries ===

impl Binaries {
    /// Finds or builds both.
    pub async fn find() -> Result<Self> {
        let directory = directory_of(&[]).await?;
        Ok(Self {
            etcd: directory.join("etcd"),
            kube_apiserver: directory.join("kube-apiserver"),
        })
    }
}

/// Finds or builds the program of the controllers, which few tests need.
pub async fn kube_controller_manager() -> Result<PathBuf> {
    let name = "kube-controller-manager";
    Ok(directory_of(&[name]).await?.join(name))
}

/// Finds or builds the kubelet, which few tests need.
pub async fn kubelet() -> Result<PathBuf> {
    let name = "kubelet";
    Ok(directory_of(&[name]).await?.join(name))
}

/// Finds or builds what people ask an API server with.
pub async fn kubectl() -> Result<PathBuf> {
    let name = "kubectl";
    Ok(directory_of(&[name]).await?.join(name))
}

/// Asks the script; what it says while it builds goes to standard error.
async fn directory_of(arguments: &[&str]) -> Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("control-plane/build.sh");
    let output = Command::new(&script)
        .args(arguments)
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
    let directory = printed.lines().last().context("the script named no directory")?;
    Ok(PathBuf::from(directory))
}
