//! Checks the collector's credentials, server and rights.

use futures::{StreamExt as _, stream};
use k8s_openapi::api::authorization::v1::ResourceAttributes;
use serde_json::{Value, json};

use super::{
    item::Item,
    row::{FAILURE, Row, Verdict},
    server::{self, credentials, in_time},
};
use crate::{
    api::{ApiError, ErrorKind, Lane, MetadataClient},
    collector::{
        discovery::{Discovered, Discovery, unreported},
        names::qualified_name,
    },
    config::GcSettings,
    model::problems,
    node::effects::Effects,
    ops::remedies::RENEW_COLLECTORS,
};

const WHAT: Item = Item::COLLECTOR_RIGHTS;
const REMEDY: &str = "apply deploy/gc-rbac.yaml (the package pod-teardown-gc has it in /usr/share/pod-teardown-gc), and set --gc-kubeconfig to a \
                      kubeconfig of that ServiceAccount";
/// Verbs that the collector needs for every kind.
const VERBS: [&str; 5] = ["get", "list", "watch", "delete", "patch"];
/// Maximum number of concurrent requests.
const MAX_REQUESTS: usize = 8;
/// Maximum number of rights that a row names.
const MAX_NAMED: usize = 12;

/// A right that the collector needs.
fn right(verb: &str, group: &str, resource: &str, namespace: Option<&str>) -> ResourceAttributes {
    ResourceAttributes {
        verb: Some(verb.to_owned()),
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        namespace: namespace.map(str::to_owned),
        ..ResourceAttributes::default()
    }
}

/// The right in the form of `kubectl auth can-i`.
fn name_of(right: &ResourceAttributes) -> String {
    let parts = [&right.verb, &right.group, &right.resource];
    let [verb, group, resource] = parts.map(|part| part.as_deref().unwrap_or_default());
    let namespace = right.namespace.as_ref().map(|namespace| format!(" in {namespace}"));
    format!(
        "{verb} {}{}",
        qualified_name(resource, group),
        namespace.unwrap_or_default()
    )
}

/// Checks everything that the collector needs: credentials, server and rights.
pub(super) async fn for_collector(settings: &GcSettings) -> Vec<Row> {
    const SERVER: Item = Item::COLLECTOR_API_SERVER;
    let (item, flag) = (Item::COLLECTOR_CREDENTIALS, "--gc-kubeconfig");
    let mut rows = Vec::from_iter(credentials(item, flag, RENEW_COLLECTORS, &settings.kube));
    let effects = Effects::none();
    let client = match MetadataClient::new(&settings.kube, settings.kubeconfig.clone(), effects, None) {
        Ok(client) => client,
        Err(error) => {
            rows.push(Row::from_problem(SERVER, &problems::api_client(flag, &error)));
            return rows;
        }
    };
    match in_time(cluster(&client)).await {
        Ok(seen) => {
            rows.push(Row::ok(SERVER, seen));
            rows.extend(collector_rights(&client).await);
        }
        Err(error) => rows.push(Row {
            message: format!("{}: {error}", settings.kube.cluster_url),
            ..failed_query(SERVER, &error)
        }),
    }
    rows
}

/// The server's version, and the UID of its cluster.
async fn cluster(client: &MetadataClient) -> Result<String, ApiError> {
    let version: Value = client.json(Lane::Get, "/version", "application/json").await?;
    let namespace = client.object("/api/v1/namespaces/kube-system").await?;
    Ok(format!(
        "{}, cluster {} (UID of the namespace kube-system)",
        version["gitVersion"].as_str().unwrap_or("unknown version"),
        namespace["metadata"]["uid"].as_str().unwrap_or_default(),
    ))
}

/// Checks whether the collector's credentials have all rights.
pub async fn collector_rights(client: &MetadataClient) -> Vec<Row> {
    let found = match in_time(Discovery::default().discover(client)).await {
        Ok(found) => found,
        Err(error) => return vec![failed_query(WHAT, &error)],
    };
    let mut rows = vec![match missing(client, &found).await {
        Ok(missing) => rights_row(&missing, found.served.iter().filter(|kind| kind.collected).count()),
        Err(error) => failed_query(WHAT, &error),
    }];
    if !found.failed.is_empty() {
        let failed = found
            .failed
            .iter()
            .map(|(group, versions)| format!("{group} ({})", unreported(versions)));
        rows.push(Row::new(
            Item::COLLECTOR_KINDS,
            Verdict::Warning,
            format!("discovery failed for: {}", failed.collect::<Vec<_>>().join(", ")),
            "see `kubectl get apiservices`: the collector deletes no objects of these groups until discovery succeeds",
        ));
    }
    rows
}

/// The rights for the discovered kinds that the collector does not have.
async fn missing(client: &MetadataClient, found: &Discovered) -> Result<Vec<ResourceAttributes>, ApiError> {
    // Verbs that are not granted for all kinds are checked kind by kind: not all authorizers support wildcards.
    let all = VERBS.map(|verb| right(verb, "*", "*", None)).to_vec();
    let kinds = denied(client, all).await?.into_iter().flat_map(|denied| {
        let collected = found.served.iter().filter(|kind| kind.collected);
        let verb = denied.verb.unwrap_or_default();
        collected.map(move |kind| right(&verb, &kind.group, &kind.resource.plural, None))
    });
    let lease = |verb| right(verb, "coordination.k8s.io", "leases", Some("kube-system"));
    let leases = ["create", "get", "update"].map(lease);
    let events = ["create", "patch"].map(|verb| right(verb, "", "events", None));
    denied(client, kinds.chain(leases).chain(events).collect()).await
}

async fn denied(client: &MetadataClient, rights: Vec<ResourceAttributes>) -> Result<Vec<ResourceAttributes>, ApiError> {
    let requests = rights.into_iter().map(|right| async move {
        let granted = in_time(client.is_allowed(&json!(right))).await;
        granted.map(|granted| (!granted).then_some(right))
    });
    let answers: Vec<_> = stream::iter(requests).buffered(MAX_REQUESTS).collect().await;
    answers.into_iter().filter_map(Result::transpose).collect()
}

/// The row for a failed request.
fn failed_query(what: Item, error: &ApiError) -> Row {
    const REJECTED: &str = "renew the credentials in --gc-kubeconfig: the API server rejects them";
    let proof = match &error.kind {
        ErrorKind::UnverifiedServer(why) => why.code(),
        _ => None,
    };
    match proof {
        Some(401) => Row::new(what, Verdict::Failed(FAILURE), error, REJECTED),
        Some(403) => Row::new(what, Verdict::Failed(FAILURE), error, REMEDY),
        _ => server::failed_query(what, error, "--gc-kubeconfig", [REJECTED, REMEDY]),
    }
}

/// The row for missing rights.
fn rights_row(missing: &[ResourceAttributes], kinds: usize) -> Row {
    if missing.is_empty() {
        return Row::ok(
            WHAT,
            format!("may collect all {kinds} kinds, hold its Lease and create events"),
        );
    }
    let named: Vec<_> = missing.iter().take(MAX_NAMED).map(name_of).collect();
    let more = match missing.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let seen = format!("may not: {}{more}", named.join(", "));
    Row::new(WHAT, Verdict::Failed(FAILURE), seen, REMEDY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::check::server::tests::{USE, errors};

    #[test]
    fn missing_rights_are_named_up_to_a_limit() {
        let lease = right("create", "coordination.k8s.io", "leases", Some("kube-system"));
        let many = (0..57)
            .map(|number| right("list", "", &format!("r{number}"), None))
            .collect();
        for (missing, seen) in [
            (vec![], "may collect all 57 kinds, hold its Lease and create events"),
            (
                vec![right("watch", "example.com", "widgets", None), lease],
                "may not: watch widgets.example.com, create leases.coordination.k8s.io in kube-system",
            ),
            (many, "may not: list r0, "),
        ] {
            let row = rights_row(&missing, 57);
            assert!(row.message.starts_with(seen), "{row:?}");
            assert_eq!(row.verdict == Verdict::Ok, missing.is_empty());
            assert_eq!(row.message.ends_with("and 45 more"), missing.len() > MAX_NAMED);
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
}
