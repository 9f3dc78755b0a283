use serde_json::json;

use super::MAPS;
use super::client::{Client, Line, server};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

#[tokio::test(start_paused = true)]
async fn a_group_version_may_be_away_for_a_while() {
    let server = server().await;
    let admin = Client::admin(&server);
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    let mut watch = admin.watch(&format!("{deployments}?watch=1")).await;
    let freshness = async || {
        let groups = admin.get_as("/apis", AGGREGATED).await.body;
        let apps = groups["items"].as_array().unwrap().iter();
        let apps = apps.clone().find(|group| group["metadata"]["name"] == "apps").unwrap();
        apps["versions"][0]["freshness"].clone()
    };
    server.set_unavailable("apps/v1", true);
    assert_eq!(freshness().await, "Stale");
    assert_eq!(admin.get(deployments).await.code, 503);
    assert_eq!(admin.get(MAPS).await.code, 200);
    server.set_unavailable("apps/v1", false);
    assert_eq!(freshness().await, "Current");
    assert_eq!(admin.get(deployments).await.code, 200);
    // A running watch continues.
    admin.create(deployments, json!({ "metadata": { "name": "a" } })).await;
    assert!(matches!(watch.next().await, Line::Event(..)));
}
