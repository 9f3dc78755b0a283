//! When the agent must not act: identity mismatch, a kubelet, mirror pods.

use pod_teardown::ops::admin::why::request_path;

use crate::prelude::*;

/// A deletion has had no effect after some minutes.
async fn assert_no_effect(node: &Node, name: &str) {
    node.delete(name, None).await;
    node.api.forget_requests();
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty());
    assert!(node.pod_dir(name).join("etc-hosts").exists());
    assert_eq!(node.phase(name).await, "Running");
    let requests = node.agent_requests().into_iter();
    let writes: Vec<_> = requests
        .filter(|it| !["get", "list", "watch"].contains(&&*it.asked.verb))
        .collect();
    assert!(writes.is_empty(), "{writes:?}");
}

/// Starts an agent; returns its hold.
async fn hold_at_start(node: &mut Node) -> String {
    node.launch().await;
    let held = async || node.try_status().await.and_then(|status| status.blocked);
    wait_until!(held().await.is_some_and(|why| why.starts_with("Node ")));
    held().await.unwrap()
}

/// Adds a kubelet process; removing the returned directory ends it.
pub fn kubelet(node: &Node) -> PathBuf {
    kubelet_at(node, &node.path("kubelet"))
}

/// The same, with this root directory.
pub fn kubelet_at(node: &Node, root: &Path) -> PathBuf {
    let process = node.path("proc/4711");
    fs::create_dir_all(process.join("task/4711")).unwrap();
    fs::write(process.join("comm"), "kubelet-1.36.3\n").unwrap();
    let command = format!("/usr/bin/kubelet-1.36.3\0--root_dir={}\0", root.display());
    fs::write(process.join("cmdline"), command).unwrap();
    symlink("/", process.join("root")).unwrap();
    fs::create_dir(process.join("ns")).unwrap();
    symlink(fs::read_link("/proc/self/ns/mnt").unwrap(), process.join("ns/mnt")).unwrap();
    process
}

#[tokio::test(start_paused = true)]
async fn node_of_another_machine_is_not_touched() {
    for info in [json!({ "machineID": "another" }), json!({ "systemUUID": "another" })] {
        let mut node = Node::with_pods(&["web"]).await;
        fs::create_dir_all(node.path("root/etc")).unwrap();
        fs::write(node.path("root/etc/machine-id"), "this-one\n").unwrap();
        node.insert(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE }, "status": { "nodeInfo": info },
        }));
        let held = hold_at_start(&mut node).await;
        assert_has(&held, &["belongs to another machine", "this-one"]);
        assert_no_effect(&node, "web").await;
    }
}

#[tokio::test(start_paused = true)]
async fn teardown_waits_while_a_kubelet_runs_and_continues_afterwards() {
    let mut node = Node::new().await;
    let hook = json!({ "sleep": { "seconds": 8 } });
    node.pod("web", &hooked(&hook), |pod| pod.container("main"));
    let process = kubelet(&node);
    node.start().await;
    let held = node.status().await.blocked.unwrap();
    assert_has(&held, &["a kubelet runs on this node", "4711"]);
    assert_no_effect(&node, "web").await;
    let report = node.status().await;
    assert_eq!((report.counters.attempts_failed, report.counters.hooks_failed), (0, 0));
    assert!(
        node.events("web").await.is_empty(),
        "nothing was done, so there is nothing to tell"
    );
    fs::remove_dir_all(&process).unwrap();
    node.cri.allow_everything();
    let began = Instant::now();
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    assert!(began.elapsed() >= secs(8), "the whole hook runs: {:?}", began.elapsed());
    node.wait_torn_down("web").await;
}

/// A kubelet tears the pod down, except for its object.
fn kubelet_tears_down(node: &Node, name: &str) {
    node.cri.change(|world| {
        world.containers.retain(|_, it| it.pod_uid != uid(name));
        world.sandboxes.retain(|_, it| it.pod_uid != uid(name));
    });
    fs::remove_dir_all(node.pod_dir(name)).unwrap();
}

#[tokio::test(start_paused = true)]
async fn pods_terminated_by_a_kubelet_do_not_accumulate() {
    let mut node = Node::with_pods(&["lives"]).await;
    let process = kubelet(&node);
    node.start().await;
    for number in 0..30 {
        let name = format!("job-{number}");
        node.simple_pod(&name);
        sleep(secs(1)).await;
        node.delete(&name, None).await;
        sleep(secs(1)).await;
        kubelet_tears_down(&node, &name);
        node.delete(&name, Some(0)).await;
        node.wait_deleted(&name).await;
    }
    sleep(secs(3600)).await;
    let status = node.status().await;
    assert_eq!((status.watch.pods, status.counters.finished), (1, 0));
    let report: Vec<_> = status
        .pods
        .terminating
        .iter()
        .map(|trace| (&trace.name, trace.elapsed_ms))
        .collect();
    assert!(report.is_empty(), "{} of 30: {report:?}", report.len());
    assert!(node.trace("job-1").await.is_none());
    node.crash().await;
    assert!(node.journal().await.is_empty());
    // They do not reappear.
    fs::remove_dir_all(&process).unwrap();
    node.start().await;
    sleep(secs(100)).await;
    let status = node.status().await;
    assert_eq!((status.counters.started, status.pods.terminating.len()), (0, 0));
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn pods_terminated_by_a_kubelet_without_the_agent_do_not_accumulate() {
    let mut node = Node::with_pods(&["lives", "web"]).await;
    kubelet(&node);
    node.start().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "a kubelet runs on this node").await;
    sleep(secs(5)).await;
    node.crash().await;
    assert_eq!(node.journal().await.len(), 1);
    kubelet_tears_down(&node, "web");
    node.delete("web", Some(0)).await;
    node.wait_deleted("web").await;
    node.start().await;
    wait_until("the pod is forgotten", async || {
        let status = node.status().await;
        status.watch.pods == 1 && status.pods.terminating.is_empty()
    })
    .await;
    node.crash().await;
    assert!(node.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn begun_pods_terminated_by_a_kubelet_do_not_accumulate() {
    let mut node = Node::with_pods(&["lives", "kept"]).await;
    node.pod("web", &hooked(&exec()), |pod| pod.container("main").ignores_term());
    node.start().await;
    node.cri.allow_everything();
    ask(&node, "kept/stop", &StopRequest::default()).await.unwrap();
    wait_until!(node.status().await.pods.awaiting_deletion == 1);
    node.delete("web", None).await;
    node.calls(2, |seen| seen.kind == Kind::StopContainer).await;
    kubelet(&node);
    wait_until!(node.status().await.blocked.is_some());
    node.delete_all(["kept", "web"], Some(0)).await;
    // Something of them stays for a while.
    sleep(secs(30)).await;
    assert_eq!(node.status().await.pods.terminating.len(), 2);
    for name in ["kept", "web"] {
        kubelet_tears_down(&node, name);
    }
    wait_until("the pods are forgotten", async || {
        let pods = node.status().await.pods;
        pods.terminating.is_empty() && pods.awaiting_deletion == 0
    })
    .await;
    node.crash().await;
    assert!(node.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stop_request_during_an_identity_mismatch_does_not_name_the_wrong_api_server() {
    let node = Node::started(&["web"]).await;
    inject_fault(&node, Fault::status(404).verb("get").resource("nodes"));
    inject_fault(&node, Fault::new(Action::CutWatch).once());
    wait_until!(node.status().await.blocked.is_some());
    let report = refused(&node, "web/stop", &StopRequest::default()).await;
    assert!(report.contains("left alone") && !report.contains("kubectl"), "{report}");
}

#[tokio::test(start_paused = true)]
async fn busy_server_without_retry_after_is_asked_with_backoff() {
    let mut node = Node::with_pods(&["web"]).await;
    inject_fault(&node, Fault::too_many(0).verb("list").resource("pods").times(20));
    let began = Instant::now();
    node.start().await;
    wait_until!(node.status().await.watch.pods == 1);
    assert!(began.elapsed() > secs(60), "{:?}", began.elapsed());
}

/// A connection to a wrong server blocks everything. The check is repeated after the same time with and without watch events.
#[tokio::test(start_paused = true)]
async fn identity_of_a_busy_node_is_checked_again_as_soon_as_of_others() {
    let mut node = Node::with_pods(&["web", "db"]).await;
    // It reads the Node again while the watch is open.
    node.flags.node_condition = true;
    node.start().await;
    node.cri.allow_everything();
    inject_fault(&node, Fault::status(403).verb("get").resource("nodes").once());
    let second = async |number: usize| {
        let mut db = node.get("db").await.unwrap();
        db["metadata"]["labels"] = json!({ "n": number.to_string() });
        node.insert(db);
        sleep(secs(1)).await;
    };
    for number in 0..400 {
        second(number).await;
        if node.status().await.blocked.is_some() {
            break;
        }
    }
    assert!(node.status().await.blocked.is_some());
    node.delete("web", None).await;
    for number in 400..430 {
        second(number).await;
    }
    assert_eq!(node.status().await.blocked, None);
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn pod_deleted_beside_an_idle_kubelet_is_stopped_afterwards() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| pod.container("main"));
    let process = kubelet(&node);
    node.start().await;
    // Deleted by force. No other pod is left, so that the runtime's list proves nothing.
    node.delete("web", Some(0)).await;
    node.wait_deleted("web").await;
    sleep(secs(300)).await;
    assert_eq!(node.status().await.pods.terminating.len(), 1);
    assert!(node.cri.effects().is_empty());
    fs::remove_dir_all(&process).unwrap();
    node.cri.allow_everything();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn pod_that_ended_beside_a_kubelet_is_remembered_during_an_identity_mismatch() {
    let mut node = Node::with_pods(&["lives", "web"]).await;
    kubelet(&node);
    node.start().await;
    let own = node.admin.get(&format!("/api/v1/nodes/{NODE}")).await.unwrap().body["metadata"].take();
    let is = |metadata: &Value| {
        node.insert(json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }));
        inject_fault(&node, Fault::new(Action::CutWatch).once());
    };
    node.delete("web", Some(0)).await;
    wait_until!(node.status().await.watch.pods == 1);
    is(&json!({ "name": NODE, "uid": "another-uid" }));
    let held = async || node.status().await.blocked.unwrap();
    wait_until!(held().await.starts_with("Node "));
    kubelet_tears_down(&node, "web");
    sleep(secs(300)).await;
    assert_eq!(node.status().await.pods.terminating.len(), 1);
    is(&own);
    wait_until!(node.status().await.pods.terminating.is_empty());
    assert!(held().await.contains("a kubelet runs on this node"));
}

async fn why(node: &Node, name: &str) -> Result<String, String> {
    let answer = node.query::<Explanation>(&request_path(name)).await;
    answer.map(|why| why.text())
}

#[tokio::test(start_paused = true)]
async fn why_of_a_pod_that_is_not_deleted_says_that_it_runs() {
    let mut node = Node::with_pods(&["web"]).await;
    node.start().await;
    for name in ["default/web", &uid("web")] {
        let report = why(&node, name).await.unwrap();
        assert!(report.contains("it is not being deleted"), "{report}");
        assert!(report.contains("it runs, with 1 running container"), "{report}");
    }
    let report = why(&node, "default/other").await.unwrap_err();
    assert!(
        report.contains("no pod default/other on this node") && !report.contains("collect"),
        "{report}"
    );
}

#[tokio::test(start_paused = true)]
async fn mirror_pod_is_never_touched() {
    let mut node = Node::with_pods(&["mirror"]).await;
    let mut mirror = pod("mirror", &plain());
    mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "" });
    node.insert(mirror.clone());
    node.start().await;
    assert_no_effect(&node, "mirror").await;
    let report = why(&node, "default/mirror").await.unwrap();
    assert_has(
        &report,
        &[
            "is the mirror of a static pod",
            "its deletion does not stop the static pod",
        ],
    );
    // Nor when its object is deleted.
    node.delete("mirror", Some(0)).await;
    node.wait_deleted("mirror").await;
    sleep(secs(400)).await;
    assert!(node.cri.effects().is_empty() && node.pod_dir("mirror").exists());
    assert_eq!(node.status().await.counters.started, 0);
}

#[tokio::test(start_paused = true)]
async fn pod_with_a_directory_below_another_root_is_blocked_until_it_exists() {
    let mut node = Node::with_pods(&["web"]).await;
    let (dir, elsewhere) = (node.pod_dir("web"), node.path("elsewhere"));
    fs::rename(&dir, &elsewhere).unwrap();
    node.start().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "Check that --kubelet-root is the kubelet's --root-dir.")
        .await;
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty() && elsewhere.join("etc-hosts").exists());
    assert_eq!(node.phase("web").await, "Running");
    fs::rename(&elsewhere, &dir).unwrap();
    node.cri.allow_everything();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn static_pod_with_the_uid_of_an_api_pod_is_reported_and_never_touched() {
    fn from_file(pod: PodBuilder<'_>) -> PodBuilder<'_> {
        pod.source("file").container("main")
    }
    let mut node = Node::with_pods(&["lives"]).await;
    for name in ["deleted", "gone", "gone-meanwhile"] {
        node.pod(name, &plain(), from_file);
    }
    node.start().await;
    node.delete("deleted", None).await;
    node.delete("gone", Some(0)).await;
    for name in ["deleted", "gone"] {
        node.wait_blocked(name, "Check metadata.uid in the manifests of static pods")
            .await;
        let blocked = node.trace(name).await.unwrap().blocked;
        assert_eq!(blocked[0].reason, BlockedReason::StaticPod);
    }
    node.crash().await;
    node.delete("gone-meanwhile", Some(0)).await;
    node.start().await;
    sleep(secs(900)).await;
    assert!(node.cri.effects().is_empty() && node.get("deleted").await.is_some());
    let unmanaged = node.status().await.housekeeping.unmanaged;
    assert_eq!(
        unmanaged,
        ["default/gone-meanwhile (UID uid-gone-meanwhile): sandbox, directory, cgroup, logs"]
    );
    for name in ["deleted", "gone", "gone-meanwhile"] {
        assert!(node.pod_dir(name).join("etc-hosts").exists());
    }
}

#[tokio::test(start_paused = true)]
async fn pods_whose_objects_are_gone_are_stopped_before_all_others_when_the_gate_opens() {
    let mut node = Node::with_pods(&["early", "late"]).await;
    // With the shortest grace period its stop takes 2 s.
    node.stubborn_pod("gone");
    let process = kubelet(&node);
    node.start().await;
    node.cri.allow_everything();
    node.delete("early", None).await;
    node.wait_blocked("early", "a kubelet runs on this node").await;
    node.delete("gone", Some(0)).await;
    node.wait_blocked("gone", "a kubelet runs on this node").await;
    node.delete("late", None).await;
    node.wait_blocked("late", "a kubelet runs on this node").await;
    fs::remove_dir_all(&process).unwrap();
    let is_stop = |seen: &Seen, of_gone| seen.kind == Kind::StopContainer && (seen.pod_uid == uid("gone")) == of_gone;
    let others = node.calls(2, |seen| is_stop(seen, false)).await;
    let gone = node.calls(1, |seen| is_stop(seen, true)).await;
    for (at, stop) in others {
        assert!(at >= gone[0].0 + secs(2), "{stop:?} at {at:?}, and {gone:?}");
    }
    node.wait_all_torn_down(["early", "gone", "late"]).await;
}
