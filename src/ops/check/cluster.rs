//! Checks the collector's credentials, server and rights.

use jiff::Timestamp;

use super::{
    collector::{collector_rights, failed_query},
    item::Item,
    row::Row,
    server::{credentials, in_time},
};
use crate::{
    api::{ApiError, Lane, MetadataClient},
    config::GcSettings,
    model::problems,
    node::effects::Effects,
    ops::remedies::RENEW_COLLECTORS,
};

const WHAT: Item = Item::COLLECTOR_API_SERVER;

/// Checks everything that the collector needs.
pub(super) async fn for_collector(settings: &GcSettings) -> Vec<Row> {
    let mut rows = Vec::from_iter(credentials(
        Item::COLLECTOR_CREDENTIALS,
        "--gc-kubeconfig",
        RENEW_COLLECTORS,
        &settings.kube,
        Timestamp::now(),
    ));
    let effects = Effects::none();
    let client = match MetadataClient::new(&settings.kube, settings.kubeconfig.clone(), effects, None) {
        Ok(client) => client,
        Err(error) => {
            rows.push(Row::from_problem(
                WHAT,
                &problems::api_client("--gc-kubeconfig", &error),
            ));
            return rows;
        }
    };
    match in_time(cluster(&client)).await {
        Ok(seen) => {
            rows.push(Row::ok(WHAT, seen));
            rows.extend(collector_rights(&client).await);
        }
        Err(error) => rows.push(refused(&settings.kube.cluster_url.to_string(), &error)),
    }
    rows
}

/// The server's version, and the UID of its cluster.
async fn cluster(client: &MetadataClient) -> Result<String, ApiError> {
    let version = client.json(Lane::Get, "/version", "application/json").await?;
    let namespace = client.object("/api/v1/namespaces/kube-system").await?;
    Ok(format!(
        "{}, cluster {} (UID of the namespace kube-system)",
        version["gitVersion"].as_str().unwrap_or("unknown version"),
        namespace["metadata"]["uid"].as_str().unwrap_or_default(),
    ))
}

fn refused(url: &str, error: &ApiError) -> Row {
    Row {
        seen: format!("{url}: {error}"),
        ..failed_query(WHAT, error)
    }
}
