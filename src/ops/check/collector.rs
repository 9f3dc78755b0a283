//! Whether the collector may do what it has to.

use std::collections::BTreeMap;

use futures::{StreamExt as _, stream};
use serde_json::json;

use super::{
    row::{Row, Verdict},
    server::{ANOTHER_ANSWER, answer},
};
use crate::{
    api::{ApiError, MetadataClient},
    collector::{
        discovery::{Discovered, Discovery},
        names::qualified,
    },
};

const WHAT: &str = "collector's rights";
const REMEDY: &str = "apply deploy/gc-rbac.yaml (below /usr/share/doc/pod-teardown where the package is installed), and give that account's kubeconfig as --gc-kubeconfig";
/// What is done to objects of every kind that is collected.
const VERBS: [&str; 5] = ["get", "list", "watch", "delete", "patch"];
/// Questions at a time: there are some for each kind if not all is granted at once.
const AT_ONCE: usize = 8;
/// So many resources are named in a row.
const NAMED: usize = 12;

/// A right that the collector needs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Right {
    verb: &'static str,
    group: String,
    resource: String,
    namespace: &'static str,
}

// === impl Right ===

impl Right {
    fn new(verb: &'static str, group: &str, resource: &str, namespace: &'static str) -> Self {
        Self {
            verb,
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace,
        }
    }

    /// As `kubectl auth can-i` takes it.
    fn resource(&self) -> String {
        let resource = qualified(&self.resource, &self.group);
        let place = if self.namespace.is_empty() { "" } else { " in " };
        format!("{resource}{place}{}", self.namespace)
    }

    async fn granted(&self, client: &MetadataClient) -> Result<bool, ApiError> {
        let mut wish = json!({ "verb": self.verb, "group": self.group, "resource": self.resource });
        if !self.namespace.is_empty() {
            wish["namespace"] = self.namespace.into();
        }
        answer(client.is_allowed(&wish)).await
    }
}

/// Whether the collector's credentials let it do its work.
pub async fn collector_rights(client: &MetadataClient) -> Vec<Row> {
    let found = match answer(Discovery::default().discover(client)).await {
        Ok(found) => found,
        Err(error) => return vec![unasked(WHAT, &error)],
    };
    let mut rows = vec![rights_to(client, &found).await];
    if !found.failed.is_empty() {
        let failed = found.failed.iter().map(|(group, it)| format!("{group} ({})", it.why));
        rows.push(Row::new(
            "kinds to collect",
            Verdict::Warning,
            format!("not all are known: {}", failed.collect::<Vec<_>>().join(", ")),
            "see `kubectl get apiservices`: what they serve is kept until they answer",
        ));
    }
    rows
}

/// The same for the kinds that were found.
async fn rights_to(client: &MetadataClient, found: &Discovered) -> Row {
    match missing(client, found).await {
        Ok(missing) => judged(&missing, found.served.iter().filter(|kind| kind.collected).count()),
        Err(error) => unasked(WHAT, &error),
    }
}

async fn missing(client: &MetadataClient, found: &Discovered) -> Result<Vec<Right>, ApiError> {
    // Whoever may do it to all kinds is asked no more; the others are asked kind by kind, since rights may also come from
    // authorizers that know no such rule.
    let all = VERBS.map(|verb| Right::new(verb, "*", "*", "")).to_vec();
    let kinds = denied(client, all).await?.into_iter().flat_map(|denied| {
        let collected = found.served.iter().filter(|kind| kind.collected);
        collected.map(move |kind| Right::new(denied.verb, &kind.group, &kind.resource.plural, ""))
    });
    let own = ["create", "get", "update"].map(|verb| Right::new(verb, "coordination.k8s.io", "leases", "kube-system"));
    let events = ["create", "patch"].map(|verb| Right::new(verb, "", "events", ""));
    denied(client, kinds.chain(own).chain(events).collect()).await
}

async fn denied(client: &MetadataClient, rights: Vec<Right>) -> Result<Vec<Right>, ApiError> {
    let asked = rights.into_iter().map(|right| async move {
        let granted = right.granted(client).await;
        granted.map(|granted| (!granted).then_some(right))
    });
    let answers: Vec<_> = stream::iter(asked).buffered(AT_ONCE).collect().await;
    answers.into_iter().filter_map(Result::transpose).collect()
}

/// Why something could not be asked of the server.
pub(super) fn unasked(what: &str, error: &ApiError) -> Row {
    let (verdict, remedy) = match error {
        ApiError::Unproven { code: Some(403), .. } | ApiError::Refused { code: 403, .. } => (Verdict::Failed, REMEDY),
        ApiError::Unproven { code: Some(401), .. } | ApiError::Refused { code: 401, .. } => (
            Verdict::Failed,
            "renew what --gc-kubeconfig holds: the server does not know these credentials",
        ),
        ApiError::Unreachable { cause, .. } if cause.contains("invalid peer certificate") => (
            Verdict::Configuration,
            "check certificate-authority-data and the server's name in --gc-kubeconfig, and this machine's clock",
        ),
        ApiError::Unreachable { .. } | ApiError::Unproven { .. } | ApiError::Timeout { .. } => (
            Verdict::Unreachable,
            "check the server in --gc-kubeconfig, and the network to it",
        ),
        ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Blocked { .. } => {
            (Verdict::Failed, ANOTHER_ANSWER)
        }
    };
    Row::new(what, verdict, error, remedy)
}

/// What is missing, in one row; verbs that lack the same resources together.
fn judged(missing: &[Right], kinds: usize) -> Row {
    if missing.is_empty() {
        return Row::ok(
            WHAT,
            format!("may collect all {kinds} kinds, hold its Lease and write events"),
        );
    }
    let mut by_verb: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for right in missing {
        by_verb.entry(right.verb).or_default().push(right.resource());
    }
    let mut by_resources: BTreeMap<Vec<String>, Vec<&str>> = BTreeMap::new();
    for (verb, resources) in by_verb {
        by_resources.entry(resources).or_default().push(verb);
    }
    let mut parts: Vec<String> = by_resources
        .into_iter()
        .map(|(resources, verbs)| format!("may not {}: {}", verbs.join(", "), named(&resources)))
        .collect();
    parts.sort();
    Row::new(WHAT, Verdict::Failed, parts.join("; "), REMEDY)
}

fn named(resources: &[String]) -> String {
    let named = resources[..resources.len().min(NAMED)].join(", ");
    match resources.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::check::server::tests::{USE, errors};

    fn right(verb: &'static str, group: &str, resource: &str) -> Right {
        Right::new(verb, group, resource, "")
    }

    #[test]
    fn what_is_missing_is_named_by_verb_and_resource() {
        for (missing, seen) in [
            (vec![], "may collect all 57 kinds, hold its Lease and write events"),
            (
                vec![right("watch", "", "secrets"), right("watch", "example.com", "widgets")],
                "may not watch: secrets, widgets.example.com",
            ),
            (
                vec![
                    right("list", "", "secrets"),
                    right("watch", "", "secrets"),
                    right("delete", "", "pods"),
                    Right::new("create", "coordination.k8s.io", "leases", "kube-system"),
                ],
                "may not create: leases.coordination.k8s.io in kube-system; may not delete: pods; may not list, watch: secrets",
            ),
        ] {
            let row = judged(&missing, 57);
            assert_eq!(row.seen, seen);
            assert_eq!(row.verdict == Verdict::Ok, missing.is_empty());
            assert_eq!(row.remedy == REMEDY, !missing.is_empty());
            row.assert_helps();
        }
    }

    #[test]
    fn whatever_the_server_answers_there_is_something_to_do() {
        for (error, verdict, words) in errors() {
            let row = unasked(WHAT, &error);
            row.assert_helps();
            let words = if words == USE { "gc-rbac" } else { words };
            assert!(
                row.verdict == verdict && row.remedy.contains(words),
                "{error:?}: {row:?}"
            );
        }
    }

    #[test]
    fn a_long_list_is_cut() {
        let missing: Vec<Right> = (0..57).map(|number| right("list", "", &format!("r{number}"))).collect();
        let row = judged(&missing, 57);
        assert!(row.seen.ends_with("r11 and 45 more"), "{}", row.seen);
    }
}
