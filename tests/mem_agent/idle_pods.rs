//! Terminal pods with nothing on the node, as disk pressure makes them.

use testbed::scripted_cri::Fault as CriFault;

use crate::devices::DRIVER;
use crate::prelude::*;

/// A pod that the kubelet has rejected: it never had anything on the node.
fn evicted(name: &str) -> Value {
    let mut object = pod(name, &plain());
    object["status"] =
        json!({ "phase": "Failed", "reason": "Evicted", "message": "The node had condition: [DiskPressure]." });
    object
}

/// The agent has seen the pods, and checked the node.
async fn wait_checked(node: &Node, pods: usize) {
    node.wait_status(|it| it.pods.awaiting_deletion, pods).await;
}

#[tokio::test(start_paused = true)]
async fn thousands_of_idle_terminal_pods_get_no_worker_and_delay_no_deletion() {
    let mut node = Node::new().await;
    for number in 0..3_000 {
        node.insert(evicted(&format!("evicted-{number}")));
    }
    node.simple_pod("web");
    node.run().await;
    let began = Instant::now();
    node.tear_down("web").await;
    assert!(began.elapsed() < secs(1), "{:?}", began.elapsed());
    sleep(secs(60)).await;
    let status = node.status().await;
    assert_eq!((status.counters.started, status.pods.awaiting_deletion), (1, 3_000));
    assert_eq!(node.stop().await, Ok(()));
    assert!(node.journal().await.is_empty());
    let seen = node.seen().await;
    assert!(seen.iter().all(|uid| !uid.contains("evicted")), "{}", seen.len());
}

#[tokio::test(start_paused = true)]
async fn terminal_pod_with_anything_on_the_node_gets_a_worker() {
    let mut node = Node::new().await;
    let dir = |path: std::path::PathBuf| fs::create_dir_all(path).unwrap();
    let names = [
        "directory",
        "file",
        "logs",
        "cgroup",
        "mount",
        "sandbox",
        "container",
        "running",
        "claim",
        "prepared",
    ];
    for name in names {
        let mut object = evicted(name);
        if name == "running" {
            object["status"]["containerStatuses"] = json!([{ "name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": { "running": {} } }]);
        }
        if name == "claim" {
            object["spec"]["resourceClaims"] = json!([{ "name": "gpu", "resourceClaimName": "gpu" }]);
        }
        node.insert(object);
    }
    node.insert(evicted("nothing"));
    // Its object has no claim.
    let prepared = Prepared {
        name: "gpu",
        pods: &["prepared"],
        drivers: &[DRIVER],
    };
    checkpoint(&node, &[prepared]);
    dir(node.pod_dir("directory"));
    fs::write(node.pod_dir("file"), "").unwrap();
    dir(node.path("logs").join(format!("default_logs_{}", uid("logs"))));
    dir(node.pod_cgroup("cgroup"));
    let mount = format!(
        "99 31 0:99 / {}/volumes/x rw - tmpfs tmpfs rw\n",
        node.pod_dir("mount").display()
    );
    let table = fs::read_to_string(node.path("mountinfo")).unwrap();
    fs::write(node.path("mountinfo"), table + &mount).unwrap();
    for name in ["sandbox", "container"] {
        node.cri
            .change(|world| drop(world.pod("default", name, &uid(name)).container("main").exited(0)));
    }
    node.cri
        .change(|world| world.sandboxes.retain(|_, sandbox| sandbox.pod_uid != uid("container")));
    node.run().await;
    node.wait_status(|it| it.counters.started >= names.len() as u64, true)
        .await;
    sleep(secs(60)).await;
    assert_eq!(node.status().await.counters.started, names.len() as u64);
}

/// The list kept only few fields of it.
#[tokio::test(start_paused = true)]
async fn terminal_pod_with_a_running_container_gets_the_grace_and_hook_of_its_spec() {
    let mut node = Node::new().await;
    let mut object = evicted("web");
    object["spec"]["terminationGracePeriodSeconds"] = 60.into();
    object["spec"]["containers"][0]["lifecycle"] = json!({ "preStop": { "exec": { "command": ["drain"] } } });
    node.pod("web", &plain(), |pod| pod.container("main"));
    node.insert(object);
    node.cri.in_order([
        expect(ExecSync::of("main").command(&["drain"]).timeout(secs(60))),
        expect(StopContainer::of("main").timeout(secs(60))),
    ]);
    node.run().await;
    node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
}

#[tokio::test(start_paused = true)]
async fn terminal_pod_gets_a_worker_if_the_node_cannot_be_checked() {
    let mut node = Node::new().await;
    node.insert(evicted("web"));
    // The background list of the runtime's pods finds it.
    fs::remove_dir_all(node.path("cgroup/kubepods")).unwrap();
    fs::write(node.path("cgroup/kubepods"), "").unwrap();
    node.run().await;
    node.wait_status(|it| it.counters.started, 1).await;
}

#[tokio::test(start_paused = true)]
async fn idle_terminal_pod_deleted_later_is_finished_and_forgotten() {
    let mut node = Node::new().await;
    node.insert(evicted("db"));
    let mut object = evicted("web");
    // A controller's finalizer.
    object["metadata"]["finalizers"] = json!(["example.com/kept"]);
    node.insert(object);
    node.start().await;
    wait_checked(&node, 2).await;
    node.cri.allow_everything();
    node.delete("web", None).await;
    node.wait_status(|it| it.counters.started, 1).await;
    node.wait_status(|it| it.counters.deleted, 1).await;
    let path = "/api/v1/namespaces/default/pods/web";
    let patch = json!({ "metadata": { "finalizers": null } });
    node.admin
        .patch(path, Patch::Merge, &patch)
        .await
        .unwrap()
        .ok()
        .unwrap();
    node.wait_torn_down("web").await;
    node.delete("db", Some(0)).await;
    node.wait_torn_down("db").await;
    sleep(secs(60)).await;
    let status = node.status().await;
    assert_eq!(
        (
            status.counters.started,
            status.pods.awaiting_deletion,
            status.watch.pods
        ),
        (2, 0, 0)
    );
}

/// The same pod in another namespace.
fn in_namespace(namespace: &str, mut object: Value) -> Value {
    object["metadata"]["namespace"] = namespace.into();
    object["metadata"]["uid"] = format!("uid-web-{namespace}").into();
    object
}

#[tokio::test(start_paused = true)]
async fn request_for_a_pod_in_check_begins_no_pod_of_this_name_in_another_namespace() {
    let node = Node::started(&["lives"]).await;
    node.cri.fault(Read::ListPodSandbox, CriFault::Late(secs(8)));
    node.insert(in_namespace("other", evicted("web")));
    node.insert(evicted("web"));
    node.wait_status(|it| it.watch.pods, 3).await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    assert_eq!(node.status().await.counters.started, 1);
}

#[tokio::test(start_paused = true)]
async fn request_for_a_queued_pod_starts_no_worker_beyond_the_limit() {
    let mut node = Node::new().await;
    let deleted = |mut object: Value| {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        object["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
        object
    };
    for number in 0..40 {
        node.insert(in_namespace(&format!("ns-{number}"), deleted(evicted("web"))));
    }
    inject_fault(&node, Fault::delay(secs(600)).verb("delete").resource("pods"));
    node.start().await;
    let terminating = async || node.status().await.pods.terminating.len();
    wait_until!(terminating().await == 16);
    node.insert(deleted(evicted("web")));
    sleep(secs(1)).await;
    let why = refused(&node, "web/stop", &StopRequest::default()).await;
    assert!(why.contains("ask again"), "{why}");
    sleep(secs(1)).await;
    assert_eq!(terminating().await, 16);
}

#[tokio::test(start_paused = true)]
async fn idle_terminal_pod_deleted_unseen_is_forgotten_without_a_worker() {
    let mut node = Node::with_pods(&["lives"]).await;
    node.insert(evicted("web"));
    node.start().await;
    wait_checked(&node, 1).await;
    // Without watch events the agent has to list again.
    let faults = node.api.faults();
    faults.inject(Fault::new(Action::Refuse).resource("pods").verb("watch").times(3));
    faults.inject(Fault::new(Action::CutWatch).once());
    node.delete("web", Some(0)).await;
    node.api.compact();
    wait_until("the pod is forgotten", async || {
        let status = node.status().await;
        (status.watch.pods, status.pods.awaiting_deletion) == (1, 0)
    })
    .await;
    assert_eq!(node.status().await.counters.started, 0);
}

/// Their creator may keep the objects by a finalizer, as a Job does.
#[tokio::test(start_paused = true)]
async fn hundreds_of_deleted_idle_pods_delay_no_running_pod() {
    for phase in ["Failed", "Pending"] {
        let mut node = Node::new().await;
        for number in 0..200 {
            let mut object = evicted(&format!("evicted-{number}"));
            object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            object["metadata"]["deletionGracePeriodSeconds"] = 0.into();
            object["metadata"]["finalizers"] = json!(["batch.kubernetes.io/job-tracking"]);
            object["status"] = json!({ "phase": phase });
            node.insert(object);
        }
        node.simple_pod("web");
        node.run().await;
        let began = Instant::now();
        node.tear_down("web").await;
        assert!(began.elapsed() < secs(1), "{phase}: {:?}", began.elapsed());
        wait_until("all have had their final delete", async || {
            let status = node.status().await;
            assert!(status.pods.terminating.len() <= 17, "{}", status.pods.terminating.len());
            status.counters.deleted == 201
        })
        .await;
        sleep(secs(60)).await;
        let status = node.status().await;
        assert_eq!(
            (status.pods.awaiting_finalizers, status.pods.terminating.len()),
            (200, 0),
            "{phase}"
        );
        assert_eq!(node.stop().await, Ok(()));
        assert!(node.journal().await.is_empty(), "{phase}");
    }
}
