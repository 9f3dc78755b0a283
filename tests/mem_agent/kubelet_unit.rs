//! Why the kubelet does not work: the state of its unit in the status, in the Node's condition and in the answers to `why`.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use futures::FutureExt as _;
use pod_teardown::{
    explanation::Explanation,
    model::kubelet_unit::{KubeletUnit, UnitExit},
    ops::{admin::why::request_path, client},
};
use tokio::time::sleep;

use crate::{
    node::{Node, secs, wait_until},
    node_condition::{node_with_kubelet, wait_for_condition},
    standby::NodeWithKubelet,
};

const REASON: &str = "exit code 1; last error: failed to parse kubelet flag: unknown flag: --no-such-flag";

/// A node whose kubelet's unit has restarted once more at each read; and how often it was read.
async fn node_with_failing_unit() -> (NodeWithKubelet, Arc<AtomicU32>) {
    let mut stage = node_with_kubelet().await;
    stage.node.stop().await.unwrap();
    let reads = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&reads);
    stage.node.outside.kubelet_unit = Some(Arc::new(move |learned| {
        assert_eq!(learned, None);
        let restarts = counted.fetch_add(1, Ordering::Relaxed);
        let unit = KubeletUnit {
            unit: "kubelet.service".to_owned(),
            load_state: "loaded".to_owned(),
            active_state: "activating".to_owned(),
            sub_state: "auto-restart".to_owned(),
            result: "exit-code".to_owned(),
            exit: Some(UnitExit::Code(1)),
            restarts,
            last_error: Some("failed to parse kubelet flag: unknown flag: --no-such-flag".to_owned()),
            ..KubeletUnit::default()
        };
        async { Some(unit) }.boxed()
    }));
    stage.node.start().await;
    (stage, reads)
}

async fn unit(node: &Node) -> Option<KubeletUnit> {
    node.status().await.role.unwrap().kubelet_unit
}

#[tokio::test(start_paused = true)]
async fn unit_is_read_every_ten_seconds_and_never_while_the_kubelet_works() {
    let (mut stage, reads) = node_with_failing_unit().await;
    stage.kubelet_works().await;
    reads.store(0, Ordering::Relaxed);
    for _ in 0..6 {
        stage.renew().await;
        sleep(secs(10)).await;
    }
    assert_eq!((reads.load(Ordering::Relaxed), unit(&stage.node).await), (0, None));
    stage.kubelet_exits();
    sleep(secs(600)).await;
    let read = reads.load(Ordering::Relaxed);
    assert!((50..=61).contains(&read), "{read}");
    assert!(unit(&stage.node).await.unwrap().details().ends_with(REASON));
    stage.kubelet_starts();
    wait_until("a kubelet runs", async || stage.role().await == "kubelet-started").await;
    assert!(unit(&stage.node).await.is_some(), "it has not shown that it works");
    stage.kubelet_works().await;
    assert_eq!(unit(&stage.node).await, None);
}

#[tokio::test(start_paused = true)]
async fn condition_of_the_node_says_why_and_is_not_written_at_each_restart() {
    let (mut stage, reads) = node_with_failing_unit().await;
    stage.kubelet_exits();
    stage.wait_for_takeover().await;
    wait_for_condition(&stage.node, "KubeletDown").await;
    // The message before the first read of the unit.
    sleep(secs(60)).await;
    stage.node.api.forget_requests();
    let before = reads.load(Ordering::Relaxed);
    sleep(secs(3600)).await;
    assert!(reads.load(Ordering::Relaxed) > before + 300);
    let condition = wait_for_condition(&stage.node, "KubeletDown").await;
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.ends_with(REASON) && message.contains("kubelet.service"),
        "{message}"
    );
    let requests = stage.node.api.requests();
    let writes = requests
        .iter()
        .filter(|it| it.asked.verb == "patch" && it.asked.path.contains("/nodes/"));
    assert!((11..=13).contains(&writes.clone().count()), "{}", writes.count());
}

#[tokio::test(start_paused = true)]
async fn pod_that_waits_for_the_takeover_is_explained_by_the_unit() {
    let (mut stage, _) = node_with_failing_unit().await;
    stage.node.delete("web", None).await;
    stage.kubelet_exits();
    wait_until("the takeover is pending", async || {
        stage.role().await == "takeover-pending"
    })
    .await;
    wait_until("the unit is read", async || unit(&stage.node).await.is_some()).await;
    let socket = &stage.node.flags.socket.socket;
    let why: Explanation = client::get(socket, &request_path("default/web")).await.unwrap();
    let text = why.text();
    let cause = text
        .lines()
        .find(|line| line.contains("kubelet.service"))
        .unwrap_or(&text);
    assert!(
        cause.contains("BLOCKED") && cause.contains("takeover in") && cause.contains(REASON),
        "{text}"
    );
}
