//! Unreadable container statuses: running containers are stopped, and unreadable exits are unknown.

use testbed::scripted_cri::Fault;

use crate::prelude::*;

fn broken() -> Fault {
    Fault::Error(Code::Unknown, "image \"sha256:1\": not found".to_owned())
}

/// A pod with an exited and a running container, whose object stays.
async fn init_and_main() -> Node {
    let mut node = Node::new().await;
    let mut object = pod("web", &json!([{ "name": "main", "image": "i" }]));
    object["spec"]["initContainers"] = json!([{ "name": "init", "image": "i" }]);
    object["metadata"]["finalizers"] = json!(["test/hold"]);
    node.insert(object);
    node.pod_without_object("web", |pod| {
        pod.container("init")
            .exited(0)
            .container("main")
            .ends_after_term(secs(3), 5)
    });
    node.run().await;
    node
}

/// Waits for the terminal phase; returns a container's status.
async fn ended(node: &Node, list: &str) -> Value {
    wait_until!(matches!(
        node.get("web").await.unwrap()["status"]["phase"].as_str(),
        Some("Failed" | "Succeeded")
    ));
    node.get("web").await.unwrap()["status"][list][0]["state"]["terminated"].clone()
}

#[tokio::test(start_paused = true)]
async fn running_container_is_stopped_despite_another_unreadable_status() {
    for fault in [broken(), Fault::Hang, Fault::Error(Code::Unimplemented, String::new())] {
        let node = init_and_main().await;
        node.cri.fault_of(Read::ContainerStatus, "init", fault);
        let began = Instant::now();
        node.delete("web", None).await;
        node.calls(1, |seen| seen.kind == Kind::StopContainer && seen.name == "main")
            .await;
        assert!(began.elapsed() < secs(3), "{:?}", began.elapsed());
        assert_eq!(ended(&node, "containerStatuses").await["exitCode"], 5);
        let init = ended(&node, "initContainerStatuses").await;
        assert_fields(&init, &json!({ "exitCode": 137, "reason": "ContainerStatusUnknown" }));
        assert!(began.elapsed() < secs(300), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn container_listed_as_running_is_stopped_despite_its_status() {
    let node = init_and_main().await;
    node.cri.fault_of(Read::ContainerStatus, "main", broken());
    node.delete("web", None).await;
    let stops = node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    assert_eq!(stops[0].1.timeout, Some(secs(30)));
    let main = ended(&node, "containerStatuses").await;
    assert_fields(&main, &json!({ "exitCode": 137, "reason": "ContainerStatusUnknown" }));
    assert_eq!(node.phase("web").await, "Failed", "an unknown exit is no success");
}

#[tokio::test(start_paused = true)]
async fn exit_that_is_readable_after_retries_is_reported() {
    let node = init_and_main().await;
    node.cri.fault_of(Read::ContainerStatus, "main", broken());
    node.delete("web", None).await;
    node.wait_blocked("web", "its exit code cannot be read").await;
    let trace = node.trace("web").await.unwrap();
    assert!(
        trace
            .blocked
            .iter()
            .all(|it| (it.step, &*it.target) == (Some(Step::Status), "main")),
        "{:?}",
        trace.blocked
    );
    node.cri.heal();
    assert_eq!(ended(&node, "containerStatuses").await["exitCode"], 5);
}

#[tokio::test(start_paused = true)]
async fn exit_shown_by_the_api_server_is_not_read_again() {
    let node = init_and_main().await;
    let runtime = node.cri.look(|world| world.runtime.0.clone());
    let id = format!("{runtime}://container-uid-web-init-0");
    let mut object = node.get("web").await.unwrap();
    object["status"]["initContainerStatuses"] = json!([{
        "name": "init", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
        "containerID": id,
        "state": { "terminated": { "exitCode": 0, "reason": "Completed", "containerID": id } },
    }]);
    node.insert(object);
    node.cri.fault_of(Read::ContainerStatus, "init", broken());
    let began = Instant::now();
    node.delete("web", None).await;
    let init = ended(&node, "initContainerStatuses").await;
    assert_fields(&init, &json!({ "exitCode": 0, "reason": "Completed" }));
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn failed_runtime_query_counts_for_the_step_that_needed_it() {
    let node = Node::started(&["web"]).await;
    node.allow([StopContainer::any(), StopPodSandbox::any()]);
    for pattern in [RemoveContainer::any(), RemovePodSandbox::any()] {
        node.always(expect(pattern).error(Code::Unknown, "busy"));
    }
    node.delete("web", None).await;
    node.wait_blocked("web", "busy").await;
    node.cri.fault(
        Read::ListContainers,
        Fault::Error(Code::Unknown, "database is locked".to_owned()),
    );
    node.wait_blocked("web", "database is locked").await;
    let blocked = node.trace("web").await.unwrap().blocked;
    assert!(blocked.iter().all(|it| it.step == Some(Step::Cleanup)), "{blocked:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_runtime_query_after_the_stop_is_no_stop_failure() {
    let node = Node::started(&["web"]).await;
    node.always(expect(StopContainer::any()));
    node.always(expect(StopPodSandbox::any()).then(secs(5)));
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopPodSandbox).await;
    node.cri.fault(
        Read::ListPodSandbox,
        Fault::Error(Code::Unknown, "database is locked".to_owned()),
    );
    sleep(secs(5)).await;
    wait_until!(node.trace("web").await.is_some_and(|trace| !trace.blocked.is_empty()));
    let blocked = node.trace("web").await.unwrap().blocked;
    assert!(blocked.iter().all(|it| it.step == Some(Step::Sandbox)), "{blocked:?}");
    node.cri.heal();
    node.cri.allow_everything();
    node.wait_torn_down("web").await;
}
