//! An API server that is down, busy, restored, or whose answers are lost.

use crate::prelude::*;

/// Status codes of the agent's requests with this verb and resource.
pub fn request_codes(node: &Node, verb: &str, resource: &str) -> Vec<Option<u16>> {
    let requests = node.agent_requests().into_iter();
    let wanted = requests.filter(|it| it.asked.verb == verb && it.asked.resource == resource);
    wanted.map(|request| request.code).collect()
}

/// Injects a fault into the agent's requests only.
pub fn inject_fault(node: &Node, fault: Fault) {
    node.api.faults().inject(fault.user(&format!("system:node:{NODE}")));
}

async fn with_simple_pod() -> Node {
    Node::running(&["web"]).await
}

#[tokio::test(start_paused = true)]
async fn agent_waits_for_an_api_server_that_is_down_at_start() {
    let mut node = Node::with_pods(&["web"]).await;
    node.delete("web", None).await;
    inject_fault(&node, Fault::new(Action::Refuse));
    node.launch().await;
    wait_until!(node.try_status().await.is_some_and(|it| it.watch.error.is_some()));
    sleep(secs(120)).await;
    assert!(node.status().await.blocked.unwrap().contains("has not been seen"));
    node.api.faults().clear();
    node.cri.allow_everything();
    node.wait_torn_down("web").await;
    assert_eq!(node.status().await.watch.error, None);
}

/// A volume with a secret, and the pod's cgroup.
fn volume_and_cgroup(node: &Node) -> [PathBuf; 2] {
    let volume = node.pod_dir("web").join("volumes/kubernetes.io~secret/token");
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("key"), "value").unwrap();
    [volume, node.pod_cgroup("web")]
}

async fn wait_cleaned(paths: &[PathBuf]) {
    wait_until!(paths.iter().all(|path| !path.exists()));
}

#[tokio::test(start_paused = true)]
async fn api_server_outage_is_waited_for_without_loss() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| {
        pod.container("main").ends_after_term(secs(10), 0)
    });
    let paths = volume_and_cgroup(&node);
    node.run().await;
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    inject_fault(&node, Fault::new(Action::CutWatch).once());
    inject_fault(&node, Fault::new(Action::Refuse));
    node.wait_blocked("web", "status").await;
    sleep(secs(600)).await;
    // Only steps that do not need it are done.
    assert!(paths.iter().all(|path| !path.exists()));
    node.cri.look(|world| {
        assert!(world.sandboxes.len() == 1 && world.sandboxes.values().all(|sandbox| !sandbox.ready));
        assert_eq!(world.containers.len(), 1);
    });
    assert!(node.pod_dir("web").join("etc-hosts").exists() && node.get("web").await.is_some());
    assert!(node.path("logs").read_dir().unwrap().count() == 1);
    let why = node.why("web").await;
    assert_has(&why, &["BLOCKED  the API server does not answer this agent"]);
    node.api.faults().clear();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn state_neither_in_the_api_nor_in_the_journal_is_not_cleaned() {
    let mut node = Node::with_pods(&["web"]).await;
    let paths = volume_and_cgroup(&node);
    // The journal's path is blocked by something that cannot be removed.
    let blocked = node.flags.state_dir.join("journal.new");
    fs::create_dir_all(blocked.join("x")).unwrap();
    node.run().await;
    inject_fault(&node, Fault::status(503).verb("patch").resource("pods/status"));
    node.delete("web", None).await;
    node.wait_blocked(
        "web",
        "until the journal on disk has recorded the exits of the containers",
    )
    .await;
    sleep(secs(300)).await;
    assert!(paths.iter().all(|path| path.exists()));
    fs::rename(&blocked, node.path("away")).unwrap();
    wait_cleaned(&paths).await;
    node.api.faults().clear();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_cleaned_without_an_api_server_beside_a_kubelet() {
    let mut node = Node::new().await;
    node.pod("web", &plain(), |pod| {
        pod.container("main").ends_after_term(secs(10), 0)
    });
    let paths = volume_and_cgroup(&node);
    node.run().await;
    inject_fault(&node, Fault::status(503).verb("patch").resource("pods/status"));
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    let process = kubelet(&node);
    sleep(secs(120)).await;
    assert!(paths.iter().all(|path| path.exists()));
    fs::remove_dir_all(&process).unwrap();
    wait_cleaned(&paths).await;
}

#[tokio::test(start_paused = true)]
async fn deletion_during_a_broken_watch_is_found_after_an_expired_history() {
    for forgotten in [false, true] {
        let node = with_simple_pod().await;
        let lists = request_codes(&node, "list", "pods").len();
        inject_fault(
            &node,
            Fault::new(Action::Refuse).resource("pods").verb("watch").times(1),
        );
        inject_fault(&node, Fault::new(Action::CutWatch).once());
        node.delete("web", None).await;
        if forgotten {
            node.api.compact();
        }
        node.wait_torn_down("web").await;
        assert!(request_codes(&node, "list", "pods").len() > lists || !forgotten);
    }
}

#[tokio::test(start_paused = true)]
async fn broken_watch_restarts_with_backoff() {
    let node = with_simple_pod().await;
    node.api.forget_requests();
    inject_fault(&node, Fault::new(Action::CutWatch));
    sleep(secs(120)).await;
    let watches = request_codes(&node, "watch", "pods").len();
    assert!((5..40).contains(&watches), "{watches} watches within two minutes");
    node.api.faults().clear();
    node.tear_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn silent_watch_is_checked_after_five_minutes() {
    let node = with_simple_pod().await;
    inject_fault(&node, Fault::new(Action::StallWatch).once());
    sleep(secs(1)).await;
    let began = Instant::now();
    node.tear_down("web").await;
    assert_took(began, secs(200)..secs(310));
}

#[tokio::test(start_paused = true)]
async fn refused_credentials_are_read_again() {
    let mut node = Node::with_pods(&["web"]).await;
    node.delete("web", None).await;
    let good = fs::read_to_string(node.path("kubeconfig")).unwrap();
    let stale = testbed::api::kubeconfig(&node.api.url(), None, "stale", "no such token");
    fs::write(node.path("kubeconfig"), stale).unwrap();
    node.launch().await;
    wait_until!(
        node.try_status()
            .await
            .and_then(|it| it.watch.error)
            .is_some_and(|error| error.contains("401"))
    );
    sleep(secs(60)).await;
    // 401 never means absence.
    assert!(node.cri.effects().is_empty());
    node.cri.allow_everything();
    fs::write(node.path("kubeconfig"), good).unwrap();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn retry_after_of_the_server_is_respected() {
    for (verb, resource) in [
        ("get", "nodes"),
        ("list", "pods"),
        ("patch", "pods/status"),
        ("delete", "pods"),
    ] {
        let mut node = Node::with_pods(&["web"]).await;
        node.delete("web", None).await;
        // The pre-stop status and the final one.
        inject_fault(&node, Fault::too_many(25).verb(verb).resource(resource).times(2));
        node.cri.allow_everything();
        let began = Instant::now();
        node.launch().await;
        node.wait_torn_down("web").await;
        assert!(began.elapsed() >= secs(25), "{verb} {resource}: {:?}", began.elapsed());
        assert!(began.elapsed() < secs(60), "{verb} {resource}: {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn lost_answer_to_a_write_is_harmless() {
    for (verb, resource) in [("patch", "pods/status"), ("delete", "pods"), ("create", "events")] {
        let node = with_simple_pod().await;
        inject_fault(
            &node,
            Fault::new(Action::LoseResponse).verb(verb).resource(resource).times(2),
        );
        node.tear_down("web").await;
        node.wait_status(|it| it.counters.finished, 1).await;
        assert_eq!(node.count_events("web", "Killing").await, 1, "{verb} {resource}");
    }
}

#[tokio::test(start_paused = true)]
async fn refusal_does_not_prove_absence() {
    for code in [400, 403, 404, 409, 422, 500, 503] {
        for (verb, resource) in [("patch", "pods/status"), ("delete", "pods")] {
            let node = with_simple_pod().await;
            inject_fault(&node, Fault::status(code).verb(verb).resource(resource).times(2));
            node.tear_down("web").await;
            let codes = request_codes(&node, verb, resource);
            assert!(codes.contains(&Some(200)), "{verb} {resource}: {codes:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn final_delete_waits_for_a_terminal_phase_in_the_api() {
    for code in [400, 500] {
        let mut node = Node::with_pods(&["web"]).await;
        let paths = volume_and_cgroup(&node);
        node.run().await;
        inject_fault(&node, Fault::status(code).verb("patch").resource("pods/status"));
        node.delete("web", None).await;
        wait_cleaned(&paths).await;
        node.wait_blocked("web", "status: PATCH").await;
        // Its end is not final: an eviction may still change it.
        let stage = serde_json::to_value(node.trace("web").await.unwrap().stage).unwrap();
        assert_eq!(stage, "terminating");
        sleep(secs(600)).await;
        assert_eq!(request_codes(&node, "delete", "pods"), []);
        node.api.faults().clear();
        node.wait_torn_down("web").await;
        assert_eq!(request_codes(&node, "delete", "pods"), [Some(200)]);
    }
}

#[tokio::test(start_paused = true)]
async fn pod_recreated_under_the_same_name_is_never_touched() {
    let node = Node::started(&["web"]).await;
    node.cri
        .in_order([expect(StopContainer::of("main").in_pod("uid-web")).then(secs(5))]);
    node.delete("web", None).await;
    node.calls(1, |seen| seen.kind == Kind::StopContainer).await;
    inject_fault(&node, Fault::new(Action::StallWatch).once());
    sleep(secs(1)).await;
    node.delete("web", Some(0)).await;
    let mut other = pod("web", &plain());
    other["metadata"]["uid"] = "uid-other".into();
    node.insert(other);
    node.cri
        .change(|world| drop(world.pod("default", "web", "uid-other").container("main")));
    node.cri.allow_everything();
    wait_until!(
        node.cri
            .look(|world| world.sandboxes.values().all(|sandbox| sandbox.pod_uid != "uid-web"))
    );
    node.wait_status(|it| it.counters.finished, 1).await;
    let object = node.get("web").await.unwrap();
    assert_eq!(object["metadata"]["deletionTimestamp"], Value::Null);
    assert_eq!(object["status"]["phase"], "Running");
    assert!(node.cri.effects().iter().all(|(_, seen)| seen.pod_uid == "uid-web"));
}
