//! Plain lists of all objects: the baseline of a collector's cold start.

use anyhow::{Context, Result};
use futures::future::try_join_all;
use http::HeaderValue;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use super::page::Page;
use crate::api::Access;
use crate::http2::Http2;

const PAGE: u32 = 500;
const DISCOVERY: HeaderValue =
    HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList");
/// Kinds that collectors ignore.
const IGNORED: &str = "events";

/// Results of the lists.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Lists {
    /// Seconds from the first connection to the last page.
    pub seconds: f64,
    /// Number of objects.
    pub objects: u32,
    /// Number of kinds.
    pub kinds: usize,
}

/// The collections of all kinds that a collector watches.
pub async fn collections(access: &Access) -> Result<Vec<String>> {
    let client = Http2::connect(access, 1).await?;
    let mut all = Vec::new();
    for root in ["/api", "/apis"] {
        let answer = client.get(root, DISCOVERY).await?.ok()?;
        let found: Value = serde_json::from_slice(&answer).with_context(|| format!("read {root}"))?;
        all.extend(of_groups(root, &found));
    }
    Ok(all)
}

/// Lists all of them, kinds in parallel.
pub async fn list(access: &Access, collections: &[String], connections: usize) -> Result<Lists> {
    let begin = Instant::now();
    let client = Http2::connect(access, connections).await?;
    let counts = try_join_all(collections.iter().map(|collection| one(&client, collection))).await?;
    Ok(Lists {
        seconds: begin.elapsed().as_secs_f64(),
        objects: counts.iter().sum(),
        kinds: collections.len(),
    })
}

async fn one(client: &Http2, collection: &str) -> Result<u32> {
    let first = format!("{collection}?limit={PAGE}");
    let mut path = first.clone();
    let mut count = 0;
    loop {
        let page = Page::get(client, &path).await?;
        count += u32::try_from(page.items.len())?;
        let Some(next) = page.next() else { return Ok(count) };
        // The token is URL-safe base64.
        path = format!("{first}&continue={next}");
    }
}

/// The first version of each group in which a kind can be listed, watched and deleted.
fn of_groups(root: &str, found: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = Vec::new();
    for group in list(&found["items"]) {
        let mut result = Vec::new();
        for version in list(&group["versions"]) {
            let parts = [root, group["metadata"]["name"].as_str().unwrap_or_default()];
            let parts = parts.into_iter().chain(version["version"].as_str());
            let base: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
            for resource in list(&version["resources"]) {
                let name = resource["resource"].as_str().unwrap_or_default().to_owned();
                let verbs = list(&resource["verbs"]);
                let collectable = ["list", "watch", "delete"]
                    .iter()
                    .all(|verb| verbs.contains(&(*verb).into()));
                if collectable && name != IGNORED && !result.contains(&name) {
                    all.push(format!("{}/{name}", base.join("/")));
                    result.push(name);
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_is_listed_once_in_its_first_version() {
        let verbs = ["delete", "get", "list", "watch"];
        let resource = |name: &str, verbs: &[&str]| json!({"resource": name, "verbs": verbs});
        let found = json!({"items": [{"metadata": {"name": "apps"}, "versions": [
            {"version": "v1", "resources": [resource("deployments", &verbs), resource("scales", &["get"])]},
            {"version": "v1beta1", "resources": [resource("deployments", &verbs), resource("olds", &verbs)]},
        ]}]});
        assert_eq!(
            of_groups("/apis", &found),
            ["/apis/apps/v1/deployments", "/apis/apps/v1beta1/olds"]
        );
    }

    #[test]
    fn the_core_group_has_no_name_and_events_are_ignored() {
        let resource = |name: &str| json!({"resource": name, "verbs": ["delete", "list", "watch"]});
        let found = json!({"items": [{"metadata": {}, "versions": [
            {"version": "v1", "resources": [resource("pods"), resource("events")]},
        ]}]});
        assert_eq!(of_groups("/api", &found), ["/api/v1/pods"]);
    }
}
