//! Role changes are logged and shown in status.

use crate::prelude::*;

#[tokio::test(start_paused = true)]
async fn each_role_change_is_logged_with_its_evidence_and_status_has_its_time() {
    let log = Log::new();
    let mut node = NodeWithKubelet::new().await;
    node.delete("web", None).await;
    node.kubelet_works().await;
    let since = async |node: &NodeWithKubelet| node.status().await.role.unwrap().since.unwrap();
    let works = since(&node).await;
    assert_eq!(log.lines("the kubelet works").len(), 1);
    node.kubelet_exits();
    node.wait_for_takeover().await;
    let lines = log.lines("this agent takes over its pods");
    assert_eq!(lines.len(), 1, "{lines:?}");
    for sign in ["process down", "healthz down", "lease down"] {
        assert!(lines[0].contains("WARN") && lines[0].contains(sign), "{lines:?}");
    }
    let away = log.lines("the kubelet is down; takeover");
    assert_eq!(
        away.len(),
        1,
        "said once, and not each time that less is left: {away:?}"
    );
    let ours = since(&node).await;
    assert!(ours > works);
    sleep(secs(60)).await;
    assert_eq!(since(&node).await, ours);
    node.kubelet_starts();
    wait_until!(node.role().await == "kubelet-started");
    sleep(secs(10)).await;
    assert_eq!(
        log.lines("the kubelet works").len(),
        1,
        "a process is no working kubelet"
    );
    node.kubelet_works().await;
    assert_eq!(log.lines("the kubelet works").len(), 2);
    assert!(since(&node).await > ours);
}

#[tokio::test(start_paused = true)]
async fn kubelet_that_never_works_is_logged_once_and_again_when_it_becomes_unresponsive() {
    let log = Log::new();
    let mut node = NodeWithKubelet::new().await;
    for _ in 0..10 {
        node.kubelet_exits();
        sleep(secs(8)).await;
        node.kubelet_starts();
        sleep(secs(3)).await;
    }
    let failing = log.lines("this agent is active between its starts");
    assert!(failing.len() == 1 && failing[0].contains("WARN"), "{failing:?}");
    for line in ["A kubelet process exists", "Standing by", "takes over its pods"] {
        let lines = log.lines(line);
        let since = lines.iter().filter(|it| it.as_str() > failing[0].as_str()).count();
        assert_eq!(since, 0, "nothing is said of each start: {lines:?}");
    }
    sleep(secs(60)).await;
    assert_eq!(node.role().await, "kubelet-unresponsive");
    let lines = log.lines("the kubelet is unresponsive");
    assert!(lines.len() == 1 && lines[0].contains("ERROR"), "{lines:?}");
}
