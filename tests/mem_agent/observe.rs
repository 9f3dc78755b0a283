//! An agent that only observes: nothing is touched, and the kubelet's terminations are compared and kept over restarts.

use pod_teardown::{
    handover::guard::holds::SafetyHolds,
    model::{
        blocked::Blocked,
        observation::{Difference, LeftoverKind, Observation, Verdict},
    },
    ops::{
        admin::{
            handover::{HANDOVER, HandoverRequest},
            holds::HOLDS,
            pause::{PAUSE, RESUME},
            report::request_path,
        },
        report::Report,
    },
};

use crate::prelude::*;
use crate::{
    in_use::{self, IN_USE, set_in_use, storing_pod},
    schema::assert_valid,
};

/// With a simple pod that runs, and an agent that has seen it.
async fn observing(names: &[&str]) -> Node {
    let mut node = Node::with_pods(names).await;
    node.flags.mode = ModeFlag::Observe;
    node.start().await;
    node
}

async fn report(node: &Node) -> Report {
    let path = request_path(secs(86_400));
    client::get(&node.flags.socket.socket, &path).await.unwrap()
}

async fn observation(node: &Node, name: &str) -> Observation {
    wait_until!(report(node).await.observations.iter().any(|it| it.name == name));
    let all = report(node).await.observations;
    all.into_iter().find(|it| it.name == name).unwrap()
}

/// The container of the pod exits, as a kubelet would have it.
async fn container_exits(node: &Node, code: i32) {
    node.cri.change(|world| world.will_end("main", Instant::now(), code));
    sleep(secs(3)).await;
}

/// A kubelet reports the phase Failed and this state of the container.
async fn kubelet_reports(node: &Node, name: &str, state: Value) {
    let entry =
        json!({ "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    let status = json!({ "status": { "phase": "Failed", "containerStatuses": [entry] } });
    let path = format!("/api/v1/namespaces/default/pods/{name}/status");
    let answer = node.admin.patch(&path, Patch::Merge, &status).await.unwrap();
    assert_eq!(answer.code(), 200, "{:?}", answer.body);
    sleep(secs(1)).await;
}

/// A kubelet reports this exit code, cleans the node up, and deletes the object.
async fn kubelet_finishes(node: &Node, name: &str, code: i32, leaves_cgroup: bool) {
    let ended = json!({ "terminated": { "exitCode": code, "reason": "Error" } });
    kubelet_reports(node, name, ended).await;
    kubelet_cleans_up(node, name, leaves_cgroup);
    node.delete(name, Some(0)).await;
}

fn kubelet_cleans_up(node: &Node, name: &str, leaves_cgroup: bool) {
    node.cri.change(|world| {
        world.containers.retain(|_, it| it.pod_uid != uid(name));
        world.sandboxes.retain(|_, it| it.pod_uid != uid(name));
    });
    fs::remove_dir_all(node.pod_dir(name)).unwrap();
    fs::remove_dir_all(node.path("logs").join(format!("default_{name}_{}", uid(name)))).unwrap();
    if !leaves_cgroup {
        fs::remove_dir(node.pod_cgroup(name)).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_touched_without_a_kubelet_and_every_request_is_refused() {
    let node = observing(&["web"]).await;
    node.delete("web", None).await;
    let before = node.get("web").await;
    // Much longer than the takeover would take.
    sleep(secs(600)).await;
    assert_eq!(node.cri.effects(), Vec::new());
    assert_eq!(node.get("web").await, before);
    assert!(node.pod_dir("web").exists() && node.pod_cgroup("web").exists());
    let status = node.status().await;
    assert_eq!(status.role.as_ref().unwrap().role.to_string(), "observing");
    assert_eq!(status.blocked.as_deref(), Some(&*only_observes()));
    let [trace] = &status.pods.terminating[..] else {
        panic!("{status:?}")
    };
    assert_eq!(trace.name, "web");
    let socket = &node.flags.socket.socket;
    let refused = async |path: &str, body: Value| {
        let answer = client::post::<Value>(socket, path, &body).await;
        assert_eq!(answer.unwrap_err().to_string(), only_observes(), "{path}");
    };
    let stop = serde_json::to_value(StopRequest::default()).unwrap();
    refused("/v1/pods/default/web/stop", stop).await;
    let handover = HandoverRequest { timeout_ms: 1 };
    refused(HANDOVER, serde_json::to_value(handover).unwrap()).await;
    refused("/v1/approve", json!({ "item": "absence" })).await;
    refused(PAUSE, Value::Null).await;
    refused(RESUME, Value::Null).await;
    assert_eq!(node.plan("web").await.blocked[0], only_observes());
    let holds: SafetyHolds = client::get(socket, HOLDS).await.unwrap();
    assert_eq!(holds.blocked.as_deref(), Some(&*only_observes()));
    let begun = report(&node).await;
    assert_eq!((begun.terminations, begun.comparing), (0, 1), "it is still terminating");
}

#[tokio::test(start_paused = true)]
async fn another_exit_code_than_that_of_the_runtime_is_a_difference() {
    let mut node = observing(&["web"]).await;
    node.delete("web", None).await;
    container_exits(&node, 3).await;
    kubelet_finishes(&node, "web", 4, false).await;
    let found = observation(&node, "web").await;
    assert_eq!(found.verdict, Verdict::Different, "{found:?}");
    let code = Difference {
        field: "containerStatuses[main].state.exitCode".to_owned(),
        kubelet: Some("4".to_owned()),
        agent: Some("3".to_owned()),
        documented: None,
    };
    assert!(found.differences.contains(&code), "{found:?}");
    assert_eq!(found.grace_seconds, 30);
    assert!((4000..6000).contains(&found.elapsed_ms), "{found:?}");
    assert_valid(&node, "report", &request_path(Duration::from_secs(60))).await;
    let counted = node.status().await.counters.observations;
    assert_eq!(counted[&Verdict::Different], 1, "{counted:?}");
    assert_eq!(node.cri.effects(), Vec::new());
    // The journal grows with the observations only.
    sleep(secs(700)).await;
    node.stop().await.unwrap();
    assert_eq!(node.seen().await, Vec::<String>::new());
}

/// A kubelet reports the phase of an evicted pod before it stops the containers.
#[tokio::test(start_paused = true)]
async fn terminal_pod_is_compared_by_the_status_that_follows_the_exit_of_its_containers() {
    let node = observing(&["web"]).await;
    let started = json!({ "startedAt": "2026-01-01T00:00:00Z" });
    kubelet_reports(&node, "web", json!({ "running": started })).await;
    container_exits(&node, 3).await;
    kubelet_cleans_up(&node, "web", false);
    sleep(secs(60)).await;
    assert_eq!(report(&node).await.terminations, 0, "its container runs by its status");
    kubelet_reports(
        &node,
        "web",
        json!({ "terminated": { "exitCode": 3, "reason": "Error" } }),
    )
    .await;
    let found = observation(&node, "web").await;
    let code = found.differences.iter().find(|it| it.field.ends_with("exitCode"));
    assert_eq!(code, None, "{found:?}");
}

/// The API server deletes a terminal pod at once.
#[tokio::test(start_paused = true)]
async fn terminal_pod_that_is_deleted_before_its_last_status_is_unknown() {
    let node = observing(&["web"]).await;
    let started = json!({ "startedAt": "2026-01-01T00:00:00Z" });
    kubelet_reports(&node, "web", json!({ "running": started })).await;
    container_exits(&node, 3).await;
    sleep(secs(1)).await;
    kubelet_cleans_up(&node, "web", false);
    node.delete("web", Some(0)).await;
    let found = observation(&node, "web").await;
    assert_eq!(found.verdict, Verdict::Unknown, "{found:?}");
    assert!(found.reason.is_some_and(|why| why.contains("how its containers ended")));
}

#[tokio::test(start_paused = true)]
async fn deleted_pod_that_a_finalizer_keeps_is_not_counted_as_undeleted() {
    let node = observing(&["web"]).await;
    let patch = json!({ "metadata": { "finalizers": ["test/hold"] } });
    let path = "/api/v1/namespaces/default/pods/web";
    node.admin.patch(path, Patch::Merge, &patch).await.unwrap();
    node.delete("web", None).await;
    container_exits(&node, 0).await;
    kubelet_finishes(&node, "web", 0, false).await;
    observation(&node, "web").await;
    let pods = node.status().await.pods;
    assert_eq!((pods.awaiting_deletion, pods.awaiting_finalizers), (0, 1));
}

/// The kubelet's garbage collection may come 150 s late after a burst of terminations. A cgroup stands for any leftover.
#[tokio::test(start_paused = true)]
async fn cgroup_that_still_exists_after_the_kubelets_time_is_a_leftover() {
    for is_removed_late in [false, true] {
        let node = observing(&["web"]).await;
        node.delete("web", None).await;
        container_exits(&node, 0).await;
        kubelet_finishes(&node, "web", 0, true).await;
        let since = Instant::now();
        if is_removed_late {
            sleep(secs(150)).await;
            fs::remove_dir(node.pod_cgroup("web")).unwrap();
            assert_eq!(observation(&node, "web").await.leftovers, []);
            continue;
        }
        let found = observation(&node, "web").await;
        assert!(since.elapsed() > secs(170), "{:?}", since.elapsed());
        let left: Vec<_> = found.leftovers.iter().map(|it| (it.kind, it.object.clone())).collect();
        let cgroup = node.pod_cgroup("web");
        assert_eq!(left, [(LeftoverKind::Cgroup, cgroup.display().to_string())]);
        assert!(found.verdict == Verdict::Leftovers && cgroup.exists());
    }
}

/// The kubelet unstages the volume of a deleted pod after its deletion, or not.
#[tokio::test(start_paused = true)]
async fn volume_that_the_kubelet_has_neither_unstaged_nor_taken_out_of_use_is_a_leftover() {
    for is_unstaged in [false, true] {
        let mut node = Node::new().await;
        storing_pod(&node, "db", &in_use::PV, 1);
        set_in_use(&node, &[IN_USE]).await;
        node.flags.mode = ModeFlag::Observe;
        node.start().await;
        node.delete("db", None).await;
        container_exits(&node, 0).await;
        kubelet_finishes(&node, "db", 0, false).await;
        sleep(secs(5)).await;
        let staged = staging(&node.path("kubelet"), &in_use::PV);
        let mut expected = vec![staged.display().to_string(), IN_USE.to_owned()];
        if is_unstaged {
            fs::remove_dir_all(staged.parent().unwrap()).unwrap();
            set_in_use(&node, &[]).await;
            expected.clear();
        }
        let found = observation(&node, "db").await;
        let left: Vec<_> = found.leftovers.iter().map(|it| it.object.clone()).collect();
        assert_eq!((found.verdict == Verdict::Leftovers, left), (!is_unstaged, expected));
    }
}

#[tokio::test(start_paused = true)]
async fn termination_that_the_agent_did_not_see_completely_is_unknown_after_a_restart() {
    let mut node = observing(&["web", "db"]).await;
    node.delete_all(["web", "db"], None).await;
    node.wait_status(|it| it.pods.terminating.len(), 2).await;
    sleep(secs(1)).await;
    node.crash().await;
    // One is deleted while no agent runs, the other one later.
    kubelet_finishes(&node, "web", 0, false).await;
    node.start().await;
    let web = observation(&node, "web").await;
    assert_eq!(web.verdict, Verdict::Unknown);
    assert_eq!(web.reason.as_deref(), Some("the agent exited during the termination"));
    kubelet_finishes(&node, "db", 0, false).await;
    wait_until("the end of the other one is seen", async || {
        let all = report(&node).await.observations;
        let db = all.iter().find(|it| it.name == "db");
        db.and_then(|db| db.reason.as_deref()) == Some("the termination had begun before the agent saw it")
    })
    .await;
    let all = report(&node).await;
    assert_eq!((all.verdicts.unknown, all.comparing), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn forced_deletion_is_compared_by_what_is_left() {
    let node = observing(&["web"]).await;
    node.delete("web", Some(0)).await;
    sleep(secs(5)).await;
    assert_eq!(report(&node).await.terminations, 0, "the container still runs");
    node.cri.change(|world| {
        world.containers.clear();
        world.sandboxes.clear();
    });
    fs::remove_dir_all(node.pod_dir("web")).unwrap();
    fs::remove_dir_all(node.path("logs").join(format!("default_web_{}", uid("web")))).unwrap();
    fs::remove_dir(node.pod_cgroup("web")).unwrap();
    let found = observation(&node, "web").await;
    assert_eq!((found.verdict, found.reason), (Verdict::Same, None));
}

/// Neither does an observation in progress count as work that was done, nor a finished one.
#[tokio::test(start_paused = true)]
async fn agent_that_may_act_later_terminates_an_observed_pod_from_the_beginning() {
    let mut node = observing(&["web", "db"]).await;
    node.delete("web", None).await;
    container_exits(&node, 0).await;
    kubelet_finishes(&node, "web", 0, true).await;
    assert_eq!(observation(&node, "web").await.verdict, Verdict::Leftovers);
    node.delete("db", None).await;
    node.wait_status(|it| it.pods.terminating.len(), 1).await;
    sleep(secs(600)).await;
    node.stop().await.unwrap();
    assert_eq!(node.cri.effects(), Vec::new());
    node.flags.mode = ModeFlag::Always;
    node.allow_all_but_hooks();
    node.start().await;
    node.wait_deleted("db").await;
    let kinds: Vec<_> = node.kinds().into_iter().map(|(kind, _)| kind).collect();
    assert!(kinds.contains(&Kind::StopPodSandbox), "{kinds:?}");
    assert!(!node.pod_dir("db").exists() && !node.pod_cgroup("db").exists());
    // What the kubelet has left is proven to be of a pod of the API server.
    wait_until!(!node.pod_cgroup("web").exists());
    let kept = report(&node).await.observations;
    assert_eq!(
        kept.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(),
        ["web"],
        "the finished one stays"
    );
}

fn only_observes() -> String {
    Blocked::OnlyObserves.to_string()
}
