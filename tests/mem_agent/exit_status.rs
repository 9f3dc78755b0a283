//! Real exit statuses are reported, even if the runtime has forgotten the containers.

use crate::prelude::*;

/// A pod that exits with 7 and a termination message. A finalizer keeps its object, and the API refuses the status.
async fn terminated_and_unreported(node: &mut Node) {
    let message = node.path("words");
    terminated_with_message(node, &message).await;
}

/// The same, with the termination message in this file.
async fn terminated_with_message(node: &mut Node, message: &Path) {
    fs::write(message, "disk on fire").unwrap();
    let mut held = pod("web", &plain());
    held["metadata"]["finalizers"] = json!(["test/hold"]);
    node.pod("web", &plain(), |pod| {
        pod.container("main").ends_after_term(secs(1), 7).termination_message(
            "/dev/termination-log",
            message.to_str().unwrap(),
            "File",
        )
    });
    node.insert(held);
    node.run().await;
    inject_fault(node, Fault::status(503).resource("pods/status").times(1000));
    node.delete("web", None).await;
    node.wait_blocked("web", "status: PATCH").await;
}

fn forget_containers(node: &Node) {
    node.cri.change(|world| {
        world.containers.clear();
        world.sandboxes.clear();
    });
    fs::remove_file(node.path("words")).unwrap();
}

async fn reported_status(node: &Node) -> Value {
    wait_until!(node.phase("web").await != "Running");
    node.get("web").await.unwrap()["status"].take()
}

fn assert_real_exit(status: &Value) {
    let end = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&status["phase"], &end["exitCode"], &end["reason"], &end["message"]),
        (&json!("Failed"), &json!(7), &json!("Error"), &json!("disk on fire")),
        "{status}"
    );
    for time in ["startedAt", "finishedAt"] {
        assert!(end[time].as_str().is_some_and(|time| time > "2"), "{end}");
    }
}

#[tokio::test(start_paused = true)]
async fn exit_codes_are_kept_when_the_runtime_forgets_containers_also_after_a_restart() {
    for restarts in [false, true] {
        let mut node = Node::new().await;
        terminated_and_unreported(&mut node).await;
        if restarts {
            node.crash().await;
        }
        forget_containers(&node);
        sleep(secs(100)).await;
        node.api.faults().clear();
        if restarts {
            node.start().await;
        }
        assert_real_exit(&reported_status(&node).await);
    }
}

#[tokio::test(start_paused = true)]
async fn termination_message_of_a_removed_volume_is_reported_after_a_crash() {
    let mut node = Node::new().await;
    let volume = node.pod_dir("web").join("volumes/kubernetes.io~empty-dir/data");
    fs::create_dir_all(&volume).unwrap();
    terminated_with_message(&mut node, &volume.join("words")).await;
    wait_until!(!volume.exists());
    node.crash().await;
    node.api.faults().clear();
    node.start().await;
    assert_real_exit(&reported_status(&node).await);
}

#[tokio::test(start_paused = true)]
async fn without_a_journal_the_exit_is_unknown_and_never_success() {
    let mut node = Node::new().await;
    terminated_and_unreported(&mut node).await;
    node.crash().await;
    forget_containers(&node);
    fs::remove_file(node.flags.state_dir.join(pod_teardown::journal::FILE)).unwrap();
    node.api.faults().clear();
    node.start().await;
    let status = reported_status(&node).await;
    let end = &status["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(status["phase"], "Failed", "{status}");
    assert_ne!(end["exitCode"], 0, "{status}");
    assert_ne!(end["exitCode"], 7, "{status}");
}

#[tokio::test(start_paused = true)]
async fn recorded_exit_does_not_prove_that_nothing_runs() {
    let mut node = Node::new().await;
    terminated_and_unreported(&mut node).await;
    forget_containers(&node);
    let cgroup = node.pod_cgroup("web").join("container");
    fs::create_dir_all(&cgroup).unwrap();
    fs::write(cgroup.join("cgroup.procs"), "4711\n").unwrap();
    node.api.faults().clear();
    node.wait_blocked("web", "blocked: 1 processes in this cgroup").await;
    sleep(secs(100)).await;
    assert_eq!(node.phase("web").await, "Running");
}
