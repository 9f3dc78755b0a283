//! What the kubelet was told in its configuration file.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{Problem, first_line, is_absent};

/// The only version of the kubelet's configuration that there is.
pub(super) const KUBELET_CONFIG_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// The kubelet's configuration, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct KubeletConfiguration {
    api_version: String,
    kind: String,
    pub cgroup_driver: Option<String>,
    pub cgroup_root: Option<String>,
    #[serde(rename = "cgroupsPerQOS")]
    cgroups_per_qos: Option<bool>,
    pub pod_logs_dir: Option<PathBuf>,
    healthz_bind_address: Option<IpAddr>,
    healthz_port: Option<u16>,
}

/// Where a kubelet tells its health if it is not told otherwise.
const HEALTHZ: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::LOCALHOST), 10248);

// === impl KubeletConfiguration ===

impl KubeletConfiguration {
    /// Where the kubelet tells its health; nowhere with port 0.
    pub fn healthz(&self) -> Option<SocketAddr> {
        let (addr, port) = HEALTHZ;
        let addr = match self.healthz_bind_address.unwrap_or(addr) {
            any if any.is_unspecified() && any.is_ipv6() => Ipv6Addr::LOCALHOST.into(),
            any if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            addr => addr,
        };
        match self.healthz_port.unwrap_or(port) {
            0 => None,
            port => Some((addr, port).into()),
        }
    }
}

pub(super) fn kubelet_configuration(path: Option<&Path>) -> Result<KubeletConfiguration, Problem> {
    let Some(path) = path else {
        return Ok(KubeletConfiguration::default());
    };
    let problem = |why: String| {
        Problem::configuration(
            format!("--kubelet-config {}: {why}", path.display()),
            "name the file that the kubelet has as --config, a KubeletConfiguration",
        )
    };
    let text = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()).absent(is_absent(path)))?;
    let mut config: KubeletConfiguration =
        serde_saphyr::from_str(&text).map_err(|error| problem(first_line(&error)))?;
    // Another version may say the same by other names; the kubelet, too, takes none that it does not know.
    if (config.kind.as_str(), config.api_version.as_str()) != ("KubeletConfiguration", KUBELET_CONFIG_VERSION) {
        return Err(problem(format!(
            "its kind is {:?} and its apiVersion {:?}, not KubeletConfiguration of {KUBELET_CONFIG_VERSION}",
            config.kind, config.api_version
        )));
    }
    // For the kubelet an empty value is its default.
    config.cgroup_driver.take_if(|driver| driver.is_empty());
    config.cgroup_root.take_if(|root| root.is_empty());
    config.pod_logs_dir.take_if(|dir| dir.as_os_str().is_empty());
    if config.cgroups_per_qos == Some(false) {
        return Err(Problem::configuration(
            format!(
                "--kubelet-config {}: cgroupsPerQOS is false: pods of this node have no cgroups of their own",
                path.display()
            ),
            "this agent cannot work on such a node; it needs cgroupsPerQOS: true, which is the kubelet's default",
        ));
    }
    if let Some(driver) = config.cgroup_driver.as_deref()
        && !matches!(driver, "cgroupfs" | "systemd")
    {
        return Err(problem(format!(
            "cgroupDriver {driver:?} is unknown: there are cgroupfs and systemd"
        )));
    }
    if config.pod_logs_dir.as_ref().is_some_and(|dir| !dir.is_absolute()) {
        return Err(problem("podLogsDir is not an absolute path".to_owned()));
    }
    if let Some(root) = config.cgroup_root.as_deref().filter(|root| !is_cgroup_root(root)) {
        return Err(problem(format!(
            "cgroupRoot {root}: it must begin with / and hold no .."
        )));
    }
    Ok(config)
}

pub(super) fn is_cgroup_root(root: &str) -> bool {
    root.starts_with('/') && !root.split('/').any(|part| part == "..")
}
