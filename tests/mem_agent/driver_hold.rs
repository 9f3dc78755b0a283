//! Driver pods are stopped after the pods that need them, within a limited hold.

use pod_teardown::teardown::plan::PlannedWait;
use testbed::drivers::{DraDriver, DraService};

use crate::prelude::*;
use crate::{
    devices::{DRIVER as DRA, claiming},
    in_use::{DRIVER as CSI, csi_driver, published, storing_pod},
};

const DATA: Pv<'_> = Pv {
    name: "pv-1",
    driver: CSI,
    handle: "vol-1",
    staged: true,
};

/// A pod with a hostPath of this driver's socket directory.
fn driver_object(node: &Node, name: &str, driver: &str) {
    let mut object = pod(name, &plain());
    let socket_dir = node.path("kubelet/plugins").join(driver);
    object["spec"]["volumes"] = json!([{ "name": "socket-dir", "hostPath": { "path": socket_dir } }]);
    node.insert(object);
}

fn driver_pod(node: &Node, name: &str, driver: &str, build: impl for<'a> FnOnce(PodBuilder<'a>) -> PodBuilder<'a>) {
    driver_object(node, name, driver);
    node.pod_without_object(name, build);
}

fn simple(pod: PodBuilder<'_>) -> PodBuilder<'_> {
    pod.container("main")
}

/// A node with a driver pod `csi`, a pod `db` with its volume, and an agent with `--driver-hold 1m`.
async fn started(ends_after: u64) -> (Node, CsiDriver) {
    let mut node = Node::new().await;
    node.flags.driver_hold = "60s".to_owned();
    let driver = csi_driver(&node, CSI);
    driver_pod(&node, "csi", CSI, simple);
    storing_pod(&node, "db", &DATA, ends_after);
    node.run().await;
    (node, driver)
}

fn busy() -> Behavior {
    Behavior::Fails(Code::Internal, "busy".to_owned())
}

fn stops(node: &Node, name: &str) -> Vec<(Duration, Seen)> {
    let of_pod = |seen: &Seen| seen.kind == Kind::StopContainer && seen.pod_uid == uid(name);
    node.cri
        .effects()
        .into_iter()
        .filter(|(_, seen)| of_pod(seen))
        .collect()
}

/// Waits for the pod's stop; returns its timeout.
async fn wait_stopped(node: &Node, name: &str) -> Duration {
    wait_until!(!stops(node, name).is_empty());
    stops(node, name)[0].1.timeout.unwrap()
}

#[tokio::test(start_paused = true)]
async fn csi_driver_is_stopped_after_terminating_pods_with_its_volumes() {
    let (node, driver) = started(20).await;
    node.delete_all(["csi", "db"], None).await;
    node.wait_blocked("csi", "blocked: terminating pods need this pod as a driver: default/db")
        .await;
    sleep(secs(15)).await;
    assert!(stops(&node, "csi").is_empty());
    wait_until!(driver.effects().len() == 2);
    assert!(stops(&node, "csi").is_empty());
    // Its grace period is complete, and no wait is reported.
    assert_eq!(wait_stopped(&node, "csi").await, secs(30));
    node.wait_torn_down("db").await;
    node.wait_torn_down("csi").await;
    assert_eq!(node.count_events("csi", "DriverHoldExceeded").await, 0);
    assert_eq!(node.count_events("csi", "FailedKillPod").await, 0);
}

#[tokio::test(start_paused = true)]
async fn plan_of_a_driver_names_the_terminating_pods_that_need_it() {
    let (node, _driver) = started(20).await;
    let wait = |pods: &[&str]| {
        Some(PlannedWait {
            needed_as: "a driver".to_owned(),
            pods: pods.iter().map(ToString::to_string).collect(),
            at_most_seconds: 60,
        })
    };
    assert_eq!(node.plan("csi").await.waits_for, wait(&[]));
    node.delete("db", None).await;
    wait_stopped(&node, "db").await;
    assert_eq!(node.plan("csi").await.waits_for, wait(&["default/db"]));
    assert_eq!(node.plan("db").await.waits_for, None);
}

#[tokio::test(start_paused = true)]
async fn stopping_driver_no_longer_reports_its_hold() {
    let mut node = Node::new().await;
    let _driver = csi_driver(&node, CSI);
    driver_pod(&node, "csi", CSI, |pod| pod.container("main").ignores_term());
    storing_pod(&node, "db", &DATA, 5);
    node.run().await;
    node.delete_all(["csi", "db"], None).await;
    node.wait_blocked("csi", "blocked: ").await;
    wait_stopped(&node, "csi").await;
    assert_eq!(node.trace("csi").await.unwrap().blocked, []);
}

#[tokio::test(start_paused = true)]
async fn volume_of_a_running_pod_holds_no_driver() {
    let (node, driver) = started(0).await;
    let began = Instant::now();
    node.tear_down("csi").await;
    assert!(began.elapsed() < secs(10), "{:?}", began.elapsed());
    assert_eq!(driver.effects(), []);
    assert_eq!(node.count_events("csi", "DriverHoldExceeded").await, 0);
}

#[tokio::test(start_paused = true)]
async fn driver_is_stopped_after_the_longest_hold_and_an_event_names_the_remaining_pods() {
    let (node, driver) = started(0).await;
    driver.behave(busy());
    let began = Instant::now();
    node.delete_all(["csi", "db"], None).await;
    assert_eq!(wait_stopped(&node, "csi").await, secs(30));
    assert_took(began, secs(60)..secs(65));
    node.wait_torn_down("csi").await;
    wait_until!(node.count_events("csi", "DriverHoldExceeded").await == 1);
    assert_has(&node.messages("csi", "DriverHoldExceeded").await[0], &["default/db"]);
    assert!(node.get("db").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn restart_changes_neither_grace_nor_hold() {
    for recovers in [true, false] {
        let (mut node, driver) = started(0).await;
        driver.behave(busy());
        let began = Instant::now();
        node.delete_all(["csi", "db"], None).await;
        node.wait_blocked("csi", "blocked: ").await;
        for _ in 0..2 {
            sleep(secs(20)).await;
            node.restart().await;
        }
        assert!(stops(&node, "csi").is_empty());
        if recovers {
            driver.behave(Behavior::Well);
        }
        assert_eq!(wait_stopped(&node, "csi").await, secs(30));
        assert!(began.elapsed() < secs(66), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn termination_not_attempted_beside_a_kubelet_has_not_begun_after_a_restart() {
    let (mut node, driver) = started(0).await;
    driver.behave(busy());
    let process = kubelet(&node);
    sleep(secs(3)).await;
    for name in ["csi", "db"] {
        node.delete(name, None).await;
        node.wait_blocked(name, "a kubelet runs on this node").await;
    }
    for _ in 0..2 {
        sleep(secs(90)).await;
        node.restart().await;
    }
    fs::remove_dir_all(process).unwrap();
    assert_eq!(wait_stopped(&node, "db").await, secs(30));
    node.wait_blocked("csi", "blocked: terminating pods need this pod as a driver: default/db")
        .await;
    // The hold begins with the first attempt.
    sleep(secs(40)).await;
    assert!(stops(&node, "csi").is_empty());
    driver.behave(Behavior::Well);
    assert_eq!(wait_stopped(&node, "csi").await, secs(30));
}

#[tokio::test(start_paused = true)]
async fn agent_stop_during_a_hold_reports_no_failure() {
    let log = Log::new();
    let (mut node, driver) = started(0).await;
    driver.behave(busy());
    node.delete_all(["csi", "db"], None).await;
    node.wait_blocked("csi", "blocked: ").await;
    assert_eq!(node.stop().await, Ok(()));
    let failed = log.lines("Teardown step failed");
    assert!(failed.iter().all(|line| line.contains("uid-db")), "{failed:?}");
    assert_eq!(node.count_events("csi", "FailedKillPod").await, 0);
}

#[tokio::test(start_paused = true)]
async fn driver_without_running_containers_is_not_held() {
    let mut node = Node::new().await;
    let driver = csi_driver(&node, CSI);
    driver.behave(busy());
    driver_object(&node, "csi", CSI);
    node.pod_without_object("csi", |pod| pod.container("main").exited(1));
    node.cri.change(|world| {
        for sandbox in world.sandboxes.values_mut() {
            sandbox.ready = false;
        }
    });
    storing_pod(&node, "db", &DATA, 0);
    node.run().await;
    node.delete("db", None).await;
    node.wait_blocked("db", "busy").await;
    let began = Instant::now();
    node.tear_down("csi").await;
    assert!(began.elapsed() < secs(10), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn drivers_that_wait_for_each_other_are_stopped_after_the_hold() {
    let mut node = Node::new().await;
    node.flags.driver_hold = "60s".to_owned();
    let (one, two) = ("one.example.com", "two.example.com");
    let _drivers = [csi_driver(&node, one), csi_driver(&node, two)];
    for (name, driver, of) in [("one", one, two), ("two", two, one)] {
        driver_pod(&node, name, driver, simple);
        let pv = Pv {
            name: of,
            driver: of,
            handle: of,
            staged: false,
        };
        published(&node, name, &pv);
    }
    node.run().await;
    let began = Instant::now();
    node.delete_all(["one", "two"], None).await;
    for name in ["one", "two"] {
        wait_stopped(&node, name).await;
        node.wait_torn_down(name).await;
    }
    assert_took(began, secs(59)..secs(75));
}

#[tokio::test(start_paused = true)]
async fn pod_without_an_object_still_holds_its_driver() {
    let (node, driver) = started(0).await;
    driver.behave(busy());
    node.delete("db", None).await;
    node.wait_blocked("db", "busy").await;
    node.delete("db", Some(0)).await;
    node.wait_deleted("db").await;
    node.delete("csi", None).await;
    node.wait_blocked("csi", "a driver: default/db").await;
    sleep(secs(20)).await;
    assert!(stops(&node, "csi").is_empty());
    driver.behave(Behavior::Well);
    node.wait_torn_down("db").await;
    node.wait_torn_down("csi").await;
}

#[tokio::test(start_paused = true)]
async fn raw_block_volume_holds_only_its_own_driver() {
    for (of, held) in [(CSI, true), ("other.example.com", false)] {
        let mut node = Node::new().await;
        let driver = csi_driver(&node, CSI);
        driver.behave(busy());
        driver_pod(&node, "csi", CSI, simple);
        node.simple_pod("db");
        let data = node.path("kubelet/plugins/kubernetes.io/csi/volumeDevices/pv-1/data");
        fs::create_dir_all(&data).unwrap();
        let content = json!({ "driverName": of, "volumeHandle": "vol-1" });
        fs::write(data.join("vol_data.json"), content.to_string()).unwrap();
        let links = node.pod_dir("db").join("volumeDevices/kubernetes.io~csi");
        fs::create_dir_all(&links).unwrap();
        symlink("/no/such/device", links.join("pv-1")).unwrap();
        node.run().await;
        node.delete("db", None).await;
        node.delete("csi", None).await;
        sleep(secs(30)).await;
        assert_eq!(stops(&node, "csi").is_empty(), held, "{of}");
    }
}

#[tokio::test(start_paused = true)]
async fn volume_file_without_a_driver_name_holds_every_driver() {
    let (node, driver) = started(0).await;
    driver.behave(busy());
    let volume = node.pod_dir("db").join("volumes/kubernetes.io~csi/pv-1");
    fs::write(volume.join("vol_data.json"), "{").unwrap();
    fs::write(volume.join("mount/left"), "").unwrap();
    node.delete("db", None).await;
    node.delete("csi", None).await;
    node.wait_blocked("csi", "a driver: default/db").await;
}

/// A node with a DRA driver pod `dra` and a pod `job` with its claim.
async fn with_claim(finalizers: &[&str]) -> (Node, DraDriver) {
    let mut node = Node::new().await;
    let driver = DraDriver::start(&node.path("kubelet"), DRA, &[DraService::V1]).unwrap();
    driver_pod(&node, "dra", DRA, simple);
    let mut object = claiming("job", &["gpu"]);
    object["metadata"]["finalizers"] = json!(finalizers);
    node.insert(object);
    node.pod_without_object("job", simple);
    let gpu = Prepared {
        name: "gpu",
        pods: &["job"],
        drivers: &[DRA],
    };
    checkpoint(&node, &[gpu]);
    node.run().await;
    (node, driver)
}

#[tokio::test(start_paused = true)]
async fn dra_driver_is_stopped_after_terminating_pods_with_its_claims() {
    let (node, driver) = with_claim(&[]).await;
    driver.behave(busy());
    node.delete("dra", None).await;
    node.delete("job", None).await;
    node.wait_blocked("dra", "a driver: default/job").await;
    sleep(secs(30)).await;
    assert!(stops(&node, "dra").is_empty());
    driver.behave(Behavior::Well);
    node.wait_torn_down("job").await;
    node.wait_torn_down("dra").await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_unprepared_claims_holds_no_driver() {
    for kept_by in ["finalizer", "restart", "its own end"] {
        let (mut node, driver) = with_claim(if kept_by == "its own end" { &[] } else { &["test/hold"] }).await;
        if kept_by == "its own end" {
            let path = "/api/v1/namespaces/default/pods/job/status";
            let over = json!({ "status": { "phase": "Succeeded" } });
            node.admin
                .patch(path, testbed::rest::Patch::Merge, &over)
                .await
                .unwrap();
            node.wait_status(|it| it.pods.awaiting_deletion, 1).await;
        } else {
            node.delete("job", None).await;
            node.wait_status(|it| it.counters.finished, 1).await;
        }
        if kept_by == "restart" {
            node.restart().await;
        }
        assert!(!driver.called().is_empty(), "{kept_by}");
        let began = Instant::now();
        node.tear_down("dra").await;
        assert!(began.elapsed() < secs(10), "{kept_by}: {:?}", began.elapsed());
        assert!(node.get("job").await.is_some(), "{kept_by}");
    }
}

/// A node service: host network and priority system-node-critical.
fn node_service(node: &Node, name: &str) {
    let mut object = pod(name, &plain());
    object["spec"]["hostNetwork"] = json!(true);
    object["spec"]["priorityClassName"] = json!("system-node-critical");
    node.insert(object);
    node.pod_without_object(name, simple);
}

/// A node with its network plugin's pod `cni` and a pod `web`, whose network teardown needs the plugin.
async fn with_network_plugin() -> Node {
    let mut node = Node::new().await;
    node.flags.driver_hold = "60s".to_owned();
    node_service(&node, "cni");
    node.pod("web", &plain(), |pod| {
        pod.container("main").ends_after_term(secs(20), 0)
    });
    node.start().await;
    node
}

/// Whether the pod was stopped after the sandboxes of all others.
fn is_stopped_last(node: &Node, name: &str) -> bool {
    let effects = node.cri.effects();
    let others = effects
        .iter()
        .rposition(|(_, seen)| seen.pod_uid != uid(name) && seen.kind == Kind::StopPodSandbox);
    let own = effects.iter().position(|(_, seen)| seen.pod_uid == uid(name));
    others.unwrap() < own.unwrap()
}

#[tokio::test(start_paused = true)]
async fn network_plugin_pod_is_stopped_after_the_other_pods_in_any_order_of_deletion() {
    for first in ["cni", "web"] {
        let node = with_network_plugin().await;
        node.cri.allow_everything();
        node.delete(first, None).await;
        sleep(secs(3)).await;
        node.delete(if first == "cni" { "web" } else { "cni" }, None).await;
        node.wait_blocked(
            "cni",
            "blocked: terminating pods need this pod as a node service: default/web",
        )
        .await;
        assert_eq!(
            wait_stopped(&node, "cni").await,
            secs(30),
            "its own grace period is whole"
        );
        node.wait_torn_down("cni").await;
        assert!(
            node.get("web").await.is_none() && is_stopped_last(&node, "cni"),
            "{first} first"
        );
        assert_eq!(node.count_events("cni", "DriverHoldExceeded").await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn network_plugin_pod_is_stopped_last_across_restarts() {
    let mut node = with_network_plugin().await;
    node.cri.allow_everything();
    node.delete("cni", None).await;
    node.wait_blocked("cni", "blocked: ").await;
    node.crash().await;
    // No agent runs.
    node.delete("web", None).await;
    node.start().await;
    node.wait_blocked("cni", "a node service: default/web").await;
    node.restart().await;
    node.wait_torn_down("cni").await;
    assert!(node.get("web").await.is_none() && is_stopped_last(&node, "cni"));
}

#[tokio::test(start_paused = true)]
async fn network_plugin_pod_waits_for_a_pod_that_only_the_journal_has() {
    let mut node = Node::new().await;
    node_service(&node, "cni");
    node.simple_pod("web");
    node.always(expect(StopContainer::of("main").in_pod(&uid("web"))).then(secs(10)));
    node.run().await;
    node.delete("web", None).await;
    node.delete("cni", None).await;
    node.wait_blocked(
        "cni",
        "blocked: terminating pods need this pod as a node service: default/web",
    )
    .await;
    node.crash().await;
    node.delete("web", Some(0)).await;
    // Until lists have confirmed that its object is deleted, it has no worker.
    inject_fault(&node, Fault::delay(secs(8)).verb("list").resource("pods"));
    node.start().await;
    node.wait_torn_down("cni").await;
    assert!(is_stopped_last(&node, "cni"));
}

#[tokio::test(start_paused = true)]
async fn node_services_wait_neither_for_running_pods_nor_for_each_other() {
    let node = with_network_plugin().await;
    node.cri.allow_everything();
    node_service(&node, "proxy");
    let began = Instant::now();
    node.delete("cni", None).await;
    node.delete("proxy", None).await;
    node.wait_torn_down("cni").await;
    node.wait_torn_down("proxy").await;
    assert!(began.elapsed() < secs(10), "{:?}", began.elapsed());
    assert!(node.get("web").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn node_service_is_stopped_after_the_hold_despite_a_stuck_pod() {
    let node = with_network_plugin().await;
    node.always(expect(StopPodSandbox::of("web")).error(Code::Unknown, "network plugin is not ready"));
    node.cri.allow_everything();
    let began = Instant::now();
    node.delete("web", None).await;
    node.tear_down("cni").await;
    assert_took(began, secs(59)..secs(75));
    wait_until!(node.count_events("cni", "DriverHoldExceeded").await == 1);
}

#[tokio::test(start_paused = true)]
async fn held_driver_requests_no_list_while_a_known_pod_needs_it() {
    // The other pod's next attempt comes within this hold.
    let mut node = Node::new().await;
    let driver = csi_driver(&node, CSI);
    driver_pod(&node, "csi", CSI, simple);
    storing_pod(&node, "db", &DATA, 0);
    node.run().await;
    driver.behave(busy());
    node.delete_all(["csi", "db"], None).await;
    node.wait_blocked("csi", "a driver: default/db").await;
    let lists = || request_codes(&node, "list", "pods").len();
    let before = lists();
    sleep(secs(40)).await;
    assert_eq!(lists(), before);
    driver.behave(Behavior::Well);
    node.wait_torn_down("csi").await;
    assert!(lists() > before, "what is known is confirmed");
}

#[tokio::test(start_paused = true)]
async fn deletion_before_its_watch_event_holds_the_driver() {
    let (node, driver) = started(0).await;
    driver.behave(busy());
    node.delete("csi", None).await;
    node.wait_blocked("csi", "blocked: pods that were deleted just now")
        .await;
    inject_fault(&node, Fault::new(Action::StallWatch).once());
    node.delete("db", None).await;
    node.wait_blocked("csi", "a driver: default/db").await;
    assert!(node.trace("db").await.is_none() && stops(&node, "csi").is_empty());
}
