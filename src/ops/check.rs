//! `check`: reads, asks, and says what would stand in the way. Touches nothing.

use std::{fmt::Write as _, os::unix::fs::FileTypeExt as _, path::Path, time::Duration};

use http::Uri;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::{net::UnixStream, time::timeout};
use x509_parser::pem::Pem;

use crate::{
    agent,
    api::{ApiClient, ApiError},
    config::{Problem, ProblemKind, Settings},
    guard::PROC,
    journal::{
        self,
        peek::{Peek, peek},
    },
    node::{
        cgroups::Cgroups,
        cri::{Cri, CriEndpoint, CriError, types::RuntimeVersion},
        effects::Effects,
        identity::Identity,
        kubelet_process,
        lock::{LockError, PodsLock},
    },
};

/// Whoever takes longer counts as not to be reached.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a runtime is asked before it counts as not to be reached.
const ASKED: u32 = 10;
/// From here on a certificate's end is worth a warning.
const EXPIRES_SOON: SignedDuration = SignedDuration::from_hours(7 * 24);
/// What a unix socket's address holds, without the NUL at its end.
const LONGEST_SOCKET: usize = 107;
/// For rights that are missing.
const USE_THE_KUBELETS: &str = "use the kubelet's credentials (user system:node:NAME, group system:nodes)";
/// From sysexits.h: the command was used wrongly.
const USAGE: u8 = 64;
/// From sysexits.h: a service cannot be reached.
const UNAVAILABLE: u8 = 69;
/// From sysexits.h: something is configured wrongly.
const CONFIGURATION: u8 = 78;

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// What was looked at.
    pub what: String,
    /// How it is.
    pub verdict: Verdict,
    /// What was seen.
    pub seen: String,
    /// What to do, if anything.
    pub remedy: String,
}

/// How a thing is; failures by the exit code that they ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Works, and is worth a look.
    Warning,
    /// Wrong on the command line.
    Usage,
    /// Configured wrongly.
    Configuration,
    /// Cannot be reached.
    Unreachable,
    /// Anything else.
    Failed,
}

/// The API server as it is asked here.
struct Server<'a> {
    api: &'a ApiClient,
    url: &'a Uri,
    node_name: &'a str,
    /// The Node whose credentials these are, if they are of another than the one asked for.
    credentials_of: Option<String>,
}

/// Looks at everything that the agent needs.
pub async fn all(settings: Settings) -> Vec<Row> {
    let mut rows = vec![Row::ok("configuration", "all flags and files can be read")];
    // Nothing here passes the gate; a dry run makes sure.
    let effects = Effects::new(true, std::sync::Arc::new(|| Ok(())));
    let machine = Identity::read(Path::new("/"));
    let lock = PodsLock::acquire(settings.kubelet_root.pods(), Path::new(PROC)).map(drop);
    let runs = matches!(lock, Err(LockError::Taken { .. }));
    // A dry run has neither journal nor socket.
    let (mut own, mut recorded) = (Vec::new(), None);
    if !settings.dry_run {
        let (row, uid) = journal(&settings.state_dir, runs);
        recorded = uid;
        own = vec![row, socket(&settings.socket, runs).await];
    }
    rows.extend(credentials(&settings.kube, Timestamp::now()));
    match ApiClient::new(
        settings.kube.clone(),
        settings.kubeconfig.clone(),
        effects.clone(),
        None,
        &settings.node_name,
    ) {
        Ok(api) => {
            let server = Server {
                api: &api,
                url: &settings.kube.cluster_url,
                node_name: &settings.node_name,
                credentials_of: None,
            };
            rows.extend(server.check(&machine, recorded.as_deref()).await);
        }
        Err(error) => rows.push(Row::new(
            "API server",
            Verdict::Configuration,
            error,
            "check the kubeconfig",
        )),
    }
    let cri = Cri::new(&settings.cri_endpoint, effects);
    rows.extend(runtime(&cri, &settings).await);
    rows.extend(own);
    rows.extend(other_hands(&settings, lock));
    rows
}

/// Also the UID of the Node that it was made for.
fn journal(state_dir: &Path, agent_runs: bool) -> (Row, Option<String>) {
    const WHAT: &str = "journal";
    let file = state_dir.join(journal::FILE);
    let file = file.display();
    let row = match peek(state_dir) {
        Ok(Peek::Node(Some(uid))) => return (Row::ok(WHAT, format!("made for the Node with UID {uid}")), Some(uid)),
        Ok(Peek::Node(None)) => Row::ok(WHAT, "new"),
        Ok(Peek::InUse) if agent_runs => Row::new(
            WHAT,
            Verdict::Warning,
            format!("{file} is open, so the Node's UID is not compared with what it says"),
            "this is fine if it is the service",
        ),
        Ok(Peek::InUse) => Row::new(
            WHAT,
            Verdict::Configuration,
            format!("{file} is open in an agent that works for another --kubelet-root"),
            "give each agent a --state-dir of its own",
        ),
        Err(error) => Row::new(
            WHAT,
            Verdict::Configuration,
            format!("{file}: {error}"),
            "move it away; what is lost by it: grace that was used, hooks that have ended, which Node this was",
        ),
    };
    (row, None)
}

/// Whether the admin socket can be made.
async fn socket(path: &Path, agent_runs: bool) -> Row {
    const WHAT: &str = "admin socket";
    let shown = path.display();
    if path.as_os_str().len() > LONGEST_SOCKET {
        let seen =
            format!("--socket {shown}: it is longer than the {LONGEST_SOCKET} bytes that a socket's path may have");
        return Row::new(WHAT, Verdict::Configuration, seen, "name a shorter path");
    }
    match std::fs::symlink_metadata(path) {
        Err(_) => return Row::ok(WHAT, "can be made"),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            let seen = format!("--socket {shown}: there is something that is no socket");
            return Row::new(WHAT, Verdict::Configuration, seen, "name a path for a socket");
        }
        Ok(_) => {}
    }
    match timeout(PATIENCE, UnixStream::connect(path)).await {
        Ok(Ok(_)) if agent_runs => Row::new(
            WHAT,
            Verdict::Warning,
            format!("an agent listens on {shown}"),
            "this is fine if it is the service",
        ),
        Ok(Ok(_)) | Err(_) => Row::new(
            WHAT,
            Verdict::Configuration,
            format!("--socket {shown}: another process listens there"),
            "name another path, or stop that process",
        ),
        Ok(Err(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => Row::new(
            WHAT,
            Verdict::Failed,
            format!("--socket {shown}: {error}"),
            "run the check as root",
        ),
        Ok(Err(_)) => Row::ok(WHAT, "can be made; a dead agent's is replaced"),
    }
}

// === impl Server ===

impl Server<'_> {
    async fn check(mut self, machine: &Identity, recorded: Option<&str>) -> Vec<Row> {
        let mut rows = Vec::new();
        match answer(self.api.version()).await {
            Ok(version) => rows.push(Row::ok("API server", version)),
            Err(error) => {
                rows.push(self.refused("API server", &error));
                return rows;
            }
        }
        match answer(self.api.node()).await {
            Ok(node) => rows.push(identity(&node, machine, recorded)),
            Err(ApiError::Refused { code: 404, .. }) => rows.push(Row::new(
                "Node",
                Verdict::Configuration,
                format!("there is no Node {}", self.node_name),
                "use the name that `kubectl get nodes` shows for this machine",
            )),
            Err(error) => {
                self.credentials_of = other_node(&error, self.node_name);
                rows.push(self.refused("Node", &error));
            }
        }
        rows.extend(self.rights().await);
        rows
    }

    async fn rights(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let node_name = self.node_name;
        let rights = [
            (
                "list pods",
                json!({ "verb": "list", "resource": "pods", "fieldSelector": { "rawSelector": format!("spec.nodeName={node_name}") } }),
            ),
            (
                "watch pods",
                json!({ "verb": "watch", "resource": "pods", "fieldSelector": { "rawSelector": format!("spec.nodeName={node_name}") } }),
            ),
            (
                "patch pods/status",
                json!({ "verb": "patch", "resource": "pods", "subresource": "status" }),
            ),
            ("delete pods", json!({ "verb": "delete", "resource": "pods" })),
            ("create events", json!({ "verb": "create", "resource": "events" })),
        ];
        for (what, attributes) in rights {
            let what = format!("right to {what}");
            rows.push(match answer(self.api.may(&attributes)).await {
                Ok(true) => Row::ok(&what, "granted"),
                Ok(false) => Row::new(&what, Verdict::Failed, "not granted", &self.use_others()),
                Err(error) => self.refused(&what, &error),
            });
        }
        rows
    }

    fn refused(&self, what: &str, error: &ApiError) -> Row {
        let named = format!("{}: {error}", self.url);
        match error {
            ApiError::Unreachable { cause, .. } if cause.contains("invalid peer certificate") => Row::new(
                what,
                Verdict::Configuration,
                named,
                "check certificate-authority-data and the server's name in the kubeconfig, and this machine's clock",
            ),
            ApiError::Unreachable { .. } | ApiError::Timeout { .. } => Row::new(
                what,
                Verdict::Unreachable,
                named,
                "check the server in the kubeconfig, and the network to it",
            ),
            ApiError::Refused { code: 401, .. } => Row::new(
                what,
                Verdict::Failed,
                error,
                "the server does not know these credentials: renew them",
            ),
            ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Held { .. } => {
                Row::new(what, Verdict::Failed, error, &self.use_others())
            }
        }
    }

    fn use_others(&self) -> String {
        match &self.credentials_of {
            Some(other) => format!(
                "the credentials are those of system:node:{other}, and --node-name is {}: give --node-name {other}, or the \
                 kubeconfig of {}",
                self.node_name, self.node_name
            ),
            None => USE_THE_KUBELETS.to_owned(),
        }
    }
}

/// Another Node's name, if the server says that the credentials are its.
fn other_node(error: &ApiError, node_name: &str) -> Option<String> {
    let ApiError::Refused { code: 403, message, .. } = error else {
        return None;
    };
    let (_, rest) = message.split_once("User \"system:node:")?;
    let (user, _) = rest.split_once('"')?;
    (user != node_name).then(|| user.to_owned())
}

fn identity(node: &Node, machine: &Identity, recorded: Option<&str>) -> Row {
    const WHAT: &str = "Node";
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let (machine_id, system_uuid) = info.map_or(("", ""), |info| (&info.machine_id, &info.system_uuid));
    let uid = node.metadata.uid.as_deref().unwrap_or_default();
    if let Err(error) = machine.matches(machine_id, system_uuid) {
        return Row::new(
            WHAT,
            Verdict::Configuration,
            error,
            "give this machine's own Node as --node-name",
        );
    }
    if let Some(recorded) = recorded.filter(|recorded| *recorded != uid) {
        return Row::new(
            WHAT,
            Verdict::Configuration,
            format!("its UID is {uid}, and the journal was made for {recorded}: the agent would touch nothing"),
            "see that this is the right cluster; if the node was registered anew, move the journal away",
        );
    }
    if machine_id.is_empty() && system_uuid.is_empty() {
        return Row::new(
            WHAT,
            Verdict::Warning,
            format!("has neither machineID nor systemUUID, UID {uid}"),
            "whether it is this machine cannot be told: see yourself that --node-name is right",
        );
    }
    Row::ok(WHAT, format!("is this machine, UID {uid}"))
}

async fn runtime(cri: &Cri, settings: &Settings) -> Vec<Row> {
    let mut rows = Vec::new();
    let endpoint: &CriEndpoint = &settings.cri_endpoint;
    match timeout(PATIENCE, version(cri)).await {
        Ok(Ok(version)) => rows.push(Row::ok(
            "runtime",
            format!("{} {}, CRI {}", version.name, version.version, version.api_version),
        )),
        Ok(Err(error)) => {
            let seen = format!("{endpoint}: {error}");
            rows.push(if error.is_not_a_runtime() {
                let remedy = "name the socket of containerd or CRI-O";
                Row::new("runtime", Verdict::Configuration, seen, remedy)
            } else if seen.contains("Permission denied") {
                Row::new(
                    "runtime",
                    Verdict::Unreachable,
                    seen,
                    "run the check, and the agent, as root",
                )
            } else {
                let remedy = "start the container runtime, or correct --cri-endpoint";
                Row::new("runtime", Verdict::Unreachable, seen, remedy)
            });
            return rows;
        }
        Err(_) => {
            let seen = format!("{endpoint}: no answer within {PATIENCE:?}");
            rows.push(Row::new(
                "runtime",
                Verdict::Unreachable,
                seen,
                "look at the container runtime's log",
            ));
            return rows;
        }
    }
    rows.push(match agent::same_mount_namespace(Path::new(PROC), endpoint).await {
        Ok(()) => Row::ok("mount namespace", "the runtime's"),
        Err(problem) => Row::from_problem("mount namespace", &problem),
    });
    let cgroups = match Cgroups::detect(Path::new(agent::MOUNTINFO), Path::new(agent::CGROUP_ROOT)) {
        Ok(cgroups) => cgroups,
        Err(error) => {
            let row = Row::new("cgroups", Verdict::Configuration, error, "mount /sys/fs/cgroup");
            rows.push(row);
            return rows;
        }
    };
    let kubelet = settings.kubelet_cgroup_driver.as_deref();
    let driver = agent::driver(settings.cgroup_driver, cri, kubelet, &cgroups, &settings.cgroup_root).await;
    rows.push(match driver {
        Ok(driver) => {
            let driver = format!("{driver:?}").to_lowercase();
            Row::ok("cgroups", format!("{driver} driver, {cgroups}"))
        }
        Err(problem) => Row::from_problem("cgroups", &problem),
    });
    rows
}

/// Whoever greets in another protocol and hangs up may be gone before the question is sent, and then looks like a
/// runtime that is away. So it is asked a few times.
async fn version(cri: &Cri) -> Result<RuntimeVersion, CriError> {
    for _ in 1..ASKED {
        match cri.version().await {
            Err(error) if error.is_unreachable() => {}
            answer => return answer,
        }
    }
    cri.version().await
}

fn other_hands(settings: &Settings, lock: Result<(), LockError>) -> Vec<Row> {
    let lock = match lock {
        Ok(()) => Row::ok("other agents", "none"),
        Err(error @ LockError::Taken { .. }) => Row::new(
            "other agents",
            Verdict::Warning,
            error,
            "only one can run; this is fine if it is the service",
        ),
        Err(error) => Row::new("other agents", Verdict::Failed, error, "run the check as root"),
    };
    let kubelet = match kubelet_process::find(Path::new(PROC), &settings.kubelet_root) {
        Ok(found) => match found.first() {
            None => Row::ok("kubelet", "none works on this node's pods"),
            Some(kubelet) => Row::new(
                "kubelet",
                Verdict::Warning,
                format!("{} (pid {})", kubelet.command, kubelet.pid),
                "the agent touches nothing while it is there",
            ),
        },
        Err(error) => Row::new("kubelet", Verdict::Failed, error, "run the check as root"),
    };
    vec![lock, kubelet]
}

/// The certificate in the kubeconfig, if it has one.
fn credentials(config: &kube::Config, now: Timestamp) -> Option<Row> {
    const WHAT: &str = "credentials";
    let pem = match (
        &config.auth_info.client_certificate_data,
        &config.auth_info.client_certificate,
    ) {
        (Some(data), _) => {
            use base64::{Engine as _, engine::general_purpose::STANDARD};
            STANDARD.decode(data).map_err(|error| error.to_string())
        }
        (None, Some(file)) => std::fs::read(file).map_err(|error| format!("{file}: {error}")),
        (None, None) => return None,
    };
    let end = pem.and_then(|pem| certificate_end(&pem));
    // kubeadm renews no client certificate of a kubelet.
    let renew = "a kubelet renews its own while it runs: start it for a while, with a bootstrap kubeconfig if the \
        certificate has expired, or have a new one signed for system:node:NAME of group system:nodes";
    Some(match end {
        Err(error) => Row::new(
            WHAT,
            Verdict::Configuration,
            error,
            "check the client certificate in the kubeconfig",
        ),
        Ok(end) if end <= now => Row::new(WHAT, Verdict::Configuration, format!("expired at {end}"), renew),
        Ok(end) if end.duration_since(now) < EXPIRES_SOON => {
            Row::new(WHAT, Verdict::Warning, format!("expire at {end}"), renew)
        }
        Ok(end) => Row::ok(WHAT, format!("a certificate, good until {end}")),
    })
}

fn certificate_end(pem: &[u8]) -> Result<Timestamp, String> {
    // The first certificate is the client's own; a key may lie in the same file.
    for block in Pem::iter_from_buffer(pem) {
        let block = block.map_err(|error| error.to_string())?;
        if block.label == "CERTIFICATE" {
            let certificate = block.parse_x509().map_err(|error| error.to_string())?;
            let end = certificate.validity().not_after.timestamp();
            return Timestamp::from_second(end).map_err(|error| error.to_string());
        }
    }
    Err("no certificate in it".to_owned())
}

async fn answer<T>(request: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    timeout(PATIENCE, request).await.unwrap_or_else(|_| {
        Err(ApiError::Timeout {
            verb: "GET",
            path: "/".to_owned(),
            after: PATIENCE,
        })
    })
}

/// All rows, for people.
pub fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.what.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for row in rows {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{:4}  {:width$}  {}", row.verdict.word(), row.what, row.seen);
        if row.verdict != Verdict::Ok {
            let _ = writeln!(out, "      {:width$}  → {}", "", row.remedy);
        }
    }
    out
}

/// The first that applies: usage, configuration, unreachable, anything else.
pub fn exit_code(rows: &[Row]) -> u8 {
    let any = |verdict| rows.iter().any(|row| row.verdict == verdict);
    if any(Verdict::Usage) {
        USAGE
    } else if any(Verdict::Configuration) {
        CONFIGURATION
    } else if any(Verdict::Unreachable) {
        UNAVAILABLE
    } else {
        u8::from(any(Verdict::Failed))
    }
}

// === impl Verdict ===

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "note",
            Self::Usage | Self::Configuration | Self::Unreachable | Self::Failed => "FAIL",
        }
    }
}

// === impl Row ===

impl Row {
    #[allow(clippy::needless_pass_by_value, reason = "errors and texts alike end here")]
    fn new(what: &str, verdict: Verdict, seen: impl ToString, remedy: &str) -> Self {
        Self {
            what: what.to_owned(),
            verdict,
            seen: seen.to_string(),
            remedy: remedy.to_owned(),
        }
    }

    fn ok(what: &str, seen: impl ToString) -> Self {
        Self::new(what, Verdict::Ok, seen, "")
    }

    fn from_problem(what: &str, problem: &Problem) -> Self {
        let verdict = match problem.kind {
            ProblemKind::Usage => Verdict::Usage,
            ProblemKind::Configuration => Verdict::Configuration,
            ProblemKind::Internal => Verdict::Failed,
        };
        Self::new(what, verdict, &problem.what, &problem.remedy)
    }
}

impl From<Problem> for Row {
    fn from(problem: Problem) -> Self {
        Self::from_problem("configuration", &problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_kind_of_failure_that_applies_decides_the_exit_code() {
        let rows = |verdicts: &[Verdict]| {
            verdicts
                .iter()
                .map(|verdict| Row::new("x", *verdict, "", ""))
                .collect::<Vec<_>>()
        };
        let cases: [(&[Verdict], u8); 7] = [
            (&[], 0),
            (&[Verdict::Ok, Verdict::Warning], 0),
            (&[Verdict::Failed, Verdict::Ok], 1),
            (&[Verdict::Failed, Verdict::Unreachable], 69),
            (&[Verdict::Unreachable, Verdict::Configuration], 78),
            (&[Verdict::Failed, Verdict::Configuration], 78),
            (&[Verdict::Configuration, Verdict::Usage], 64),
        ];
        for (verdicts, code) in cases {
            assert_eq!(exit_code(&rows(verdicts)), code, "{verdicts:?}");
        }
    }

    #[test]
    fn a_failure_shows_its_remedy_below() {
        let table = table(&[
            Row::ok("runtime", "containerd 1"),
            Row::new("Node", Verdict::Failed, "none", "do this"),
        ]);
        assert_eq!(
            table,
            "ok    runtime  containerd 1\nFAIL  Node     none\n               → do this\n"
        );
    }

    #[test]
    fn a_node_must_be_this_machine_and_the_recorded_one() {
        let here = Identity {
            machine_id: Some("m".to_owned()),
            ..Identity::default()
        };
        let node = |machine_id: &str| {
            let node = json!({ "metadata": { "uid": "u" }, "status": { "nodeInfo": {
                "machineID": machine_id, "systemUUID": "", "bootID": "", "kernelVersion": "", "osImage": "",
                "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "", "operatingSystem": "",
                "architecture": "",
            } } });
            serde_json::from_value::<Node>(node).unwrap()
        };
        for (machine_id, recorded, verdict) in [
            ("m", None, Verdict::Ok),
            ("m", Some("u"), Verdict::Ok),
            ("m", Some("v"), Verdict::Configuration),
            ("n", Some("u"), Verdict::Configuration),
            ("", Some("u"), Verdict::Warning),
            ("", Some("v"), Verdict::Configuration),
        ] {
            let row = identity(&node(machine_id), &here, recorded);
            assert_eq!(row.verdict, verdict, "{machine_id} {recorded:?}: {row:?}");
        }
        assert_eq!(identity(&Node::default(), &here, None).verdict, Verdict::Warning);
    }

    #[tokio::test]
    async fn a_path_on_which_no_socket_can_be_made_is_a_mistake() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let plain = at("plain");
        std::fs::write(&plain, "").unwrap();
        let alive = std::os::unix::net::UnixListener::bind(at("alive")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(at("dead")).unwrap());
        for (path, agent_runs, verdict) in [
            (at("none"), false, Verdict::Ok),
            (at("dead"), false, Verdict::Ok),
            (at("alive"), true, Verdict::Warning),
            (at("alive"), false, Verdict::Configuration),
            (plain, false, Verdict::Configuration),
            (at(&"x".repeat(108)), false, Verdict::Configuration),
        ] {
            let row = socket(&path, agent_runs).await;
            assert_eq!(row.verdict, verdict, "{path:?}: {row:?}");
        }
        drop(alive);
    }
}
