//! Whole teardowns on a real containerd, with the API server in memory.

use std::path::Path;

use serde_json::json;
use testbed::{
    apiserver::{Config, MemApiServer},
    containerd::{POLITE, TOOL_IMAGE},
    stage::Stage,
};

const AGENT: &str = env!("CARGO_BIN_EXE_pod-teardown");

#[tokio::test]
async fn a_polite_pod_is_gone_and_nothing_of_it_is_left() {
    let api = MemApiServer::start(Config::default()).await.unwrap();
    let stage = Stage::set(Box::new(api)).await.unwrap();
    let agent = stage.start_agent(Path::new(AGENT), &[]).await.unwrap();
    let pod = stage
        .run_pod(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "polite", "namespace": "default" },
            "spec": {
                "containers": [{ "name": "main", "image": TOOL_IMAGE, "command": ["sh", "-c", POLITE] }],
            },
        }))
        .await
        .unwrap();
    stage.admin.delete_pod("default", "polite", None).await.unwrap();
    let gone = stage
        .admin
        .wait_gone("default", "polite", pod.uid(), std::time::Duration::from_secs(20))
        .await;
    if gone.is_err() {
        panic!(
            "{gone:?}\n{}\n{}",
            agent.ask(&["status"]).await.unwrap(),
            agent.log_tail()
        );
    }
    for _ in 0..100 {
        if stage.leftovers(&[pod.clone()]).await.unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    println!("{}", agent.timeline("default", "polite").await.unwrap());
    println!("{}", agent.ask(&["status"]).await.unwrap());
    let left = stage.leftovers(&[pod]).await.unwrap();
    assert!(left.is_empty(), "{left}");
    assert_eq!(agent.stop().await.unwrap(), Some(0));
}
