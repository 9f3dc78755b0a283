//! Checks the API server: connection, credentials, rights and the identity of the Node.

use std::time::Duration;

use http::Uri;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::{
    item::Item,
    row::{CONFIGURATION, FAILURE, Row, UNAVAILABLE, Verdict},
};
use crate::{
    api::{
        ApiClient, ApiError, ErrorKind,
        expiry::{Expiry, expires_soon},
        with_timeout,
    },
    config::PodSettings,
    model::problems,
    node::identity::Identity,
};

/// Remedy for missing rights.
const USE_KUBELET_CREDENTIALS: &str = "set --kubeconfig to the kubelet's credentials, such as /etc/kubernetes/kubelet.conf, and \
    --node-name to the name in their user, system:node:NAME";
/// Remedy for errors that do not depend on the credentials.
const OTHER_ERROR: &str = "read `kubectl get --raw /readyz` and the API server's log, and then run the check again";

/// Timeout of each request to the API server or the runtime.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the API server. `recorded`: the Node UID in the journal.
pub(super) async fn server(
    api: &ApiClient,
    pods: &PodSettings,
    node_name: &str,
    machine: &Identity,
    recorded: Option<&str>,
) -> Vec<Row> {
    let url = &pods.kube.cluster_url;
    let mut rows = vec![match in_time(api.version()).await {
        Ok(version) => Row::ok(Item::API_SERVER, format!("{version} at {url}")),
        Err(error) => return vec![refused(url, Item::API_SERVER, &error)],
    }];
    rows.push(match in_time(api.node()).await {
        Ok(node) => identity(&node, machine, recorded),
        Err(error) if error.code() == Some(404) => Row::new(
            Item::NODE_IDENTITY,
            Verdict::Failed(CONFIGURATION),
            format!("Node {node_name} does not exist"),
            "set --node-name to the name that `kubectl get nodes` shows for this node",
        ),
        Err(error) => refused(url, Item::NODE_IDENTITY, &error),
    });
    let selector = json!({ "rawSelector": format!("spec.nodeName={node_name}") });
    let of_node = |verb| json!({ "verb": verb, "resource": "pods", "fieldSelector": selector });
    let status = |resource| json!({ "verb": "patch", "resource": resource, "subresource": "status" });
    let events = |verb| json!({ "verb": verb, "resource": "events" });
    let mut node_status = status("nodes");
    node_status["name"] = node_name.into();
    let rights = [
        (Item::LIST_PODS, of_node("list")),
        (Item::WATCH_PODS, of_node("watch")),
        (Item::PATCH_POD_STATUS, status("pods")),
        (Item::DELETE_PODS, json!({ "verb": "delete", "resource": "pods" })),
        (Item::PATCH_NODE_STATUS, node_status),
        (Item::CREATE_EVENTS, events("create")),
        (Item::PATCH_EVENTS, events("patch")),
    ];
    let lease = json!({
        "verb": "get", "group": "coordination.k8s.io", "resource": "leases", "namespace": "kube-node-lease", "name": node_name,
    });
    let needs_lease = pods.take_over_after.is_some();
    let lease = needs_lease.then_some((Item::GET_LEASE, lease));
    for (what, attributes) in rights.into_iter().chain(lease) {
        rows.push(match in_time(api.is_allowed(&attributes)).await {
            Ok(true) => Row::ok(what, "granted"),
            Ok(false) => Row::new(what, Verdict::Failed(FAILURE), "not granted", USE_KUBELET_CREDENTIALS),
            Err(error) => refused(url, what, &error),
        });
    }
    rows
}

fn refused(url: &Uri, what: Item, error: &ApiError) -> Row {
    let rejected = "renew the credentials in --kubeconfig, or set it to the kubelet's file: the API server rejects these credentials";
    let mut row = failed_query(what, error, "--kubeconfig", [rejected, USE_KUBELET_CREDENTIALS]);
    if row.verdict != Verdict::Failed(FAILURE) {
        row.message = format!("{url}: {error}");
    }
    row
}

/// The row for a request with the credentials of this flag that failed. The remedies are those for the codes 401 and 403.
pub(super) fn failed_query(what: Item, error: &ApiError, flag: &str, [rejected, forbidden]: [&str; 2]) -> Row {
    let (verdict, remedy) = match error.kind {
        ErrorKind::Unreachable {
            is_certificate_invalid: true,
            ..
        } => (
            Verdict::Failed(CONFIGURATION),
            format!("check certificate-authority-data and the server's name in {flag}, and the clock of this node"),
        ),
        ErrorKind::Unreachable { .. } | ErrorKind::UnverifiedServer(_) | ErrorKind::Timeout(_) => (
            Verdict::Failed(UNAVAILABLE),
            format!("check the server address in {flag}, and the network to it"),
        ),
        ErrorKind::Refused { code: 401, .. } => (Verdict::Failed(FAILURE), rejected.to_owned()),
        ErrorKind::Refused { code: 403, .. } => (Verdict::Failed(FAILURE), forbidden.to_owned()),
        ErrorKind::Refused { .. } | ErrorKind::Unreadable(_) | ErrorKind::Blocked(_) => {
            (Verdict::Failed(FAILURE), OTHER_ERROR.to_owned())
        }
    };
    Row::new(what, verdict, error, &remedy)
}

fn identity(node: &Node, machine: &Identity, recorded: Option<&str>) -> Row {
    const WHAT: Item = Item::NODE_IDENTITY;
    let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
    let (machine_id, system_uuid) = info.map_or(("", ""), |info| (&info.machine_id, &info.system_uuid));
    let uid = node.metadata.uid.as_deref().unwrap_or_default();
    let name = node.metadata.name.as_deref().unwrap_or("?");
    if let Err(error) = machine.matches(machine_id, system_uuid) {
        return Row::from_problem(WHAT, &problems::other_machine(name, &error));
    }
    if let Some(recorded) = recorded.filter(|recorded| *recorded != uid) {
        return Row::from_problem(WHAT, &problems::other_node(name, uid, recorded));
    }
    if machine_id.is_empty() && system_uuid.is_empty() {
        return Row::new(
            WHAT,
            Verdict::Warning,
            format!(
                "Node {name} (UID {uid}) has neither machineID nor systemUUID, so it is unknown whether it is this node"
            ),
            "check that --node-name is the Node of this node",
        );
    }
    Row::ok(WHAT, format!("Node {name} is this node, UID {uid}"))
}

/// Checks when credentials expire; `None` if they do not show it.
pub(super) fn credentials(what: Item, flag: &str, renew: &str, config: &kube::Config) -> Option<Row> {
    match Expiry::of_config(config) {
        Ok(expiry) => expiry.map(|expiry| expiry_row(what, renew, expiry, Timestamp::now())),
        Err(error) => Some(Row::new(
            what,
            Verdict::Failed(CONFIGURATION),
            error,
            &format!("correct the client certificate and key in {flag}"),
        )),
    }
}

fn expiry_row(what: Item, renew: &str, expiry: Expiry, now: Timestamp) -> Row {
    let end = expiry.expires_at;
    let (verdict, state, remedy) = if end <= now {
        (Verdict::Failed(CONFIGURATION), "expired", renew)
    } else if expires_soon(end, now) {
        (Verdict::Warning, "expires soon,", renew)
    } else {
        (Verdict::Ok, "expires", "")
    };
    let seen = format!("{}, {state} at {end}", expiry.credential_kind);
    Row::new(what, verdict, seen, remedy)
}

pub(super) async fn in_time<T>(request: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
    with_timeout(REQUEST_TIMEOUT, "GET", "/", request).await
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ops::remedies::RENEW;

    /// Words of the remedy that names other credentials.
    pub const USE: &str = "the kubelet's credentials";

    /// All errors, their verdicts, and words of their remedies.
    pub fn errors() -> Vec<(ApiError, Verdict, &'static str)> {
        let error = |kind| ApiError::new("GET", "/version", kind);
        let refused = |code| ApiError::refused("GET", "/version", code, None, b"no");
        let unreachable = |is_certificate_invalid| {
            let cause = "no".to_owned();
            error(ErrorKind::Unreachable {
                cause,
                is_certificate_invalid,
            })
        };
        let unverified = |why| error(ErrorKind::UnverifiedServer(Box::new(why)));
        let timeout = error(ErrorKind::Timeout(Duration::from_secs(10)));
        let unreadable = error(ErrorKind::Unreadable("no JSON".to_owned()));
        vec![
            (refused(401), Verdict::Failed(FAILURE), "renew the credentials"),
            (refused(403), Verdict::Failed(FAILURE), USE),
            (refused(404), Verdict::Failed(FAILURE), "run the check again"),
            (refused(500), Verdict::Failed(FAILURE), "run the check again"),
            (
                unreachable(true),
                Verdict::Failed(CONFIGURATION),
                "certificate-authority-data",
            ),
            (unreachable(false), Verdict::Failed(UNAVAILABLE), "the network"),
            (
                unverified(unreachable(false)),
                Verdict::Failed(UNAVAILABLE),
                "the network",
            ),
            (timeout, Verdict::Failed(UNAVAILABLE), "the network"),
            (unreadable, Verdict::Failed(FAILURE), "run the check again"),
        ]
    }

    #[test]
    fn every_error_of_the_server_has_a_remedy() {
        let url = "http://127.0.0.1:1".parse().unwrap();
        for (error, verdict, words) in errors() {
            let row = refused(&url, Item::NODE_IDENTITY, &error);
            row.assert_helps();
            assert!(
                row.verdict == verdict && row.remedy.contains(words),
                "{error:?}: {row:?}"
            );
        }
    }

    #[test]
    fn expiring_credentials_have_a_remedy() {
        let end = |text: &str| Expiry {
            credential_kind: "a certificate",
            expires_at: text.parse().unwrap(),
        };
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        for (end, verdict) in [
            (end("2026-01-02T00:00:00Z"), Verdict::Failed(CONFIGURATION)),
            (end("2026-01-08T23:59:59Z"), Verdict::Warning),
            (end("2026-01-09T00:00:00Z"), Verdict::Ok),
        ] {
            let row = expiry_row(Item::CREDENTIALS, RENEW, end, now);
            row.assert_helps();
            assert_eq!(row.verdict, verdict, "{row:?}");
        }
    }

    #[test]
    fn node_must_be_this_host_and_the_recorded_one() {
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
            ("m", Some("v"), Verdict::Failed(CONFIGURATION)),
            ("n", Some("u"), Verdict::Failed(CONFIGURATION)),
            ("", Some("u"), Verdict::Warning),
            ("", Some("v"), Verdict::Failed(CONFIGURATION)),
        ] {
            let row = identity(&node(machine_id), &here, recorded);
            assert_eq!(row.verdict, verdict, "{machine_id} {recorded:?}: {row:?}");
            row.assert_helps();
        }
        assert_eq!(identity(&Node::default(), &here, None).verdict, Verdict::Warning);
    }
}
