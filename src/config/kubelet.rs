//! The kubelet's configuration file.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::document::{DocumentKind, KUBELET_CONFIGURATION, first_line, is_absent};
use crate::{model::problem::Problem, node::kubelet_process::flags::KubeletFlags};

/// The only version of KubeletConfiguration.
pub(super) const KUBELET_CONFIG_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// The fields of KubeletConfiguration that the agent uses.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct KubeletConfiguration {
    pub cgroup_root: Option<String>,
    #[serde(rename = "cgroupsPerQOS")]
    cgroups_per_qos: Option<bool>,
    pub pod_logs_dir: Option<PathBuf>,
    healthz_bind_address: Option<IpAddr>,
    healthz_port: Option<u16>,
    pub container_runtime_endpoint: Option<String>,
}

/// The kubelet's default healthz endpoint.
const HEALTHZ: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 10248);

// === impl KubeletConfiguration ===

impl KubeletConfiguration {
    /// Applies the kubelet's flags, which override the configuration (cmd/kubelet/app/server.go: kubeletConfigFlagPrecedence).
    #[must_use]
    pub fn with_flags(mut self, start: &KubeletFlags) -> Self {
        let root = start.cgroup_root.clone().filter(|root| is_cgroup_root(root));
        self.cgroup_root = root.or(self.cgroup_root);
        self.healthz_bind_address = start.healthz_bind_address.or(self.healthz_bind_address);
        self.healthz_port = start.healthz_port.or(self.healthz_port);
        self
    }

    /// Address of the healthz endpoint; `None` with port 0. A wildcard address becomes loopback.
    pub fn healthz(&self) -> Option<SocketAddr> {
        let (addr, port) = HEALTHZ;
        let addr = match self.healthz_bind_address.unwrap_or(addr) {
            any if any.is_unspecified() && any.is_ipv6() => Ipv6Addr::LOCALHOST.into(),
            any if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            addr => addr,
        };
        let port = self.healthz_port.unwrap_or(port);
        (port != 0).then(|| (addr, port).into())
    }
}

/// Reads the configuration file and the drop-ins of the directory, merged like in the kubelet.
///
/// # Errors
/// When a file cannot be read, is not a KubeletConfiguration, or has a value that the agent does not support.
pub(super) fn kubelet_configuration(path: Option<&Path>, dir: Option<&Path>) -> Result<KubeletConfiguration, Problem> {
    let text = |path: Option<&Path>| path.map_or_else(String::new, |path| format!(" {}", path.display()));
    let of_dir = dir.map_or_else(String::new, |_| format!(" with --kubelet-config-dir{}", text(dir)));
    let flags = format!("--kubelet-config{}{of_dir}", text(path));
    let problem = |why: String| {
        Problem::configuration(
            format!("{flags}: {why}"),
            "set --kubelet-config to the kubelet's --config, such as /var/lib/kubelet/config.yaml, and --kubelet-config-dir to its \
             --config-dir",
        )
    };
    let read = |path: &Path| {
        document(path).map_err(|why| {
            let of_file = dir.map_or_else(String::new, |_| format!("{}: ", path.display()));
            problem(format!("{of_file}{why}")).absent(is_absent(path))
        })
    };
    let mut merged = path.map_or_else(|| Ok(Value::Object(Map::new())), read)?;
    let drop_ins = dir.map(drop_ins).transpose();
    let drop_ins = drop_ins.map_err(|error| problem(error.to_string()).absent(dir.is_some_and(is_absent)))?;
    for drop_in in drop_ins.into_iter().flatten() {
        json_patch::merge(&mut merged, &read(&drop_in)?);
    }
    let mut config: KubeletConfiguration =
        serde_json::from_value(merged).map_err(|error| problem(first_line(&error)))?;
    // The kubelet treats an empty value as its default.
    config.cgroup_root.take_if(|root| root.is_empty());
    config.pod_logs_dir.take_if(|dir| dir.as_os_str().is_empty());
    config
        .container_runtime_endpoint
        .take_if(|endpoint| endpoint.is_empty());
    if config.cgroups_per_qos == Some(false) {
        return Err(Problem::configuration(
            format!("{flags}: cgroupsPerQOS is false, so pods of this node have no cgroups of their own"),
            "set cgroupsPerQOS: true in the kubelet's configuration, which is its default: this agent cannot work on such a node",
        ));
    }
    if config.pod_logs_dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
        return Err(problem("podLogsDir is not an absolute path".to_owned()));
    }
    if let Some(root) = config.cgroup_root.as_deref().filter(|root| !is_cgroup_root(root)) {
        return Err(problem(format!(
            "cgroupRoot {root} does not begin with /, or contains .."
        )));
    }
    Ok(config)
}

/// Reads a KubeletConfiguration. The error does not name the path.
fn document(path: &Path) -> io::Result<Value> {
    let text = fs::read_to_string(path)?;
    // A file of several documents is no KubeletConfiguration, and its kind says more than the parser.
    let kind = DocumentKind::of_file(path);
    let refused = |why: String| Err(io::Error::other(why));
    if let Some(kind) = &kind
        && !kind.is_kubelet_configuration()
    {
        return refused(format!("this file is {kind}, not a {KUBELET_CONFIGURATION}"));
    }
    let document = serde_saphyr::from_str(&text).map_err(|error| io::Error::other(first_line(&error)))?;
    match kind.map(|kind| kind.api_version) {
        None => refused(format!("this file has no kind, so it is not a {KUBELET_CONFIGURATION}")),
        // Another version may name its fields differently; the kubelet rejects unknown versions, too.
        Some(version) if version != KUBELET_CONFIG_VERSION => refused(format!(
            "this file is a {KUBELET_CONFIGURATION} of {version:?}, not of {KUBELET_CONFIG_VERSION}"
        )),
        Some(_) => Ok(document),
    }
}

/// The drop-ins of a directory and its subdirectories in the kubelet's order: `*.conf`, sorted by name in each directory. Symlinks
/// to directories are not followed (cmd/kubelet/app/server.go: mergeKubeletConfigurations).
fn drop_ins(dir: &Path) -> io::Result<Vec<PathBuf>> {
    if fs::symlink_metadata(dir)?.is_symlink() {
        return Ok(Vec::new());
    }
    let mut entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut found = Vec::new();
    for entry in entries {
        if entry.file_type()?.is_dir() {
            found.extend(drop_ins(&entry.path())?);
        } else if entry.file_name().as_encoded_bytes().ends_with(b".conf") {
            found.push(entry.path());
        }
    }
    Ok(found)
}

pub(super) fn is_cgroup_root(root: &str) -> bool {
    root.starts_with('/') && !root.split('/').any(|part| part == "..")
}
