//! Role changes are logged and shown in status.

use crate::{
    log::Log,
    node::{secs, wait_until},
    standby::NodeWithKubelet,
};
use tokio::time::sleep;

#[tokio::test(start_paused = true)]
async fn each_role_change_is_logged_with_its_evidence_and_status_has_its_time() {
    let log = Log::new();
    let mut stage = NodeWithKubelet::new().await;
    stage.node.delete("web", None).await;
    stage.kubelet_works().await;
    let since = async |stage: &NodeWithKubelet| stage.node.status().await.role.unwrap().since.unwrap();
    let works = since(&stage).await;
    assert_eq!(log.lines("the kubelet works").len(), 1);
    stage.kubelet_exits();
    stage.wait_for_takeover().await;
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
    let ours = since(&stage).await;
    assert!(ours > works);
    sleep(secs(60)).await;
    assert_eq!(since(&stage).await, ours);
    stage.kubelet_starts();
    wait_until("the agent is standby", async || stage.role().await == "kubelet-started").await;
    sleep(secs(10)).await;
    assert_eq!(
        log.lines("the kubelet works").len(),
        1,
        "a process is no working kubelet"
    );
    stage.kubelet_works().await;
    assert_eq!(log.lines("the kubelet works").len(), 2);
    assert!(since(&stage).await > ours);
}

#[tokio::test(start_paused = true)]
async fn kubelet_that_never_works_is_logged_once_and_again_when_it_becomes_unresponsive() {
    let log = Log::new();
    let mut stage = NodeWithKubelet::new().await;
    for _ in 0..10 {
        stage.kubelet_exits();
        sleep(secs(8)).await;
        stage.kubelet_starts();
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
    assert_eq!(stage.role().await, "kubelet-unresponsive");
    let lines = log.lines("the kubelet is unresponsive");
    assert!(lines.len() == 1 && lines[0].contains("ERROR"), "{lines:?}");
}
