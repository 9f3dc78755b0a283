//! Reads kubeconfigs.

use std::path::{Path, PathBuf};

use futures::FutureExt as _;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::{node::threads::Blocking, why::Why};

/// Reads a kubeconfig on a separate thread.
///
/// # Errors
/// A message if a file is missing or invalid, or if the kubeconfig names a proxy.
pub async fn read_kubeconfig(path: &Path) -> Result<kube::Config, Why> {
    let path = path.to_owned();
    let read = Blocking::OnThreads.run(move || read_kubeconfig_here(&path)).await;
    read.map_err(Why::new).flatten()
}

/// [`read_kubeconfig`] on the calling thread, which it blocks.
///
/// # Errors
/// A message if a file is missing or invalid, or if the kubeconfig names a proxy.
pub fn read_kubeconfig_here(path: &Path) -> Result<kube::Config, Why> {
    let first_line = |error: KubeconfigError| Why::new(error.to_string().lines().next().unwrap_or_default());
    let mut kubeconfig = Kubeconfig::read_from(path).map_err(first_line)?;
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|it| it.cluster.as_mut()) {
        if cluster.proxy_url.as_ref().is_some_and(|url| !url.is_empty()) {
            return Err(Why::new("it names a proxy-url, and only direct connections are made"));
        }
        // Prevents a proxy from the environment: kube reads it only if the file names none. Removed again below.
        cluster.proxy_url.clone_from(&cluster.server);
    }
    // Reads files only, so it is ready at once.
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).now_or_never();
    let config = config.ok_or_else(|| Why::new("it is not read at once"))?;
    let mut config = config.map_err(Why::new)?;
    config.proxy_url = None;
    let server = &config.cluster_url;
    if !matches!(server.scheme_str(), Some("https" | "http")) || server.host().unwrap_or_default().is_empty() {
        return Err(format!("server {server} must be https://host:port").into());
    }
    Ok(config)
}

/// A kubeconfig and the files that it names.
pub fn credential_files(path: &Path) -> Vec<PathBuf> {
    let kubeconfig = Kubeconfig::read_from(path).unwrap_or_default();
    let clusters = kubeconfig.clusters.into_iter().filter_map(|it| it.cluster);
    let users = kubeconfig.auth_infos.into_iter().filter_map(|it| it.auth_info);
    let of_clusters = clusters.filter_map(|it| it.certificate_authority);
    let of_users = users.flat_map(|it| [it.client_certificate, it.client_key, it.token_file]);
    let named = of_clusters.chain(of_users.flatten()).map(PathBuf::from);
    std::iter::once(path.to_owned()).chain(named).collect()
}
