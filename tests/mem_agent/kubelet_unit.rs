//! Why the kubelet does not work: the state of its unit in the status, in the Node's condition and in the answers to `why`.

use std::sync::atomic::{AtomicU32, Ordering};

use futures::FutureExt as _;
use pod_teardown::model::kubelet_unit::{KubeletUnit, UnitExit};

use crate::node_condition::{node_with_kubelet, wait_for_condition};
use crate::prelude::*;

const REASON: &str = "exit code 1; last error: failed to parse kubelet flag: unknown flag: --no-such-flag";

/// A node whose kubelet's unit has restarted once more at each read; and how often it was read.
async fn node_with_failing_unit() -> (NodeWithKubelet, Arc<AtomicU32>) {
    let mut node = node_with_kubelet().await;
    node.stop().await.unwrap();
    let reads = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&reads);
    node.outside.kubelet_unit = Some(Arc::new(move |learned| {
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
    node.start().await;
    (node, reads)
}

async fn unit(node: &Node) -> Option<KubeletUnit> {
    node.status().await.role.unwrap().kubelet_unit
}

#[tokio::test(start_paused = true)]
async fn unit_is_read_every_ten_seconds_and_never_while_the_kubelet_works() {
    let (mut node, reads) = node_with_failing_unit().await;
    node.kubelet_works().await;
    reads.store(0, Ordering::Relaxed);
    for _ in 0..6 {
        node.renew().await;
        sleep(secs(10)).await;
    }
    assert_eq!((reads.load(Ordering::Relaxed), unit(&node).await), (0, None));
    node.kubelet_exits();
    sleep(secs(600)).await;
    let read = reads.load(Ordering::Relaxed);
    assert!((50..=61).contains(&read), "{read}");
    assert!(unit(&node).await.unwrap().details().ends_with(REASON));
    node.kubelet_starts();
    wait_until!(node.role().await == "kubelet-started");
    assert!(unit(&node).await.is_some(), "it has not shown that it works");
    node.kubelet_works().await;
    assert_eq!(unit(&node).await, None);
}

#[tokio::test(start_paused = true)]
async fn condition_of_the_node_says_why_and_is_not_written_at_each_restart() {
    let (mut node, reads) = node_with_failing_unit().await;
    node.kubelet_exits();
    node.wait_for_takeover().await;
    wait_for_condition(&node, "KubeletDown").await;
    // The message before the first read of the unit.
    sleep(secs(60)).await;
    node.api.forget_requests();
    let before = reads.load(Ordering::Relaxed);
    sleep(secs(3600)).await;
    assert!(reads.load(Ordering::Relaxed) > before + 300);
    let condition = wait_for_condition(&node, "KubeletDown").await;
    let message = condition["message"].as_str().unwrap();
    assert!(
        message.ends_with(REASON) && message.contains("kubelet.service"),
        "{message}"
    );
    let requests = node.api.requests();
    let writes = requests
        .iter()
        .filter(|it| it.asked.verb == "patch" && it.asked.path.contains("/nodes/"));
    assert!((11..=13).contains(&writes.clone().count()), "{}", writes.count());
}

#[tokio::test(start_paused = true)]
async fn pod_that_waits_for_the_takeover_is_explained_by_the_unit() {
    let (mut node, _) = node_with_failing_unit().await;
    node.delete("web", None).await;
    node.kubelet_exits();
    wait_until!(node.role().await == "takeover-pending");
    wait_until!(unit(&node).await.is_some());
    let text = node.why("web").await;
    let cause = text
        .lines()
        .find(|line| line.contains("kubelet.service"))
        .unwrap_or(&text);
    assert!(
        cause.contains("BLOCKED") && cause.contains("takeover in") && cause.contains(REASON),
        "{text}"
    );
}
