//! `check`: reads, asks, and says what would stand in the way. Touches nothing.

use std::{fmt::Write as _, path::Path, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tokio::time::timeout;
use x509_parser::pem::Pem;

use crate::{
    agent,
    api::{ApiClient, ApiError},
    config::{Problem, ProblemKind, Settings},
    guard::PROC,
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

/// Looks at everything that the agent needs.
pub async fn all(settings: Settings) -> Vec<Row> {
    let mut rows = vec![Row::ok("configuration", "all flags and files can be read")];
    // Nothing here passes the gate; a dry run makes sure.
    let effects = Effects::new(true, std::sync::Arc::new(|| Ok(())));
    let machine = Identity::read(Path::new("/"));
    rows.extend(credentials(&settings.kube, Timestamp::now()));
    match ApiClient::new(
        settings.kube.clone(),
        settings.kubeconfig.clone(),
        effects.clone(),
        None,
        &settings.node_name,
    ) {
        Ok(api) => rows.extend(api_server(&api, &settings.node_name, &machine).await),
        Err(error) => rows.push(Row::new(
            "API server",
            Verdict::Configuration,
            error,
            "check the kubeconfig",
        )),
    }
    let cri = Cri::new(&settings.cri_endpoint, effects);
    rows.extend(runtime(&cri, &settings).await);
    rows.extend(other_hands(&settings));
    rows
}

async fn api_server(api: &ApiClient, node_name: &str, machine: &Identity) -> Vec<Row> {
    let mut rows = Vec::new();
    match answer(api.version()).await {
        Ok(version) => rows.push(Row::ok("API server", version)),
        Err(error) => {
            rows.push(unreachable_or_failed("API server", &error));
            return rows;
        }
    }
    match answer(api.node()).await {
        Ok(node) => rows.push(identity(&node, machine)),
        Err(ApiError::Refused { code: 404, .. }) => rows.push(Row::new(
            "Node",
            Verdict::Configuration,
            format!("there is no Node {node_name}"),
            "use the name that `kubectl get nodes` shows for this machine",
        )),
        Err(error) => rows.push(unreachable_or_failed("Node", &error)),
    }
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
        rows.push(match answer(api.may(&attributes)).await {
            Ok(true) => Row::ok(&what, "granted"),
            Ok(false) => Row::new(
                &what,
                Verdict::Failed,
                "not granted",
                "use the kubelet's credentials (user system:node:NAME, group system:nodes)",
            ),
            Err(error) => unreachable_or_failed(&what, &error),
        });
    }
    rows
}

fn identity(node: &Node, machine: &Identity) -> Row {
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let (machine_id, system_uuid) = info.map_or(("", ""), |info| (&info.machine_id, &info.system_uuid));
    let uid = node.metadata.uid.as_deref().unwrap_or_default();
    match machine.matches(machine_id, system_uuid) {
        Ok(()) => Row::ok("Node", format!("is this machine, UID {uid}")),
        Err(error) => Row::new(
            "Node",
            Verdict::Configuration,
            error,
            "give this machine's own Node as --node-name",
        ),
    }
}

async fn runtime(cri: &Cri, settings: &Settings) -> Vec<Row> {
    let mut rows = Vec::new();
    let endpoint: &CriEndpoint = &settings.cri_endpoint;
    match timeout(PATIENCE, version(cri)).await {
        Ok(Ok(version)) => rows.push(Row::ok(
            "runtime",
            format!("{} {}, CRI {}", version.name, version.version, version.api_version),
        )),
        Ok(Err(error)) if error.is_not_a_runtime() => {
            rows.push(Row::new(
                "runtime",
                Verdict::Configuration,
                error,
                "name the socket of containerd or CRI-O",
            ));
            return rows;
        }
        Ok(Err(error)) => {
            rows.push(Row::new(
                "runtime",
                Verdict::Unreachable,
                error,
                "start the container runtime, or correct --cri-endpoint",
            ));
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

fn other_hands(settings: &Settings) -> Vec<Row> {
    let lock = match PodsLock::acquire(settings.kubelet_root.pods(), Path::new(PROC)) {
        Ok(_) => Row::ok("other agents", "none"),
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
    let renew = "renew the certificate: kubeadm certs renew, or let the kubelet rotate it";
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

fn unreachable_or_failed(what: &str, error: &ApiError) -> Row {
    match error {
        ApiError::Unreachable { .. } | ApiError::Timeout { .. } => Row::new(
            what,
            Verdict::Unreachable,
            error,
            "check the server in the kubeconfig, and the network to it",
        ),
        ApiError::Refused { code: 401, .. } => Row::new(
            what,
            Verdict::Failed,
            error,
            "the server does not know these credentials: renew them",
        ),
        ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Held { .. } => Row::new(
            what,
            Verdict::Failed,
            error,
            "use the kubelet's credentials (user system:node:NAME, group system:nodes)",
        ),
    }
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
}
