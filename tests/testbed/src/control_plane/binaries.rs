//! Programs of the control plane: `control-plane/build.sh` finds or builds the release in `$KUBERNETES_VERSION`.

use std::path::PathBuf;

use anyhow::Result;

use crate::script;

/// The two required programs.
#[derive(Debug)]
pub struct Binaries {
    /// The store.
    pub etcd: PathBuf,
    /// The API server.
    pub kube_apiserver: PathBuf,
}

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

/// Finds or builds another program, which few tests need.
pub async fn find(name: &str) -> Result<PathBuf> {
    Ok(directory_of(&[name]).await?.join(name))
}

async fn directory_of(arguments: &[&str]) -> Result<PathBuf> {
    script::directory("control-plane/build.sh", arguments).await
}
