//! Checks the rights of the collector.

use std::collections::BTreeMap;

use futures::{StreamExt as _, stream};
use serde_json::json;

use super::{
    item::Item,
    row::{Row, Verdict},
    server::{OTHER_ERROR, in_time},
};
use crate::{
    api::{ApiError, MetadataClient},
    collector::{
        discovery::{Discovered, Discovery},
        names::qualified_name,
    },
};

const WHAT: Item = Item::COLLECTOR_RIGHTS;
const REMEDY: &str = "apply deploy/gc-rbac.yaml (the package pod-teardown-gc has it in /usr/share/pod-teardown-gc), and set --gc-kubeconfig to a \
                      kubeconfig of that ServiceAccount";
/// Verbs that the collector needs for every kind.
const VERBS: [&str; 5] = ["get", "list", "watch", "delete", "patch"];
/// Maximum number of concurrent requests.
const MAX_REQUESTS: usize = 8;
/// Maximum number of resources that a row names.
const MAX_NAMED: usize = 12;

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

    /// The resource in the form of `kubectl auth can-i`.
    fn resource(&self) -> String {
        let resource = qualified_name(&self.resource, &self.group);
        let preposition = if self.namespace.is_empty() { "" } else { " in " };
        format!("{resource}{preposition}{}", self.namespace)
    }

    async fn is_granted(&self, client: &MetadataClient) -> Result<bool, ApiError> {
        let mut attributes = json!({ "verb": self.verb, "group": self.group, "resource": self.resource });
        if !self.namespace.is_empty() {
            attributes["namespace"] = self.namespace.into();
        }
        in_time(client.is_allowed(&attributes)).await
    }
}

/// Checks whether the collector's credentials have all rights.
pub async fn collector_rights(client: &MetadataClient) -> Vec<Row> {
    let found = match in_time(Discovery::default().discover(client)).await {
        Ok(found) => found,
        Err(error) => return vec![failed_query(WHAT, &error)],
    };
    let mut rows = vec![check_rights(client, &found).await];
    if !found.failed.is_empty() {
        let failed = found.failed.iter().map(|(group, it)| format!("{group} ({})", it.why));
        rows.push(Row::new(
            Item::COLLECTOR_KINDS,
            Verdict::Warning,
            format!("discovery failed for: {}", failed.collect::<Vec<_>>().join(", ")),
            "see `kubectl get apiservices`: the collector deletes no objects of these groups until discovery succeeds",
        ));
    }
    rows
}

/// Checks the rights for the discovered kinds.
async fn check_rights(client: &MetadataClient, found: &Discovered) -> Row {
    match missing(client, found).await {
        Ok(missing) => rights_row(&missing, found.served.iter().filter(|kind| kind.collected).count()),
        Err(error) => failed_query(WHAT, &error),
    }
}

async fn missing(client: &MetadataClient, found: &Discovered) -> Result<Vec<Right>, ApiError> {
    // Verbs that are not granted for all kinds are checked kind by kind: not all authorizers support wildcards.
    let all = VERBS.map(|verb| Right::new(verb, "*", "*", "")).to_vec();
    let kinds = denied(client, all).await?.into_iter().flat_map(|denied| {
        let collected = found.served.iter().filter(|kind| kind.collected);
        collected.map(move |kind| Right::new(denied.verb, &kind.group, &kind.resource.plural, ""))
    });
    let leases =
        ["create", "get", "update"].map(|verb| Right::new(verb, "coordination.k8s.io", "leases", "kube-system"));
    let events = ["create", "patch"].map(|verb| Right::new(verb, "", "events", ""));
    denied(client, kinds.chain(leases).chain(events).collect()).await
}

async fn denied(client: &MetadataClient, rights: Vec<Right>) -> Result<Vec<Right>, ApiError> {
    let requests = rights.into_iter().map(|right| async move {
        let granted = right.is_granted(client).await;
        granted.map(|granted| (!granted).then_some(right))
    });
    let answers: Vec<_> = stream::iter(requests).buffered(MAX_REQUESTS).collect().await;
    answers.into_iter().filter_map(Result::transpose).collect()
}

/// The row for a failed request.
pub(super) fn failed_query(what: Item, error: &ApiError) -> Row {
    let (verdict, remedy) = match error {
        ApiError::UnverifiedServer { code: Some(403), .. } | ApiError::Refused { code: 403, .. } => {
            (Verdict::Failed, REMEDY)
        }
        ApiError::UnverifiedServer { code: Some(401), .. } | ApiError::Refused { code: 401, .. } => (
            Verdict::Failed,
            "renew the credentials in --gc-kubeconfig: the API server rejects them",
        ),
        ApiError::Unreachable {
            is_certificate_invalid: true,
            ..
        } => (
            Verdict::Configuration,
            "check certificate-authority-data and the server's name in --gc-kubeconfig, and the clock of this node",
        ),
        ApiError::Unreachable { .. } | ApiError::UnverifiedServer { .. } | ApiError::Timeout { .. } => (
            Verdict::Unreachable,
            "check the server address in --gc-kubeconfig, and the network to it",
        ),
        ApiError::Refused { .. } | ApiError::Unreadable { .. } | ApiError::Blocked { .. } => {
            (Verdict::Failed, OTHER_ERROR)
        }
    };
    Row::new(what, verdict, error, remedy)
}

/// The row for missing rights. Verbs with the same missing resources are grouped.
fn rights_row(missing: &[Right], kinds: usize) -> Row {
    if missing.is_empty() {
        return Row::ok(
            WHAT,
            format!("may collect all {kinds} kinds, hold its Lease and create events"),
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
    let named = resources[..resources.len().min(MAX_NAMED)].join(", ");
    match resources.len().saturating_sub(MAX_NAMED) {
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
    fn missing_rights_are_named_by_verb_and_resource() {
        for (missing, seen) in [
            (vec![], "may collect all 57 kinds, hold its Lease and create events"),
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
            let row = rights_row(&missing, 57);
            assert_eq!(row.seen, seen);
            assert_eq!(row.verdict == Verdict::Ok, missing.is_empty());
            assert_eq!(row.remedy == REMEDY, !missing.is_empty());
            row.assert_helps();
        }
    }

    #[test]
    fn every_failed_query_has_a_remedy() {
        for (error, verdict, words) in errors() {
            let row = failed_query(WHAT, &error);
            row.assert_helps();
            let words = if words == USE { "gc-rbac" } else { words };
            assert!(
                row.verdict == verdict && row.remedy.contains(words),
                "{error:?}: {row:?}"
            );
        }
    }

    #[test]
    fn long_list_is_truncated() {
        let missing: Vec<Right> = (0..57).map(|number| right("list", "", &format!("r{number}"))).collect();
        let row = rights_row(&missing, 57);
        assert!(row.seen.ends_with("r11 and 45 more"), "{}", row.seen);
    }
}
