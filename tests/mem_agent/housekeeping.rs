//! Leftovers of deleted pods: directories, logs, cgroups, journal entries.

use pod_teardown::housekeeping::LeftoverReport;

use crate::prelude::*;

fn logs(node: &Node, name: &str) -> PathBuf {
    node.path("logs").join(format!("default_{name}_{}", uid(name)))
}

/// A volume with data, as a kubelet creates one.
fn volume(node: &Node, name: &str) -> PathBuf {
    node.pod_dir(name).join("volumes/kubernetes.io~empty-dir/data")
}

/// Creates only the pod's cgroup, its logs, or its directory with a volume.
fn create_leftover(node: &Node, name: &str, what: &str) {
    match what {
        "cgroup" => fs::create_dir_all(node.pod_cgroup(name)).unwrap(),
        "logs" => {
            fs::create_dir_all(logs(node, name).join("main")).unwrap();
            fs::write(logs(node, name).join("main/0.log"), "said").unwrap();
        }
        "directory" => {
            fs::create_dir_all(volume(node, name)).unwrap();
            fs::write(volume(node, name).join("file"), "data").unwrap();
        }
        other => panic!("{other}"),
    }
}

fn leftovers_of(node: &Node, name: &str) -> Vec<&'static str> {
    let places = [
        ("cgroup", node.pod_cgroup(name)),
        ("logs", logs(node, name)),
        ("directory", node.pod_dir(name)),
    ];
    let there = places.into_iter().filter(|(_, path)| path.exists());
    there.map(|(what, _)| what).collect()
}

/// A node with a running pod and finished pods of these names, which the journal still has if the agent does not run on.
pub async fn node_after_termination_of(names: &[&str]) -> Node {
    let mut node = Node::with_pods(&["lives"]).await;
    for name in names {
        node.simple_pod(name);
    }
    node.run().await;
    node.delete_all(names, None).await;
    node.wait_all_torn_down(names).await;
    node.wait_status(|it| it.counters.finished, names.len() as u64).await;
    node
}

async fn leftover_report(node: &Node) -> LeftoverReport {
    node.status().await.housekeeping
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_leftover_of_a_seen_pod_is_removed_after_a_while() {
    let node = node_after_termination_of(&["a", "b", "c"]).await;
    let effects = node.cri.effects().len();
    for (name, what) in [("a", "cgroup"), ("b", "logs"), ("c", "directory")] {
        create_leftover(&node, name, what);
    }
    let began = Instant::now();
    wait_until!(leftover_report(&node).await.leftovers.len() == 3);
    assert_eq!(
        leftover_report(&node).await.leftovers,
        [
            "default/a (UID uid-a): cgroup",
            "default/b (UID uid-b): logs",
            "default/c (UID uid-c): directory"
        ]
    );
    wait_until!(["a", "b", "c"].iter().all(|name| leftovers_of(&node, name).is_empty()));
    assert!(
        (secs(120)..secs(160)).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
    node.wait_status(|it| it.counters.finished, 6).await;
    assert_eq!(node.cri.effects().len(), effects, "the runtime knew nothing of them");
    assert_eq!(leftovers_of(&node, "lives"), ["cgroup", "logs", "directory"]);
    assert_eq!(node.status().await.counters.leftovers_found, 3);
    let mut node = node;
    node.crash().await;
    assert!(node.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn proof_of_an_api_pod_survives_restart_and_reboot() {
    let mut node = Node::started(&["lives", "web"]).await;
    // The journal has the seen UIDs.
    sleep(secs(1)).await;
    node.crash().await;
    node.boot_id = "boot-2".to_owned();
    node.cri.change(|world| {
        world.containers.retain(|_, it| it.pod_uid != uid("web"));
        world.sandboxes.retain(|_, it| it.pod_uid != uid("web"));
    });
    node.delete("web", Some(0)).await;
    create_leftover(&node, "web", "directory");
    node.start().await;
    wait_until!(leftovers_of(&node, "web").is_empty());
    assert!(node.cri.effects().is_empty());
    // Then the proof is removed, too: anything new with its UID has no owner.
    sleep(secs(60)).await;
    create_leftover(&node, "web", "directory");
    sleep(secs(900)).await;
    assert_eq!(leftover_report(&node).await.unmanaged, ["UID uid-web: directory"]);
    assert!(volume(&node, "web").join("file").exists());
}

#[tokio::test(start_paused = true)]
async fn leftover_without_proof_is_reported_and_never_touched() {
    let mut node = Node::with_pods(&["lives"]).await;
    let of_a_static_pod = node.path("kubelet/pods/0123456789abcdef0123456789abcdef/volumes");
    fs::create_dir_all(&of_a_static_pod).unwrap();
    for what in ["cgroup", "logs", "directory"] {
        create_leftover(&node, "unknown", what);
    }
    // A mirror pod proves nothing.
    let mut mirror = pod("mirror", &plain());
    mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "" });
    node.insert(mirror);
    create_leftover(&node, "mirror", "directory");
    node.start().await;
    node.delete("mirror", Some(0)).await;
    node.wait_deleted("mirror").await;
    sleep(secs(1200)).await;
    assert_eq!(
        leftover_report(&node).await.unmanaged,
        [
            "UID 0123456789abcdef0123456789abcdef: directory",
            "UID uid-mirror: directory",
            "UID uid-unknown: directory, cgroup, logs"
        ]
    );
    assert_eq!(leftovers_of(&node, "unknown"), ["cgroup", "logs", "directory"]);
    assert!(volume(&node, "mirror").join("file").exists() && of_a_static_pod.exists());
    assert!(node.cri.effects().is_empty() && node.status().await.counters.started == 0);
}

#[tokio::test(start_paused = true)]
async fn leftovers_beside_a_kubelet_are_not_touched_and_observed_again_afterwards() {
    let node = node_after_termination_of(&["web"]).await;
    create_leftover(&node, "web", "logs");
    sleep(secs(100)).await;
    let process = kubelet(&node);
    sleep(secs(600)).await;
    assert_eq!(leftovers_of(&node, "web"), ["logs"]);
    assert_eq!(leftover_report(&node).await, LeftoverReport::default());
    fs::remove_dir_all(process).unwrap();
    let began = Instant::now();
    wait_until!(leftovers_of(&node, "web").is_empty());
    assert!(began.elapsed() >= secs(120), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn pods_beside_a_kubelet_do_not_accumulate_in_the_journal_and_a_failed_search_is_soon_repeated() {
    for fails in [false, true] {
        let mut node = Node::with_pods(&["lives"]).await;
        kubelet(&node);
        node.start().await;
        jobs_come_and_go(&node).await;
        // The time of the next search.
        sleep(secs(500)).await;
        if fails {
            node.cri.stop().await;
        }
        sleep(secs(150)).await;
        if fails {
            node.cri.allow_everything();
            node.cri.start_again().await;
            sleep(secs(120)).await;
        }
        node.crash().await;
        assert_eq!(node.seen().await, ["uid-lives"]);
    }
}

async fn jobs_come_and_go(node: &Node) {
    for number in 0..20 {
        let name = format!("job-{number}");
        node.insert(pod(&name, &plain()));
        sleep(secs(2)).await;
        node.delete(&name, Some(0)).await;
        node.wait_deleted(&name).await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_during_an_absence_hold_do_not_accumulate_in_the_journal() {
    let mut node = Node::with_pods(&["lives"]).await;
    kubelet(&node);
    node.start().await;
    let own = recorded_node(&node).await;
    replaced(&mut node, 1).await;
    node.insert(own);
    node.insert(pod("lives", &plain()));
    node.wait_status(|it| it.watch.absence_hold.is_some(), true).await;
    jobs_come_and_go(&node).await;
    sleep(secs(660)).await;
    node.crash().await;
    assert_eq!(node.seen().await, ["uid-lives"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_a_leftover_before_the_first_complete_list() {
    let mut node = Node::started(&["lives", "web"]).await;
    sleep(secs(1)).await;
    node.crash().await;
    inject_fault(&node, Fault::status(500).verb("list").resource("pods"));
    node.launch().await;
    sleep(secs(900)).await;
    assert_eq!(leftover_report(&node).await, LeftoverReport::default());
    assert_eq!(leftovers_of(&node, "web"), ["cgroup", "logs", "directory"]);
    node.api.faults().clear();
    sleep(secs(300)).await;
    assert_eq!(leftovers_of(&node, "web"), ["cgroup", "logs", "directory"]);
    assert!(node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unanswered_list_by_name_proves_no_leftover() {
    let node = node_after_termination_of(&["web"]).await;
    create_leftover(&node, "web", "directory");
    inject_fault(&node, Fault::status(503).verb("list").resource("pods"));
    sleep(secs(600)).await;
    assert!(volume(&node, "web").join("file").exists());
    node.api.faults().clear();
    wait_until!(leftovers_of(&node, "web").is_empty());
}

#[tokio::test(start_paused = true)]
async fn leftovers_stay_during_an_absence_hold() {
    let mut node = node_after_termination_of(&["web"]).await;
    create_leftover(&node, "web", "directory");
    let own = recorded_node(&node).await;
    replaced(&mut node, 1).await;
    node.insert(own);
    node.insert(pod("lives", &plain()));
    node.wait_status(|it| it.watch.absence_hold.is_some(), true).await;
    sleep(secs(900)).await;
    assert!(volume(&node, "web").join("file").exists());
    assert_eq!(
        leftover_report(&node).await.leftovers,
        ["default/web (UID uid-web): directory"]
    );
}

#[tokio::test(start_paused = true)]
async fn unremovable_leftover_is_not_retried_by_successive_workers() {
    let node = node_after_termination_of(&["web"]).await;
    // A volume of an unknown plugin.
    fs::create_dir_all(node.pod_dir("web").join("volumes/example.com~strange/data/more")).unwrap();
    node.wait_status(|it| it.counters.leftovers_found, 1).await;
    sleep(secs(1800)).await;
    let status = node.status().await;
    assert_eq!((status.counters.leftovers_found, status.pods.terminating.len()), (1, 1));
    assert!(
        node.pod_dir("web")
            .join("volumes/example.com~strange/data/more")
            .exists()
    );
}

#[tokio::test(start_paused = true)]
async fn dead_containers_and_old_logs_of_a_running_pod_are_not_touched() {
    let mut node = Node::with_pods(&["lives"]).await;
    node.cri.change(|world| {
        world.pod("default", "lives", &uid("lives")).container("main");
        world
            .containers
            .values_mut()
            .for_each(|it| it.state = testbed::scripted_cri::SimState::Exited);
    });
    node.start().await;
    sleep(secs(900)).await;
    assert!(node.cri.effects().is_empty());
    assert_eq!(leftover_report(&node).await, LeftoverReport::default());
}

#[tokio::test(start_paused = true)]
async fn leftover_mount_without_a_directory_is_named_until_it_is_unmounted() {
    let node = node_after_termination_of(&["a"]).await;
    let volume = volume(&node, "a");
    let table = fs::read_to_string(node.path("mountinfo")).unwrap();
    let mount = format!("40 1 0:30 / {} rw - tmpfs tmpfs rw\n", volume.display());
    fs::write(node.path("mountinfo"), table.clone() + &mount).unwrap();
    wait_until!(leftover_report(&node).await.leftovers == ["default/a (UID uid-a): mount"]);
    node.wait_blocked("a", "still mounted").await;
    fs::write(node.path("mountinfo"), table).unwrap();
    node.wait_status(|it| it.counters.finished, 2).await;
}
