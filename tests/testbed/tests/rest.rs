//! The REST client for tests, against the API server in memory.

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use testbed::{
    api::ApiServer,
    apiserver::{Config, MemApiServer},
    rest::{Client, Error, EventType},
};

const LONG: Duration = Duration::from_secs(30);

fn pod(name: &str) -> Value {
    let spec = json!({"nodeName": "n", "containers": [{"name": "main", "image": "example.test/main"}]});
    json!({"metadata": {"name": name}, "spec": spec})
}

async fn server() -> anyhow::Result<(MemApiServer, Client)> {
    let server = MemApiServer::start(Config::default()).await?;
    let admin = ApiServer::admin(&server)?;
    Ok((server, admin))
}

fn uid(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_refusal_says_what_was_asked_and_why_it_was_refused() -> anyhow::Result<()> {
    let (_server, admin) = server().await?;
    let error = admin.get("/api/v1/namespaces/default/pods/x").await?.ok().unwrap_err();
    assert_eq!(
        error.to_string(),
        "GET /api/v1/namespaces/default/pods/x: 404 pods \"x\" not found"
    );
    Ok(())
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_transport_error() -> anyhow::Result<()> {
    let unreachable = Client::new("http://127.0.0.1:1", "", None)?;
    assert!(matches!(unreachable.get("/").await, Err(Error::Transport { .. })));
    Ok(())
}

#[test]
fn a_url_and_a_certificate_are_checked_at_once() {
    assert!(matches!(Client::new("not a url", "", None), Err(Error::Setup { .. })));
    let pem = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    assert!(matches!(
        Client::new("https://127.0.0.1:1", "", Some(pem)),
        Err(Error::Setup { .. })
    ));
}

#[tokio::test]
async fn a_pod_of_the_same_name_is_not_waited_for() -> anyhow::Result<()> {
    let (_server, admin) = server().await?;
    admin.create_pod(&pod("a")).await?;
    admin.wait_gone("default", "a", "of-an-earlier-one", LONG).await?;
    admin.wait_gone("default", "never", "of-unreachable", LONG).await?;
    Ok(())
}

#[tokio::test]
async fn a_pod_is_waited_for_until_it_is_gone() -> anyhow::Result<()> {
    let (_server, admin) = server().await?;
    let uid = uid(&admin.create_pod(&pod("a")).await?);
    let deletion = async {
        admin.delete_pod("default", "a", Some(60)).await?;
        admin.delete_pod("default", "a", Some(0)).await
    };
    tokio::try_join!(admin.wait_gone("default", "a", &uid, LONG), deletion)?;
    assert_eq!(admin.get("/api/v1/namespaces/default/pods/a").await?.code(), 404);
    Ok(())
}

#[tokio::test]
async fn a_pod_that_stays_is_not_waited_for_longer_than_said() -> anyhow::Result<()> {
    let (_server, admin) = server().await?;
    let uid = uid(&admin.create_pod(&pod("a")).await?);
    let waited = admin.wait_gone("default", "a", &uid, Duration::from_millis(50)).await;
    assert!(matches!(waited, Err(Error::TimedOut { .. })), "{waited:?}");
    Ok(())
}

#[tokio::test]
async fn a_watch_is_a_stream_that_ends_with_it() -> anyhow::Result<()> {
    let (_server, admin) = server().await?;
    admin.create_pod(&pod("a")).await?;
    let watch = admin.watch("/api/v1/pods", &[("timeoutSeconds", "1")]).await?;
    let events: Vec<_> = watch.into_stream().boxed().try_collect().await?;
    let seen: Vec<_> = events.iter().map(|event| (event.kind, event.name())).collect();
    assert_eq!(seen, [(EventType::Added, "a")]);
    Ok(())
}
