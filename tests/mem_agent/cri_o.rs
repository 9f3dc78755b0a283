//! Pods of CRI-O, which behaves differently from containerd.

use serde_json::json;
use testbed::scripted_cri::{Fault, Kind, Logged, Manners, Read, World};
use tokio::time::{Instant, sleep};

use crate::{
    node::{Node, secs, wait_until},
    pods::{exec, hooked, plain, pod, uid},
};

async fn node() -> Node {
    let node = Node::new().await;
    node.cri.change(|world| *world = World::with(Manners::CriO));
    node.cri.allow_everything();
    node
}

/// Its object stays after its termination.
fn kept_object(node: &Node, name: &str) {
    let mut object = pod(name, &plain());
    object["metadata"]["finalizers"] = json!(["test/hold"]);
    node.insert(object);
}

#[tokio::test(start_paused = true)]
async fn containers_are_stopped_within_grace_and_not_by_the_sandbox_stop() {
    let mut node = node().await;
    node.pod("web", &plain(), |pod| drop(pod.container("main").ignores_term()));
    node.start().await;
    let began = Instant::now();
    node.delete("web", Some(7)).await;
    node.wait_torn_down("web").await;
    let took = began.elapsed();
    assert!(took >= secs(7) && took < secs(9), "{took:?}");
    let kinds: Vec<_> = node.kinds().into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(
        kinds,
        [
            Kind::StopContainer,
            Kind::StopPodSandbox,
            Kind::RemoveContainer,
            Kind::RemovePodSandbox
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn unanswered_stop_repeated_after_a_restart_is_not_waited_for() {
    let mut node = node().await;
    node.pod("web", &plain(), |pod| drop(pod.container("main").ignores_term()));
    node.start().await;
    let began = Instant::now();
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node.crash().await;
    sleep(secs(10)).await;
    node.start().await;
    node.calls(2, |seen| seen.kind == Kind::StopContainer).await;
    node.wait_deleted("web").await;
    let took = began.elapsed();
    assert!(took >= secs(30) && took < secs(60), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn unanswered_repeated_stop_is_waited_for_only_while_the_container_runs() {
    let mut node = node().await;
    node.pod("web", &plain(), |pod| {
        drop(pod.container("main").ends_after_term(secs(20), 0));
    });
    node.start().await;
    let began = Instant::now();
    node.delete("web", Some(3600)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node.crash().await;
    sleep(secs(5)).await;
    node.start().await;
    node.wait_deleted("web").await;
    let took = began.elapsed();
    assert!(took >= secs(20) && took < secs(25), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn stop_repeating_one_of_a_dead_kubelet_is_waited_for_only_while_the_container_runs() {
    let mut node = node().await;
    node.pod("web", &plain(), |pod| {
        drop(pod.container("main").ends_after_term(secs(20), 0));
    });
    node.cri
        .change(|world| world.containers.values_mut().for_each(|it| it.abandoned = true));
    node.start().await;
    let began = Instant::now();
    node.delete("web", Some(3600)).await;
    node.wait_deleted("web").await;
    let took = began.elapsed();
    assert!(took >= secs(20) && took < secs(35), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn sidecar_is_stopped_after_the_main_container_exits_without_an_answer_to_its_stop() {
    let mut node = node().await;
    let mut object = pod("web", &plain());
    object["spec"]["initContainers"] = json!([{ "name": "proxy", "image": "i", "restartPolicy": "Always" }]);
    node.insert(object);
    node.pod_without_object("web", |pod| {
        drop(
            pod.container("proxy")
                .ignores_term()
                .container("main")
                .ends_after_term(secs(20), 0),
        );
    });
    node.start().await;
    let began = Instant::now();
    node.delete("web", Some(3600)).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    node.crash().await;
    node.start().await;
    node.calls(1, |seen| seen.name == "proxy").await;
    let took = began.elapsed();
    assert!(took >= secs(20) && took < secs(25), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn overrunning_hook_is_terminated_before_the_stop() {
    let mut node = node().await;
    node.pod("web", &hooked(&exec()), |pod| {
        drop(pod.container("main").commands(secs(300), 0, b""));
    });
    node.start().await;
    node.delete("web", Some(10)).await;
    node.wait_deleted("web").await;
    let kinds: Vec<_> = node.kinds().into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds[..2], [Kind::ExecSync, Kind::StopContainer]);
    assert_eq!(node.count_events("web", "FailedPreStopHook").await, 1);
}

#[tokio::test(start_paused = true)]
async fn missing_exit_code_is_read_again_and_then_unknown() {
    let mut node = node().await;
    kept_object(&node, "web");
    node.pod_without_object("web", |pod| drop(pod.container("main").ends_after_term(secs(1), -1)));
    node.start().await;
    node.delete("web", None).await;
    wait_until("the API shows its end", async || {
        node.get("web").await.unwrap()["status"]["phase"] == "Failed"
    })
    .await;
    let object = node.get("web").await.unwrap();
    let end = &object["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&end["exitCode"], &end["reason"]),
        (&json!(137), &json!("ContainerStatusUnknown"))
    );
    let reads = node.cri.log().into_iter();
    let reads = reads.filter(|entry| matches!(&entry.call, Logged::Read("ContainerStatus", _)));
    assert!(reads.count() > 4);
}

#[tokio::test(start_paused = true)]
async fn late_exit_code_is_reported() {
    let mut node = node().await;
    kept_object(&node, "web");
    node.pod_without_object("web", |pod| drop(pod.container("main").ends_after_term(secs(1), -1)));
    node.start().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "its exit code cannot be read").await;
    node.cri
        .change(|world| world.containers.values_mut().for_each(|it| it.exit_code = 0));
    wait_until("the API shows its end", async || {
        node.get("web").await.unwrap()["status"]["phase"] == "Succeeded"
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn event_stream_that_ends_at_once_is_reopened_with_backoff() {
    let mut node = node().await;
    node.simple_pod("web");
    node.start().await;
    let count = |name: &str| {
        let is_it = |call: &Logged| matches!(call, Logged::Read(called, _) if *called == name);
        node.cri.log().iter().filter(|entry| is_it(&entry.call)).count()
    };
    let before = (count("ListPodSandbox"), count("GetContainerEvents"));
    sleep(secs(300)).await;
    let (lists, streams) = (
        count("ListPodSandbox") - before.0,
        count("GetContainerEvents") - before.1,
    );
    assert!(
        (10..100).contains(&lists) && streams <= lists,
        "{lists} lists, {streams} streams"
    );
}

#[tokio::test(start_paused = true)]
async fn failed_network_teardown_is_reported_after_the_next_stop_succeeds() {
    let mut node = node().await;
    kept_object(&node, "web");
    node.pod_without_object("web", |pod| {
        drop(
            pod.network_fails("failed to destroy network for pod sandbox")
                .container("main"),
        );
    });
    node.start().await;
    node.delete("web", None).await;
    wait_until("the object is deleted", async || {
        node.status().await.counters.deleted == 1
    })
    .await;
    let why = node.why("web").await;
    assert!(
        why.contains("network may still exist") && why.contains("failed to destroy network"),
        "{why}"
    );
}

#[tokio::test(start_paused = true)]
async fn half_created_sandbox_blocks_no_pod() {
    let mut node = node().await;
    node.pod("web", &plain(), |pod| drop(pod.half_made()));
    node.start().await;
    let began = Instant::now();
    node.delete("web", None).await;
    node.wait_deleted("web").await;
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn pod_deleted_by_force_is_found_without_runtime_events() {
    let mut node = node().await;
    node.simple_pod("web");
    node.simple_pod("db");
    node.start().await;
    node.cri.fault(
        Read::GetContainerEvents,
        Fault::Error(tonic::Code::Unknown, "container events are disabled".to_owned()),
    );
    node.delete("web", Some(0)).await;
    wait_until("its containers are gone", async || {
        node.cri
            .look(|world| world.sandboxes.values().all(|it| it.pod_uid != uid("web")))
    })
    .await;
}
