//! From flags to settings: everything is looked at before anything is touched, and all mistakes are told at once.

use std::{
    fmt,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    cli::{CgroupDriverFlag, NodeFlags},
    node::{cri::CriEndpoint, kubelet_root::KubeletRoot},
};

mod kubeconfig;
mod kubelet;

use kubeconfig::kubeconfig;
pub use kubeconfig::{credential_files, read_kubeconfig};
use kubelet::{KubeletConfiguration, is_cgroup_root, kubelet_configuration};

/// The kubelet's default for `podLogsDir`.
const DEFAULT_POD_LOGS_DIR: &str = "/var/log/pods";

/// File systems in which nobody makes directories, whatever access(2) tells root: proc, sysfs, cgroup v1 and v2.
const NOT_FOR_FILES: [i64; 4] = [0x9fa0, 0x6265_6572, 0x0027_e0eb, 0x6367_7270];
/// Nobody waits longer for an agent to stop.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What `run` and `check` work with; made only by [`validate`].
#[derive(Debug)]
pub struct Settings {
    /// For the API client.
    pub kube: kube::Config,
    /// Where it was read from.
    pub kubeconfig: PathBuf,
    /// This machine's Node.
    pub node_name: String,
    /// The runtime's socket.
    pub cri_endpoint: CriEndpoint,
    /// The kubelet's root directory, links resolved.
    pub kubelet_root: KubeletRoot,
    /// What was told of the cgroup driver.
    pub cgroup_driver: CgroupDriverFlag,
    /// What the kubelet's configuration says of it.
    pub kubelet_cgroup_driver: Option<String>,
    /// Below which the kubelet makes `kubepods`.
    pub cgroup_root: String,
    /// Where the kubelet keeps the logs of pods.
    pub pod_logs_dir: PathBuf,
    /// Where the journal is.
    pub state_dir: PathBuf,
    /// The admin socket.
    pub socket: PathBuf,
    /// How long a stop may take.
    pub shutdown_timeout: Duration,
    /// Perform no effect.
    pub dry_run: bool,
}

/// One mistake, with its remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where it lies.
    pub kind: ProblemKind,
    /// The thing and what is wrong with it.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// Where a mistake lies; decides the exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// On the command line.
    Usage,
    /// In what the command line points to.
    Configuration,
    /// In this program.
    Internal,
}

/// Looks at everything that the flags name.
pub async fn validate(flags: &NodeFlags) -> Result<Settings, Vec<Problem>> {
    let mut problems = Problems::default();
    let kube = problems.take(kubeconfig(flags.kubeconfig.as_deref()).await);
    let node_name = problems.take(node_name(flags.node_name.as_deref()));
    let cri_endpoint = problems.take(cri_endpoint(&flags.cri_endpoint));
    let kubelet_root = problems.take(kubelet_root(&flags.kubelet_root));
    let kubelet = problems.take(kubelet_configuration(flags.kubelet_config.as_deref()));
    let cgroup_root = problems.take(cgroup_root(flags.cgroup_root.as_deref(), kubelet.as_ref()));
    problems.take(writable("--state-dir", &flags.state_dir));
    problems.take(socket(&flags.socket.socket));
    let shutdown_timeout = problems.take(duration("--shutdown-timeout", &flags.shutdown_timeout));
    let all = (
        kube,
        node_name,
        cri_endpoint,
        kubelet_root,
        kubelet,
        cgroup_root,
        shutdown_timeout,
    );
    let (
        Some((kube, kubeconfig)),
        Some(node_name),
        Some(cri_endpoint),
        Some(kubelet_root),
        Some(kubelet),
        Some(cgroup_root),
        Some(shutdown_timeout),
        true,
    ) = (all.0, all.1, all.2, all.3, all.4, all.5, all.6, problems.0.is_empty())
    else {
        return Err(problems.0);
    };
    Ok(Settings {
        kube,
        kubeconfig,
        node_name,
        cri_endpoint,
        kubelet_root,
        cgroup_driver: flags.cgroup_driver,
        kubelet_cgroup_driver: kubelet.cgroup_driver,
        cgroup_root,
        pod_logs_dir: kubelet.pod_logs_dir.unwrap_or_else(|| DEFAULT_POD_LOGS_DIR.into()),
        state_dir: flags.state_dir.clone(),
        socket: flags.socket.socket.clone(),
        shutdown_timeout,
        dry_run: flags.dry_run,
    })
}

/// Without the drawing of the place that errors in YAML come with.
fn first_line(error: &dyn fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
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
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let ends_well = name.starts_with(char::is_alphanumeric) && name.ends_with(char::is_alphanumeric);
    if name.len() <= 253 && ends_well && name.chars().all(legal) {
        Ok(name)
    } else {
        Err(Problem::usage(
            format!("--node-name {name:?} cannot be the name of a Node"),
            "use the name that `kubectl get nodes` shows for this machine",
        ))
    }
}

fn cri_endpoint(text: &str) -> Result<CriEndpoint, Problem> {
    let endpoint: CriEndpoint = text.parse().map_err(|error| {
        Problem::usage(
            format!("--cri-endpoint {text}: {error}"),
            "use the form unix:///run/containerd/containerd.sock",
        )
    })?;
    match std::fs::metadata(endpoint.path()) {
        Ok(metadata) if !metadata.file_type().is_socket() => Err(Problem::configuration(
            format!("--cri-endpoint {text}: {} is not a socket", endpoint.path().display()),
            "name the socket that the container runtime listens on",
        )),
        // Not there yet: it is waited for.
        _ => Ok(endpoint),
    }
}

fn kubelet_root(root: &Path) -> Result<KubeletRoot, Problem> {
    let problem = |why: String| {
        Problem::configuration(
            format!("--kubelet-root {}: {why}", root.display()),
            "name the kubelet's --root-dir; it holds a directory called pods",
        )
    };
    let resolved = KubeletRoot::resolve(root).map_err(|error| problem(error.to_string()))?;
    if resolved.pods().is_dir() {
        Ok(resolved)
    } else {
        Err(problem("its entry \"pods\" is no directory".to_owned()))
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
            format!("--cgroup-root {root}: it must begin with / and hold no .."),
            "use the kubelet's cgroupRoot, such as / or /kubelet",
        ))
    }
}

/// A directory that is there and writable, or that could be made.
fn writable(flag: &str, dir: &Path) -> Result<(), Problem> {
    let problem = |why: String| {
        Problem::configuration(
            format!("{flag} {}: {why}", dir.display()),
            "name a directory on a disk that this user may write to",
        )
    };
    if !dir.is_absolute() {
        return Err(problem("it is not an absolute path".to_owned()));
    }
    let existing = dir.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
    if !existing.is_dir() {
        return Err(problem(format!("{} is not a directory", existing.display())));
    }
    if rustix::fs::statfs(existing).is_ok_and(|it| NOT_FOR_FILES.contains(&it.f_type)) {
        return Err(problem(format!(
            "nothing can be kept in the file system of {}",
            existing.display()
        )));
    }
    rustix::fs::access(existing, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|error| problem(format!("{} is not writable: {error}", existing.display())))
}

fn socket(path: &Path) -> Result<(), Problem> {
    // Not through a link: what is there is replaced, and must be a socket itself.
    if let Ok(metadata) = std::fs::symlink_metadata(path)
        && !metadata.file_type().is_socket()
    {
        let what = if metadata.is_dir() { "a directory" } else { "no socket" };
        return Err(Problem::configuration(
            format!("--socket {}: it is {what}", path.display()),
            "name a path for a socket, at which there is nothing else",
        ));
    }
    if !path.is_absolute() {
        return Err(Problem::configuration(
            format!("--socket {}: it is not an absolute path", path.display()),
            "name the path in full, such as /run/pod-teardown/pod-teardown.sock",
        ));
    }
    writable("--socket", path.parent().unwrap_or(Path::new("/")))
}

fn duration(flag: &str, text: &str) -> Result<Duration, Problem> {
    let parsed = match humantime::parse_duration(text) {
        // Only of zero the library takes the number alone.
        Ok(_) if !text.contains(char::is_alphabetic) => Err("it has no unit".to_owned()),
        Ok(duration) if duration > LONGEST => Err("it is longer than a day".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
    };
    parsed.map_err(|error| {
        Problem::usage(
            format!("{flag} {text}: {error}"),
            "write a number with its unit, such as 20s, 1500ms or 2m",
        )
    })
}

#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn take<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.0.push(problem)).ok()
    }
}

// === impl Problem ===

impl Problem {
    fn usage(what: impl Into<String>, remedy: &str) -> Self {
        Self {
            kind: ProblemKind::Usage,
            what: what.into(),
            remedy: remedy.to_owned(),
        }
    }

    /// A mistake in what the command line points to. Parsers draw the place on further lines; the first one says it.
    pub fn configuration(what: impl Into<String>, remedy: &str) -> Self {
        let what: String = what.into();
        Self {
            kind: ProblemKind::Configuration,
            what: what.lines().next().unwrap_or_default().to_owned(),
            remedy: remedy.to_owned(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

#[cfg(test)]
mod tests;
