//! Connections that hold a paused clock back.

use std::io::ErrorKind;

use http::Uri;
use testbed::{
    api::ApiServer as _,
    apiserver::{Config, MemApiServer},
    network,
};
use tokio::time::Instant;

use crate::client::server;

#[tokio::test(start_paused = true)]
async fn no_virtual_time_passes_while_a_request_is_on_the_way() {
    let api = server().await;
    let admin = api.admin().unwrap();
    let begun = Instant::now();
    for _ in 0..100 {
        assert_eq!(admin.get("/api/v1/nodes/n1").await.unwrap().code(), 200);
    }
    let many = (0..100).map(|_| admin.get("/api/v1/nodes"));
    futures::future::join_all(many).await;
    assert_eq!(begun.elapsed().as_millis(), 0);
}

#[tokio::test]
async fn an_address_leads_to_its_server_in_memory_until_that_is_gone() {
    let first = server().await;
    let url: Uri = first.url().parse().unwrap();
    network::connect(&url).unwrap();
    let listen = first.url().trim_start_matches("http://").parse().unwrap();
    drop(first);
    let refused = || network::connect(&url).unwrap_err().kind();
    assert_eq!(refused(), ErrorKind::ConnectionRefused);
    let second = testbed::wait::eventually(std::time::Duration::from_secs(60), "the address", async || {
        let config = Config {
            listen,
            ..Config::default()
        };
        Ok(MemApiServer::start(config).await.ok())
    });
    let second = second.await.unwrap();
    network::connect(&url).unwrap();
    drop(second);
    assert_eq!(refused(), ErrorKind::ConnectionRefused);
}
