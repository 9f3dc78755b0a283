use std::time::Duration;

use http::Method;
use testbed::apiserver::faults::{Action, Fault};

use super::client::{Client, Line, server};
use super::{MAPS, map};

#[tokio::test(start_paused = true)]
async fn a_refused_request_did_nothing_and_a_lost_answer_did_everything() {
    let server = server().await;
    let admin = Client::admin(&server);
    for (action, expected) in [(Action::Refuse, 404), (Action::LoseResponse, 200)] {
        server.faults().inject(Fault::new(action).verb("create").once());
        let answer = admin.try_ask(Method::POST, MAPS, "application/json", &map("a")).await;
        assert!(answer.is_none());
        assert_eq!(admin.get(&format!("{MAPS}/a")).await.code, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn throttled_request_gets_retry_after() {
    let server = server().await;
    let admin = Client::admin(&server);
    server
        .faults()
        .inject(Fault::too_many(3).resource("configmaps").name("a").times(2));
    for expected in [429, 429, 404] {
        assert_eq!(admin.get(&format!("{MAPS}/a")).await.code, expected);
    }
    server.faults().inject(Fault::too_many(3).once());
    let answer = admin.get(MAPS).await;
    assert_eq!(answer.headers["retry-after"], "3");
    assert_eq!(answer.body["details"]["retryAfterSeconds"], 3);
}

#[tokio::test(start_paused = true)]
async fn a_delayed_request_is_done_afterwards() {
    let server = server().await;
    server.faults().inject(Fault::delay(Duration::from_secs(20)).once());
    let began = tokio::time::Instant::now();
    assert_eq!(Client::admin(&server).get(MAPS).await.code, 200);
    assert_eq!(began.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_running_watch_can_be_cut_and_another_hangs() {
    let server = server().await;
    let admin = Client::admin(&server);
    let mut watch = admin.watch(&format!("{MAPS}?watch=1")).await;
    assert_eq!(watch.next().await, Line::Silence);
    server
        .faults()
        .inject(Fault::new(Action::CutWatch).resource("configmaps").once());
    assert_eq!(watch.next().await, Line::Broken);
    let mut watch = admin.watch(&format!("{MAPS}?watch=1&timeoutSeconds=5")).await;
    server.faults().inject(Fault::new(Action::StallWatch).once());
    admin.create(MAPS, map("a")).await;
    assert_eq!(watch.next_within(Duration::from_secs(3600)).await, Line::Silence);
}
