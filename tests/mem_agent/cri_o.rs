//! Pods of CRI-O, which behaves differently from containerd.

use crate::prelude::*;

async fn node() -> Node {
    let node = Node::new().await;
    node.cri.change(|world| *world = World::with(Manners::CriO));
    node.cri.allow_everything();
    node
}

/// Of this agent before a restart, or of a kubelet.
#[tokio::test(start_paused = true)]
async fn unanswered_repeated_stop_is_waited_for_only_while_the_container_runs() {
    for (exits_after, of_kubelet, grace, took) in [
        (1_000, false, 30, 30..60),
        (20, false, 3_600, 20..25),
        (20, true, 3_600, 20..35),
    ] {
        let mut node = node().await;
        node.pod("web", &plain(), |pod| {
            pod.container("main").ends_after_term(secs(exits_after), 0)
        });
        if of_kubelet {
            node.cri
                .change(|world| world.containers.values_mut().for_each(|it| it.abandoned = true));
        }
        node.start().await;
        let began = Instant::now();
        node.delete("web", Some(grace)).await;
        if !of_kubelet {
            node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
            node.crash().await;
            sleep(secs(5)).await;
            node.start().await;
        }
        node.wait_deleted("web").await;
        assert_took(began, secs(took.start)..secs(took.end));
    }
}

#[tokio::test(start_paused = true)]
async fn sidecar_is_stopped_after_the_main_container_exits_without_an_answer_to_its_stop() {
    let mut node = node().await;
    let mut object = pod("web", &plain());
    object["spec"]["initContainers"] = json!([{ "name": "proxy", "image": "i", "restartPolicy": "Always" }]);
    node.insert(object);
    node.pod_without_object("web", |pod| {
        pod.container("proxy")
            .ignores_term()
            .container("main")
            .ends_after_term(secs(20), 0)
    });
    node.start().await;
    let began = Instant::now();
    node.delete("web", Some(3600)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node.restart().await;
    node.calls(1, |seen| seen.name == "proxy").await;
    assert_took(began, secs(20)..secs(25));
}

#[tokio::test(start_paused = true)]
async fn failed_network_teardown_is_reported_after_the_next_stop_succeeds() {
    let mut node = node().await;
    node.pod("web", &plain(), |pod| {
        pod.network_fails("failed to destroy network for pod sandbox")
            .container("main")
    });
    node.hold_object("web").await;
    node.start().await;
    node.delete("web", None).await;
    node.wait_status(|it| it.counters.deleted, 1).await;
    let why = node.why("web").await;
    assert_has(&why, &["network may still exist", "failed to destroy network"]);
}

#[tokio::test(start_paused = true)]
async fn half_created_sandbox_blocks_no_pod() {
    let mut node = node().await;
    node.pod("web", &plain(), |pod| pod.half_made());
    node.start().await;
    let began = Instant::now();
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
}
