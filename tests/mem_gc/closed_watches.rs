//! An API server or proxy that closes each watch at once without an error. Uses the real clock.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pod_teardown::{
    api::{MetadataClient, kubeconfig::read_kubeconfig},
    collector::{collect::collect, shared::Shared},
    node::effects::Effects,
};
use tokio::net::TcpListener;

use crate::prelude::*;

fn answer(request: &Request<Incoming>, watches: &AtomicUsize) -> &'static str {
    let query = request.uri().query().unwrap_or_default();
    match request.uri().path() {
        "/api" => {
            r#"{"items":[{"versions":[{"version":"v1","resources":[{"resource":"configmaps","scope":"Namespaced",
            "responseKind":{"kind":"ConfigMap"},"verbs":["get","list","watch","delete"]}]}]}]}"#
        }
        "/apis" => r#"{"items":[]}"#,
        "/api/v1/namespaces" => {
            r#"{"metadata":{"resourceVersion":"10"},"items":[{"metadata":{"name":"kube-system","uid":"u"}}]}"#
        }
        _ if query.contains("watch=true") => {
            watches.fetch_add(1, Ordering::SeqCst);
            ""
        }
        _ => r#"{"metadata":{"resourceVersion":"10"},"items":[]}"#,
    }
}

#[tokio::test]
async fn a_server_that_closes_each_watch_at_once_is_retried_with_a_pause() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let watches = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&watches);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let counted = Arc::clone(&counted);
            let service = service_fn(move |request| {
                let body = answer(&request, &counted);
                let form = match request.uri().path() {
                    "/api" | "/apis" => "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                    _ => "application/json",
                };
                let response = Response::builder().header("content-type", form);
                let response = response.body(Full::new(Bytes::from_static(body.as_bytes()))).unwrap();
                async move { Ok::<_, Infallible>(response) }
            });
            tokio::spawn(http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service));
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kubeconfig");
    std::fs::write(&file, testbed::api::kubeconfig(&url, None, "a", "a")).unwrap();
    let config = read_kubeconfig(&file).await.unwrap();
    let client = MetadataClient::new(&config, file, Effects::ungated(), None).unwrap();
    let collector = tokio::spawn(collect(client, Arc::new(Shared::default())));
    let first = async {
        while watches.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let first = tokio::time::timeout(Duration::from_secs(60), first).await;
    first.expect("a watch");
    tokio::time::sleep(Duration::from_secs(5)).await;
    collector.abort();
    let asked = watches.load(Ordering::SeqCst);
    assert!(asked < 50, "{asked} watches of one kind within five seconds");
}
