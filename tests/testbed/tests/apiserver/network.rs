//! Connections that hold a paused clock back.

use std::io::ErrorKind;

use http::Uri;
use testbed::{
    api::ApiServer as _,
    network::{self, Route},
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
async fn an_address_leads_to_its_last_server_until_that_is_gone() {
    let api = server().await;
    network::connect(&api.url().parse().unwrap()).unwrap();

    let (first, mut at_first) = network::listen();
    let first = Route::new(first);
    let url: Uri = format!("http://{}", first.address()).parse().unwrap();
    network::connect(&url).unwrap();
    at_first.try_recv().unwrap();

    let (second, mut at_second) = network::listen();
    let second = Route::at(first.address(), second);
    drop(first);
    network::connect(&url).unwrap();
    at_second.try_recv().unwrap();
    drop(second);
    assert_eq!(network::connect(&url).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
