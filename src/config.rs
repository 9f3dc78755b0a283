//! Validates the flags. All problems are reported at once, before any effect.

use std::{
    io,
    net::SocketAddr,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use nix::{
    sys::statfs::{PROC_SUPER_MAGIC, statfs},
    unistd::{AccessFlags, access},
};
use opentelemetry_otlp::SpanExporter;

use self::document::is_absent;
use crate::{
    cli::{ModeFlag, NodeFlags},
    collector::Mode,
    model::problem::Problem,
    node::{
        cri::CriEndpoint,
        kubelet_process::{
            LocalKubelet,
            flags::{self, DEFAULT_ROOT, KubeletFlags},
        },
        kubelet_root::KubeletRoot,
    },
};

mod document;
mod kubeconfig;
mod kubelet;
pub mod layout;
mod otlp;

use kubeconfig::kubeconfig;
use kubelet::{KubeletConfiguration, is_cgroup_root, kubelet_configuration};

/// The kubelet's default for `containerRuntimeEndpoint`.
const DEFAULT_RUNTIME: &str = "unix:///run/containerd/containerd.sock";
/// The kubelet's default for `podLogsDir`.
const DEFAULT_POD_LOGS_DIR: &str = "/var/log/pods";

/// Maximum of any duration.
const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Minimum of `--take-over-after`.
const MIN_TAKE_OVER_AFTER: Duration = Duration::from_secs(2);

/// The settings of `run` and `check`; created only by [`validate`].
#[derive(Debug)]
pub struct Settings {
    /// Name of this node's Node object.
    pub node_name: String,
    /// For the termination of pods; `None` with `--mode never`.
    pub pods: Option<PodSettings>,
    /// For the garbage collector; `None` without its credentials, or with `--gc never`.
    pub gc: Option<GcSettings>,
    /// Directory of the journal.
    pub state_dir: PathBuf,
    /// Path of the admin socket.
    pub socket: PathBuf,
    /// Address of the metrics endpoint.
    pub metrics: Option<SocketAddr>,
    /// Exports traces to a collector.
    pub otlp: Option<SpanExporter>,
    /// `--shutdown-timeout`.
    pub shutdown_timeout: Duration,
}

/// Settings for the termination of pods.
#[derive(Debug)]
pub struct PodSettings {
    /// Configuration of the API client.
    pub kube: kube::Config,
    /// The file of `kube`.
    pub kubeconfig: PathBuf,
    /// The flags, for those that are used as they are.
    pub flags: NodeFlags,
    /// The runtime's socket.
    pub cri_endpoint: CriEndpoint,
    /// The kubelet's root directory, links resolved.
    pub kubelet_root: KubeletRoot,
    /// Parent cgroup of `kubepods`.
    pub cgroup_root: String,
    /// The kubelet's `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// Address of the kubelet's healthz endpoint, if it has one.
    pub healthz: Option<SocketAddr>,
    /// `--driver-hold`.
    pub driver_hold: Duration,
    /// `--take-over-after`; `None` if the node has no kubelet (`--mode always`). If the agent only observes, when it would take over.
    pub take_over_after: Option<Duration>,
    /// The agent only observes, and touches nothing (`--mode observe`).
    pub only_observes: bool,
}

/// Settings of the garbage collector.
#[derive(Debug)]
pub struct GcSettings {
    /// Configuration of its API client.
    pub kube: kube::Config,
    /// The file of `kube`.
    pub kubeconfig: PathBuf,
    /// `--gc`.
    pub mode: Mode,
}

// === impl PodSettings ===

impl PodSettings {
    /// What identifies a kubelet of this node.
    pub fn local_kubelet(&self) -> LocalKubelet {
        LocalKubelet {
            root: self.kubelet_root.clone(),
            runtime: self.cri_endpoint.path().to_owned(),
            healthz: self.healthz,
        }
    }

    /// Settings that must agree with the kubelet's flags.
    pub fn expected_kubelet_settings(&self, node_name: &str) -> flags::ExpectedFlags {
        flags::ExpectedFlags {
            flags: KubeletFlags {
                kubeconfig: Some(self.kubeconfig.clone()),
                config: self.flags.kubelet_config.clone(),
                config_dir: self.flags.kubelet_config_dir.clone(),
                root_dir: Some(self.kubelet_root.given().to_owned()),
                runtime: Some(self.cri_endpoint.path().to_string_lossy().into_owned()),
                cgroup_root: Some(self.cgroup_root.clone()),
                healthz_port: Some(self.healthz.map_or(0, |at| at.port())),
                hostname_override: Some(node_name.to_owned()),
                ..KubeletFlags::default()
            },
            resolved_root: self.kubelet_root.path().to_owned(),
        }
    }
}

/// Validates the flags and all files that they name.
///
/// # Errors
/// All problems.
pub async fn validate(flags: &NodeFlags) -> Result<Settings, Vec<Problem>> {
    let mut problems = Problems::default();
    let node_name = problems.ok_or_record(node_name(flags.node_name.as_deref()));
    let pods = match flags.mode {
        ModeFlag::Observe | ModeFlag::Auto | ModeFlag::Always => pod_settings(flags, &mut problems).await.map(Some),
        ModeFlag::Never => Some(None),
    };
    let gc = problems.ok_or_record(gc_settings(flags).await);
    if let (Some(None), Some(None)) = (&pods, &gc) {
        problems.0.push(Problem::usage(
            "--mode never without the collector leaves the agent no task",
            "set --gc-kubeconfig to the collector's credentials, and remove --gc never",
        ));
    }
    problems.ok_or_record(writable("--state-dir", &flags.state_dir));
    problems.ok_or_record(socket(&flags.socket.socket));
    let metrics = problems.ok_or_record(metrics_addr(flags.metrics_addr.as_deref()));
    // The variables are standard: a value for other programs must not prevent the teardown of pods.
    let otlp = otlp::exporter(flags).unwrap_or_else(|Problem { what, remedy, .. }| {
        tracing::warn!(what, remedy, "Traces are not exported");
        None
    });
    let shutdown_timeout = problems.ok_or_record(duration("--shutdown-timeout", &flags.shutdown_timeout));
    let settings = || {
        Some(Settings {
            otlp,
            node_name: node_name?,
            pods: pods?,
            gc: gc?,
            state_dir: flags.state_dir.clone(),
            socket: flags.socket.socket.clone(),
            metrics: metrics?,
            shutdown_timeout: shutdown_timeout?,
        })
    };
    let settings = settings().filter(|_| problems.0.is_empty());
    settings.ok_or(problems.0)
}

async fn pod_settings(flags: &NodeFlags, problems: &mut Problems) -> Option<PodSettings> {
    let kube = problems.ok_or_record(kubeconfig("--kubeconfig", flags.kubeconfig.as_deref()).await);
    let (config, config_dir) = (flags.kubelet_config.as_deref(), flags.kubelet_config_dir.as_deref());
    let kubelet = kubelet_configuration(config, config_dir).map(|kubelet| match &flags.kubelet_start {
        Some(start) => kubelet.with_flags(start),
        None => kubelet,
    });
    let cri_endpoint = problems.ok_or_record(cri_endpoint(&runtime_of(flags, kubelet.as_ref().ok())));
    let root = flags.kubelet_root.as_deref().unwrap_or(Path::new(DEFAULT_ROOT));
    let kubelet_root = problems.ok_or_record(kubelet_root(root));
    let kubelet = problems.ok_or_record(kubelet);
    let cgroup_root = problems.ok_or_record(cgroup_root(flags.cgroup_root.as_deref(), kubelet.as_ref()));
    let driver_hold = problems.ok_or_record(duration("--driver-hold", &flags.driver_hold));
    let take_over_after = problems.ok_or_record(take_over_after(&flags.take_over_after));
    let (kube, kubeconfig) = kube?;
    let kubelet = kubelet?;
    let take_over_after = take_over_after?;
    Some(PodSettings {
        kube,
        kubeconfig,
        flags: flags.clone(),
        healthz: kubelet.healthz(),
        cri_endpoint: cri_endpoint?,
        kubelet_root: kubelet_root?,
        cgroup_root: cgroup_root?,
        pod_logs_dir: kubelet.pod_logs_dir.unwrap_or_else(|| DEFAULT_POD_LOGS_DIR.into()),
        driver_hold: driver_hold?,
        take_over_after: (flags.mode != ModeFlag::Always).then_some(take_over_after),
        only_observes: flags.mode == ModeFlag::Observe,
    })
}

async fn gc_settings(flags: &NodeFlags) -> Result<Option<GcSettings>, Problem> {
    let mode = flags.gc;
    match flags.gc_kubeconfig.as_deref() {
        None if mode == Mode::Always => Err(Problem::usage(
            "--gc always needs --gc-kubeconfig",
            "set --gc-kubeconfig to the kubeconfig of a user with the rights of deploy/gc-rbac.yaml",
        )),
        Some(file) if mode != Mode::Never => {
            let (kube, kubeconfig) = kubeconfig("--gc-kubeconfig", Some(file)).await?;
            Ok(Some(GcSettings { kube, kubeconfig, mode }))
        }
        _ => Ok(None),
    }
}

fn node_name(name: Option<&str>) -> Result<String, Problem> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => nix::unistd::gethostname()
            .ok()
            .and_then(|name| name.into_string().ok())
            .unwrap_or_default()
            .trim()
            .to_lowercase(),
    };
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let has_valid_ends = name.starts_with(char::is_alphanumeric) && name.ends_with(char::is_alphanumeric);
    if name.len() <= 253 && has_valid_ends && name.chars().all(is_allowed) {
        Ok(name)
    } else {
        Err(Problem::usage(
            format!("--node-name {name:?} is not a valid name of a Node"),
            "set --node-name to the name that `kubectl get nodes` shows for this node",
        ))
    }
}

/// The runtime's endpoint: our flag, else the kubelet's configuration, which may name a path.
fn runtime_of(flags: &NodeFlags, kubelet: Option<&KubeletConfiguration>) -> String {
    let from_kubelet = || {
        let endpoint = kubelet?.container_runtime_endpoint.as_deref()?;
        Some(layout::unix_endpoint(endpoint))
    };
    let endpoint = flags.cri_endpoint.clone().or_else(from_kubelet);
    endpoint.unwrap_or_else(|| DEFAULT_RUNTIME.to_owned())
}

fn cri_endpoint(text: &str) -> Result<CriEndpoint, Problem> {
    let endpoint: CriEndpoint = text.parse().map_err(|error| {
        Problem::usage(
            format!("--cri-endpoint {text}: {error}"),
            "set --cri-endpoint to a path such as unix:///run/containerd/containerd.sock",
        )
    })?;
    match std::fs::metadata(endpoint.path()) {
        Ok(metadata) if !metadata.file_type().is_socket() => Err(Problem::configuration(
            format!("--cri-endpoint {text}: {} is not a socket", endpoint.path().display()),
            "set --cri-endpoint to the socket that the container runtime listens on",
        )),
        // It may not exist yet: the agent waits for it.
        _ => Ok(endpoint),
    }
}

fn kubelet_root(root: &Path) -> Result<KubeletRoot, Problem> {
    let problem = |why: String| {
        Problem::configuration(
            format!("--kubelet-root {}: {why}", root.display()),
            "set --kubelet-root to the kubelet's --root-dir, a directory that contains the directory pods",
        )
    };
    let resolved = KubeletRoot::resolve(root).map_err(|error| {
        let is_absent_yet = is_absent(&root.join("pods"));
        problem(error.to_string()).absent(is_absent_yet)
    })?;
    if resolved.pods().is_dir() {
        Ok(resolved)
    } else {
        Err(problem("its entry \"pods\" is not a directory".to_owned()))
    }
}

fn cgroup_root(flag: Option<&str>, kubelet: Option<&KubeletConfiguration>) -> Result<String, Problem> {
    let root = flag
        .or_else(|| kubelet?.cgroup_root.as_deref())
        .filter(|root| !root.is_empty())
        .unwrap_or("/");
    if is_cgroup_root(root) {
        Ok(root.to_owned())
    } else {
        Err(Problem::usage(
            format!("--cgroup-root {root} does not begin with /, or contains .."),
            "set --cgroup-root to the kubelet's cgroupRoot, such as / or /kubelet",
        ))
    }
}

/// A directory must be writable, or possible to create.
fn writable(flag: &str, dir: &Path) -> Result<(), Problem> {
    let problem = |why: String| {
        Problem::configuration(
            format!("{flag} {}: {why}", dir.display()),
            "run it as root, or choose a directory on a disk that this user can write to",
        )
    };
    if !dir.is_absolute() {
        return Err(Problem::usage(
            format!("{flag} {}: it is not an absolute path", dir.display()),
            "use an absolute path, which begins with /",
        ));
    }
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if !existing.is_dir() {
        return Err(problem(format!("{} is not a directory", existing.display())));
    }
    // Its permissions allow root to write, and no file can be created there.
    if statfs(existing).is_ok_and(|found| found.filesystem_type() == PROC_SUPER_MAGIC) {
        return Err(problem(format!("{} is on procfs", existing.display())));
    }
    access(existing, AccessFlags::W_OK | AccessFlags::X_OK).map_err(|errno| {
        problem(format!(
            "{} is not writable: {}",
            existing.display(),
            io::Error::from(errno)
        ))
    })
}

fn socket(path: &Path) -> Result<(), Problem> {
    // Symlinks are not followed: the path is replaced, and must be a socket itself.
    if let Ok(metadata) = std::fs::symlink_metadata(path)
        && !metadata.file_type().is_socket()
    {
        let what = if metadata.is_dir() {
            "a directory"
        } else {
            "not a socket"
        };
        return Err(Problem::configuration(
            format!("--socket {}: it is {what}", path.display()),
            "set --socket to a path that does not exist, or to a socket",
        ));
    }
    if !path.is_absolute() {
        return Err(Problem::usage(
            format!("--socket {}: it is not an absolute path", path.display()),
            "use an absolute path, such as /run/pod-teardown/pod-teardown.sock",
        ));
    }
    writable("--socket", path.parent().unwrap_or(Path::new("/")))
}

fn metrics_addr(text: Option<&str>) -> Result<Option<SocketAddr>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let problem = |why: &str| {
        Problem::usage(
            format!("--metrics-addr {text}: {why}"),
            "set --metrics-addr to an address and a port of this node, such as 127.0.0.1:9464 or [::]:9464",
        )
    };
    match text.parse::<SocketAddr>() {
        Err(_) => Err(problem("it is not an IP address with a port")),
        Ok(addr) if addr.port() == 0 => Err(problem("port 0 is a random port")),
        Ok(addr) => Ok(Some(addr)),
    }
}

fn duration(flag: &str, text: &str) -> Result<Duration, Problem> {
    let why = match humantime::parse_duration(text) {
        // The library accepts 0 without a unit.
        Ok(_) if !text.contains(char::is_alphabetic) => "it has no unit",
        Ok(duration) if duration > MAX_DURATION => "it is longer than a day",
        Ok(duration) => return Ok(duration),
        Err(_) => "it is not a duration",
    };
    Err(Problem::usage(
        format!("{flag} {text}: {why}"),
        "use a number with a unit, such as 20s, 1500ms or 2m",
    ))
}

/// The probes need at least [`MIN_TAKE_OVER_AFTER`].
fn take_over_after(text: &str) -> Result<Duration, Problem> {
    let after = duration("--take-over-after", text)?;
    if after >= MIN_TAKE_OVER_AFTER {
        Ok(after)
    } else {
        Err(Problem::usage(
            format!("--take-over-after {text}: it is shorter than the probes of the kubelet need"),
            "use at least 2s; with 45s a kubelet can restart, and its Lease can expire",
        ))
    }
}

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn ok_or_record<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.0.push(problem)).ok()
    }
}

#[cfg(test)]
mod tests;
