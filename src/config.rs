//! From flags to settings: everything is looked at before anything is touched, and all mistakes are told at once.

use std::{
    fmt,
    os::unix::fs::FileTypeExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use kube::config::{KubeConfigOptions, Kubeconfig};
use serde::Deserialize;

use crate::{
    cli::{CgroupDriverFlag, NodeFlags},
    node::{cri::CriEndpoint, kubelet_root::KubeletRoot},
};

/// The kubelet's default for `podLogsDir`.
const DEFAULT_POD_LOGS_DIR: &str = "/var/log/pods";

/// The only version of the kubelet's configuration that there is.
const KUBELET_CONFIG_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
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

/// The kubelet's configuration, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KubeletConfiguration {
    api_version: String,
    kind: String,
    cgroup_driver: Option<String>,
    cgroup_root: Option<String>,
    #[serde(rename = "cgroupsPerQOS")]
    cgroups_per_qos: Option<bool>,
    pod_logs_dir: Option<PathBuf>,
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

/// Reads a kubeconfig and everything that it points to.
pub async fn read_kubeconfig(path: &Path) -> Result<kube::Config, String> {
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| first_line(&error))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| error.to_string())?;
    let server = &config.cluster_url;
    if !matches!(server.scheme_str(), Some("https" | "http")) || server.host().unwrap_or_default().is_empty() {
        return Err(format!("server {server} must be https://host:port"));
    }
    // What a retry means differs from caller to caller; each has its own.
    config.default_retry = false;
    config.connect_timeout = Some(Duration::from_secs(5));
    Ok(config)
}

/// A kubeconfig, and the files that it names.
pub fn credential_files(path: &Path) -> Vec<PathBuf> {
    let kubeconfig = Kubeconfig::read_from(path).unwrap_or_default();
    let clusters = kubeconfig.clusters.into_iter().filter_map(|it| it.cluster);
    let users = kubeconfig.auth_infos.into_iter().filter_map(|it| it.auth_info);
    let of_clusters = clusters.filter_map(|it| it.certificate_authority);
    let of_users = users.flat_map(|it| [it.client_certificate, it.client_key, it.token_file]);
    let named = of_clusters.chain(of_users.flatten()).map(PathBuf::from);
    std::iter::once(path.to_owned()).chain(named).collect()
}

async fn kubeconfig(path: Option<&Path>) -> Result<(kube::Config, PathBuf), Problem> {
    let Some(path) = path else {
        return Err(Problem::usage(
            "--kubeconfig is missing",
            "name a kubeconfig, such as the kubelet's own: --kubeconfig /etc/kubernetes/kubelet.conf",
        ));
    };
    let config = read_kubeconfig(path).await.map_err(|error| {
        Problem::configuration(
            format!("--kubeconfig {}: {error}", path.display()),
            "check that it is a kubeconfig, and that the certificates and tokens it points to are there and readable",
        )
    })?;
    Ok((config, path.to_owned()))
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

fn kubelet_configuration(path: Option<&Path>) -> Result<KubeletConfiguration, Problem> {
    let Some(path) = path else {
        return Ok(KubeletConfiguration::default());
    };
    let problem = |why: String| {
        Problem::configuration(
            format!("--kubelet-config {}: {why}", path.display()),
            "name the file that the kubelet has as --config, a KubeletConfiguration",
        )
    };
    let text = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
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

fn is_cgroup_root(root: &str) -> bool {
    root.starts_with('/') && !root.split('/').any(|part| part == "..")
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
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn flags(args: &[&str]) -> NodeFlags {
        let all = ["pod-teardown", "run"].iter().chain(args);
        match Cli::try_parse_from(all).unwrap().verb {
            Verb::Run(flags) => flags,
            other => panic!("not run: {other:?}"),
        }
    }

    #[tokio::test]
    async fn all_mistakes_are_told_at_once_each_with_its_thing_and_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        std::fs::write(&plain, "nothing").unwrap();
        let plain = plain.to_str().unwrap();
        let endpoint = format!("unix://{plain}");
        let state = format!("{plain}/state");
        let problems = validate(&flags(&[
            "--kubeconfig",
            "/nowhere/kubeconfig",
            "--node-name",
            "UPPER",
            "--cri-endpoint",
            &endpoint,
            "--kubelet-root",
            "/nowhere/kubelet",
            "--kubelet-config",
            plain,
            "--cgroup-root",
            "../x",
            "--state-dir",
            &state,
            "--shutdown-timeout",
            "20",
        ]))
        .await
        .unwrap_err();
        for thing in [
            "--kubeconfig /nowhere/kubeconfig",
            "--node-name",
            "is not a socket",
            "--kubelet-root",
            "--kubelet-config",
            "--cgroup-root",
            "--state-dir",
            "--shutdown-timeout 20",
        ] {
            assert!(
                problems.iter().any(|problem| problem.what.contains(thing)),
                "{thing} is missing in {problems:#?}"
            );
        }
        assert!(
            problems
                .iter()
                .all(|problem| !problem.remedy.is_empty() && !problem.to_string().contains('\n')),
            "{problems:#?}"
        );
    }

    #[test]
    fn a_duration_needs_its_unit() {
        assert!(duration("--x", "20").is_err());
        assert!(duration("--x", "").is_err());
        assert!(duration("--x", "0").is_err());
        assert!(duration("--x", "584554531y").is_err());
        assert_eq!(duration("--x", "0s").unwrap(), Duration::ZERO);
        assert_eq!(duration("--x", "1500ms").unwrap(), Duration::from_millis(1500));
    }

    #[test]
    fn credentials_come_from_the_kubeconfig_and_the_files_that_it_names() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        let text = "{kind: Config, clusters: [{name: c, cluster: {server: 'https://x', certificate-authority: ca.crt}}], \
                    users: [{name: u, user: {client-certificate: /pki/c.pem, client-key: /pki/k.pem, tokenFile: token}}]}";
        std::fs::write(&file, text).unwrap();
        let near = |name: &str| dir.path().join(name);
        let expected = [
            near("kubeconfig"),
            near("ca.crt"),
            "/pki/c.pem".into(),
            "/pki/k.pem".into(),
            near("token"),
        ];
        assert_eq!(credential_files(&file), expected);
    }

    #[test]
    fn what_the_kubelet_was_told_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: cgroupfs\ncgroupRoot: /kubelet\npodLogsDir: /logs\nextra: {a: 1}\n").unwrap();
        let config = kubelet_configuration(Some(&file)).unwrap();
        assert_eq!(config.cgroup_driver.as_deref(), Some("cgroupfs"));
        assert_eq!(cgroup_root(None, Some(&config)).unwrap(), "/kubelet");
        assert_eq!(
            cgroup_root(Some("/mine"), Some(&config)).unwrap(),
            "/mine",
            "a flag counts more"
        );
        assert_eq!(config.pod_logs_dir.as_deref(), Some(Path::new("/logs")));
    }

    #[test]
    fn only_a_configuration_of_a_kubelet_is_taken_and_its_empty_values_are_defaults() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            kubelet_configuration(Some(&file)).map_err(|problem| problem.to_string())
        };
        let head = format!("apiVersion: {KUBELET_CONFIG_VERSION}\nkind: KubeletConfiguration\n");
        let empty = read(&format!("{head}cgroupDriver: ''\ncgroupRoot: ''\npodLogsDir: ''\n")).unwrap();
        assert_eq!(
            (empty.cgroup_driver, empty.cgroup_root, empty.pod_logs_dir),
            (None, None, None)
        );
        for (text, why) in [
            ("", "kind is \"\""),
            ("foo: bar\n", "kind is \"\""),
            ("apiVersion: v1\nkind: Pod\n", "kind is \"Pod\""),
            (
                "apiVersion: kubelet.config.k8s.io/v9\nkind: KubeletConfiguration\n",
                "v9",
            ),
            (&format!("{head}cgroupRoot: ../../x\n"), "cgroupRoot ../../x"),
            (&format!("{head}cgroupDriver: bogus\n"), "\"bogus\" is unknown"),
        ] {
            let told = read(text).unwrap_err();
            assert!(
                told.contains("--kubelet-config") && told.contains(why),
                "{text:?}: {told}"
            );
        }
    }

    #[tokio::test]
    async fn a_server_is_a_url_with_scheme_and_host() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        let read = async |server: &str| {
            let text = format!(
                "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: {server:?}}}}}], \
                 contexts: [{{name: c, context: {{cluster: c, user: c}}}}], users: [{{name: c, user: {{}}}}]}}"
            );
            std::fs::write(&file, text).unwrap();
            read_kubeconfig(&file).await.map(drop)
        };
        for wrong in ["127.0.0.1:18080", "ftp://x", "localhost", "/x"] {
            let told = read(wrong).await.unwrap_err();
            assert!(
                told.contains(wrong) && told.contains("must be https://host:port"),
                "{told}"
            );
        }
        for right in ["https://10.0.0.1:6443", "https://[::1]:6443/prefix", "http://localhost"] {
            assert_eq!(read(right).await, Ok(()), "{right}");
        }
    }
}
