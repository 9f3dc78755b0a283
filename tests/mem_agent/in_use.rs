//! Attached volumes: when their pod's terminal status is reported, and when they may be detached. Drivers mount nothing
//! here; their calls and the order count.

use testbed::drivers::CsiCall;

use crate::prelude::*;

pub const DRIVER: &str = "disk.example.com";
pub const PV: Pv<'_> = Pv {
    name: "pv-1",
    driver: DRIVER,
    handle: "vol-1",
    staged: true,
};
pub const IN_USE: &str = "kubernetes.io/csi/disk.example.com^vol-1";
/// Volume of an unknown plugin.
const OTHER: &str = "kubernetes.io/example-disk/vol-2";

pub fn csi_driver(node: &Node, name: &str) -> CsiDriver {
    CsiDriver::start(&node.path("kubelet"), name).unwrap()
}

/// A CSI volume, staged and published by the kubelet's files.
pub fn published(node: &Node, pod: &str, pv: &Pv<'_>) -> PathBuf {
    let volume = node.pod_dir(pod).join("volumes/kubernetes.io~csi").join(pv.name);
    fs::create_dir_all(volume.join("mount")).unwrap();
    let data = json!({ "driverName": pv.driver, "volumeHandle": pv.handle, "volumeLifecycleMode": "Persistent" });
    fs::write(volume.join("vol_data.json"), data.to_string()).unwrap();
    let staging = staging(&node.path("kubelet"), pv);
    fs::create_dir_all(&staging).unwrap();
    fs::write(staging.with_file_name("vol_data.json"), data.to_string()).unwrap();
    volume.join("mount")
}

/// A pod with a PersistentVolume, which exits so many seconds after SIGTERM.
pub fn storing_pod(node: &Node, name: &str, pv: &Pv<'_>, ends_after: u64) -> PathBuf {
    let mut object = pod(name, &plain());
    object["spec"]["volumes"] = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    node.insert(object);
    node.pod_without_object(name, |pod| pod.container("main").ends_after_term(secs(ends_after), 0));
    published(node, name, pv)
}

fn unique_name(handle: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^{handle}")
}

pub async fn set_in_use(node: &Node, volumes: &[&str]) {
    let patch = json!({ "status": { "volumesInUse": volumes } });
    let path = format!("/api/v1/nodes/{NODE}/status");
    let answer = node.admin.patch(&path, Patch::Merge, &patch).await.unwrap();
    assert_eq!(answer.code(), 200, "{}", answer.body);
}

async fn in_use(node: &Node) -> Value {
    let answer = node.admin.get(&format!("/api/v1/nodes/{NODE}")).await.unwrap();
    answer.body["status"]["volumesInUse"].clone()
}

/// The API shows neither the pod's end nor the volume as detachable.
async fn assert_attached(node: &Node, name: &str) {
    let status = node.get(name).await.unwrap()["status"].take();
    assert_eq!(status["phase"], "Running");
    // Without a running container the controller's timeout would begin.
    let ended = status.to_string().contains("\"terminated\"");
    assert!(!ended, "{status}");
    assert!(in_use(node).await.as_array().unwrap().contains(&json!(IN_USE)));
}

fn calls(driver: &CsiDriver) -> Vec<&'static str> {
    let name = |call: CsiCall| match call {
        CsiCall::Unpublish { .. } => "unpublish",
        CsiCall::Unstage { .. } => "unstage",
        CsiCall::Capabilities => "capabilities",
    };
    driver.effects().into_iter().map(name).collect()
}

/// A node with an agent and a pod whose volume is in use.
async fn started() -> (Node, CsiDriver) {
    let mut node = Node::new().await;
    let driver = csi_driver(&node, DRIVER);
    storing_pod(&node, "db", &PV, 1);
    set_in_use(&node, &[IN_USE, OTHER]).await;
    node.run().await;
    (node, driver)
}

#[tokio::test(start_paused = true)]
async fn pod_terminates_and_its_volume_is_detachable_only_after_unpublish_and_unstage() {
    let (node, driver) = started().await;
    driver.behave(Behavior::Slow(secs(20)));
    node.delete("db", None).await;
    wait_until("the volume is being unstaged", async || {
        assert_attached(&node, "db").await;
        calls(&driver) == ["unpublish", "unstage"]
    })
    .await;
    sleep(secs(19)).await;
    assert_attached(&node, "db").await;
    wait_until!(in_use(&node).await == json!([OTHER]));
    node.wait_torn_down("db").await;
    assert_eq!(calls(&driver), ["unpublish", "unstage"]);
    assert!(!staging(&node.path("kubelet"), &PV).parent().unwrap().exists());
}

#[tokio::test(start_paused = true)]
async fn failing_csi_driver_keeps_the_pod_and_its_volume_attached() {
    for (behavior, words) in [
        (
            Behavior::Fails(Code::Internal, "target is busy".into()),
            "target is busy",
        ),
        (Behavior::Hangs, "120"),
    ] {
        let (node, driver) = started().await;
        driver.behave(behavior);
        node.delete("db", None).await;
        node.wait_blocked("db", words).await;
        sleep(secs(600)).await;
        assert_attached(&node, "db").await;
        driver.behave(Behavior::Well);
        node.wait_torn_down("db").await;
        assert_eq!(in_use(&node).await, json!([OTHER]));
    }
}

#[tokio::test(start_paused = true)]
async fn one_approval_covers_both_steps_of_a_volume_that_its_driver_refuses() {
    let (node, driver) = started().await;
    driver.behave(Behavior::Fails(Code::Internal, "no".into()));
    node.delete("db", None).await;
    let item = wait_held(&node, "pod/default/db").await;
    assert!(item.why.contains("pod-teardown approve pod/default/db"), "{item:?}");
    assert_eq!(
        item.facts,
        [format!("volume \"{}\" of CSI driver {DRIVER:?}", PV.handle)]
    );
    sleep(secs(300)).await;
    assert_attached(&node, "db").await;
    approve(&node, "pod/default/db").await.unwrap();
    node.wait_torn_down("db").await;
    assert_eq!(in_use(&node).await, json!([OTHER]));
}

#[tokio::test(start_paused = true)]
async fn approval_for_an_uninstalled_driver_is_offered_at_once_and_counts_once_all_is_unmounted() {
    let (node, driver) = started().await;
    let target = node.pod_dir("db").join("volumes/kubernetes.io~csi/pv-1/mount");
    let staging = staging(&node.path("kubelet"), &PV);
    mounts(&node, &[&staging, &target]);
    driver.crash().await;
    node.delete("db", None).await;
    let item = wait_held(&node, "pod/default/db").await;
    let commands = format!("umount {} && umount {}", target.display(), staging.display());
    assert!(item.why.contains(&commands), "{item:?}");
    approve(&node, "pod/default/db").await.unwrap();
    node.wait_blocked("db", "It is approved").await;
    assert!(hold_items(&node).await.is_empty());
    sleep(secs(300)).await;
    assert_attached(&node, "db").await;
    mounts(&node, &[&staging]);
    node.wait_blocked("db", &format!("unmount it: umount {}.", staging.display()))
        .await;
    sleep(secs(300)).await;
    assert_attached(&node, "db").await;
    mounts(&node, &[]);
    node.wait_torn_down("db").await;
    assert_eq!(in_use(&node).await, json!([OTHER]));
    assert_eq!(calls(&driver), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn driver_that_comes_back_is_called_within_half_a_minute() {
    let (node, driver) = started().await;
    driver.crash().await;
    node.delete("db", None).await;
    node.wait_blocked("db", "is not available on this node").await;
    sleep(secs(600)).await;
    assert_eq!(calls(&driver), [""; 0]);
    driver.come_back().unwrap();
    let back = Instant::now();
    wait_until!(!calls(&driver).is_empty());
    assert!(back.elapsed() <= secs(31), "{:?}", back.elapsed());
    node.wait_torn_down("db").await;
}

/// Writes the agent's mount table with these mount points.
fn mounts(node: &Node, places: &[&PathBuf]) {
    let mut table = format!(
        "31 1 0:27 / {} rw - cgroup2 cgroup2 rw\n",
        node.path("cgroup").display()
    );
    for (number, place) in places.iter().enumerate() {
        table += &format!("{} 1 8:16 / {} rw - ext4 /dev/sdb rw\n", 40 + number, place.display());
    }
    fs::write(node.path("mountinfo"), table).unwrap();
}

#[tokio::test(start_paused = true)]
async fn answer_of_a_driver_does_not_count_while_the_mount_exists() {
    let (node, driver) = started().await;
    let target = node.pod_dir("db").join("volumes/kubernetes.io~csi/pv-1/mount");
    let staging = staging(&node.path("kubelet"), &PV);
    mounts(&node, &[&staging, &target]);
    driver.behave(Behavior::Pretends);
    node.delete("db", None).await;
    node.wait_blocked("db", "still mounted").await;
    sleep(secs(300)).await;
    assert!(!calls(&driver).contains(&"unstage"));
    assert_attached(&node, "db").await;
    mounts(&node, &[&staging]);
    node.wait_blocked("db", "globalmount").await;
    sleep(secs(300)).await;
    assert_attached(&node, "db").await;
    mounts(&node, &[]);
    driver.behave(Behavior::Well);
    node.wait_torn_down("db").await;
    assert_eq!(in_use(&node).await, json!([OTHER]));
}

/// A process in its own mount namespace, in which the staged filesystem stays mounted.
fn keeping(node: &Node) -> PathBuf {
    let holder = node.path("proc/4711");
    fs::create_dir_all(holder.join("ns")).unwrap();
    std::os::unix::fs::symlink("mnt:[7]", holder.join("ns/mnt")).unwrap();
    fs::write(holder.join("comm"), "backup\n").unwrap();
    fs::write(holder.join("mountinfo"), "9 1 8:16 / /data rw - ext4 /dev/sdb rw\n").unwrap();
    holder
}

#[tokio::test(start_paused = true)]
async fn filesystem_mounted_in_another_mount_namespace_is_not_unstaged() {
    let (node, driver) = started().await;
    let holder = keeping(&node);
    mounts(&node, &[&staging(&node.path("kubelet"), &PV)]);
    node.delete("db", None).await;
    node.wait_blocked("db", "\"backup\"").await;
    sleep(secs(300)).await;
    assert!(!calls(&driver).contains(&"unstage"));
    assert_attached(&node, "db").await;
    fs::remove_dir_all(&holder).unwrap();
    wait_until!(calls(&driver).contains(&"unstage"));
    mounts(&node, &[]);
    node.wait_torn_down("db").await;
    assert_eq!(in_use(&node).await, json!([OTHER]));
}

#[tokio::test(start_paused = true)]
async fn filesystem_left_in_another_mount_namespace_keeps_its_volume_attached() {
    let (node, driver) = started().await;
    mounts(&node, &[&staging(&node.path("kubelet"), &PV)]);
    driver.behave(Behavior::Slow(secs(5)));
    node.delete("db", None).await;
    wait_until!(calls(&driver).contains(&"unstage"));
    // Created during the driver's call.
    let holder = keeping(&node);
    mounts(&node, &[]);
    node.wait_blocked("db", "\"backup\"").await;
    sleep(secs(300)).await;
    assert!(calls(&driver).len() > 3, "{:?}", calls(&driver));
    assert_attached(&node, "db").await;
    fs::remove_dir_all(&holder).unwrap();
    node.wait_torn_down("db").await;
    assert_eq!(in_use(&node).await, json!([OTHER]));
}

#[tokio::test(start_paused = true)]
async fn volume_of_two_pods_stays_in_use_until_the_second_terminates() {
    let (node, driver) = started().await;
    storing_pod(&node, "web", &PV, 0);
    node.tear_down("db").await;
    assert_eq!(calls(&driver), ["unpublish"]);
    assert_eq!(in_use(&node).await, json!([IN_USE, OTHER]));
    node.tear_down("web").await;
    assert_eq!(calls(&driver), ["unpublish", "unpublish", "unstage"]);
    assert_eq!(in_use(&node).await, json!([OTHER]));
}

/// Waits until a request has met the fault.
async fn wait_write_sent(node: &Node) {
    wait_until!(node.api.faults().pending().is_empty());
}

#[tokio::test(start_paused = true)]
async fn concurrent_change_of_volumes_in_use_keeps_foreign_entries() {
    let (node, _driver) = started().await;
    inject_fault(&node, Fault::delay(secs(10)).resource("nodes/status").once());
    node.delete("db", None).await;
    wait_write_sent(&node).await;
    let third = "kubernetes.io/example-disk/vol-3";
    set_in_use(&node, &[IN_USE, OTHER, third]).await;
    node.wait_torn_down("db").await;
    assert_eq!(in_use(&node).await, json!([OTHER, third]));
}

#[tokio::test(start_paused = true)]
async fn pods_terminating_together_update_volumes_in_use_in_order() {
    let mut node = Node::new().await;
    let _driver = csi_driver(&node, DRIVER);
    let names: Vec<_> = (0..20).map(|number| format!("db-{number}")).collect();
    let volumes: Vec<_> = names.iter().map(|name| unique_name(name)).collect();
    for name in &names {
        let pv = Pv {
            name,
            handle: name,
            ..PV
        };
        storing_pod(&node, name, &pv, 1);
    }
    let in_list: Vec<_> = volumes.iter().map(String::as_str).chain([OTHER]).collect();
    set_in_use(&node, &in_list).await;
    node.run().await;
    node.delete_all(&names, None).await;
    node.wait_all_torn_down(&names).await;
    assert_eq!(in_use(&node).await, json!([OTHER]));
    let codes = request_codes(&node, "patch", "nodes/status");
    assert_eq!(codes, [Some(200); 20]);
}

#[tokio::test(start_paused = true)]
async fn volumes_in_use_of_another_node_of_this_name_are_not_changed() {
    let (node, _driver) = started().await;
    inject_fault(&node, Fault::delay(secs(10)).resource("nodes/status").once());
    node.delete("db", None).await;
    wait_write_sent(&node).await;
    let path = format!("/api/v1/nodes/{NODE}");
    let own = node.admin.get(&path).await.unwrap().body;
    node.admin.delete(&path, None).await.unwrap();
    let mut other = own.clone();
    other["metadata"] = json!({ "name": NODE, "uid": "another" });
    node.insert(other);
    node.wait_status(|it| it.blocked.is_some(), true).await;
    sleep(secs(600)).await;
    assert_eq!(in_use(&node).await, json!([IN_USE, OTHER]));
    assert!(node.get("db").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn refused_update_of_volumes_in_use_keeps_the_pod_and_is_retried() {
    let (node, _driver) = started().await;
    inject_fault(&node, Fault::status(503).resource("nodes/status"));
    node.delete("db", None).await;
    node.wait_blocked("db", "volumesInUse").await;
    let began = Instant::now();
    sleep(secs(300)).await;
    assert_attached(&node, "db").await;
    node.api.faults().clear();
    node.wait_torn_down("db").await;
    assert!(began.elapsed() < secs(430), "{:?}", began.elapsed());
    assert_eq!(in_use(&node).await, json!([OTHER]));
}

/// A node with an agent, a running pod, and a staged volume in use that no pod seems to have.
async fn with_unused() -> (Node, CsiDriver) {
    let mut node = Node::new().await;
    let driver = csi_driver(&node, DRIVER);
    for name in ["db", "web"] {
        node.simple_pod(name);
    }
    published(&node, "db", &PV);
    set_in_use(&node, &[IN_USE, OTHER]).await;
    fs::rename(node.pod_dir("db"), node.path("elsewhere")).unwrap();
    node.start().await;
    (node, driver)
}

#[tokio::test(start_paused = true)]
async fn no_volume_is_unused_while_a_pod_with_another_root_runs() {
    let (node, driver) = with_unused().await;
    sleep(secs(600)).await;
    assert_eq!(calls(&driver), [""; 0]);
    assert_eq!(in_use(&node).await, json!([IN_USE, OTHER]));
    let answer = node.status().await.housekeeping.unused_volumes;
    assert!(
        answer
            .iter()
            .any(|answer| answer.contains("default/db exists and has no directory")),
        "{answer:?}"
    );
    fs::create_dir_all(node.pod_dir("db")).unwrap();
    wait_until!(in_use(&node).await == json!([OTHER]));
    assert_eq!(calls(&driver), ["unstage"]);
}

#[tokio::test(start_paused = true)]
async fn no_volume_is_unused_during_an_absence_hold() {
    let (mut node, driver) = with_unused().await;
    fs::create_dir_all(node.pod_dir("db")).unwrap();
    sleep(secs(1)).await;
    node.crash().await;
    node.delete_all(["db", "web"], Some(0)).await;
    node.start().await;
    wait_held(&node, "absence").await;
    sleep(secs(600)).await;
    assert_eq!(calls(&driver), [""; 0]);
    assert_eq!(in_use(&node).await, json!([IN_USE, OTHER]));
}
