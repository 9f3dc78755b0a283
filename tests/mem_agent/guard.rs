//! When nothing may be touched: the wrong world, another hand on the pods, mirrors, and a dry run.

use std::{fs, os::unix::fs::symlink};

use serde_json::json;
use tokio::time::sleep;

use crate::{
    node::{NODE, Node, secs, until},
    pods::{exec, hooked, plain, pod, uid},
};

/// Nothing has come of a deletion after a good while.
async fn nothing_happens(node: &Node, name: &str) {
    node.delete(name, None).await;
    node.api.forget_requests();
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty());
    assert!(node.pod_dir(name).join("etc-hosts").exists());
    assert_eq!(node.get(name).await.unwrap()["status"]["phase"], "Running");
    let user = format!("system:node:{NODE}");
    let requests = node.api.requests().into_iter().filter(|it| it.asked.user == user);
    let writes: Vec<_> = requests
        .filter(|it| !["get", "list", "watch"].contains(&&*it.asked.verb))
        .collect();
    assert!(writes.is_empty(), "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn the_node_of_another_machine_is_left_alone() {
    for info in [json!({ "machineID": "another" }), json!({ "systemUUID": "another" })] {
        let mut node = Node::new().await;
        node.polite_pod("web");
        fs::create_dir_all(node.path("root/etc")).unwrap();
        fs::write(node.path("root/etc/machine-id"), "this-one\n").unwrap();
        node.object(json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE }, "status": { "nodeInfo": info },
        }));
        node.start().await;
        let held = node.status().await.held.unwrap();
        assert!(
            held.contains("is another machine") && held.contains("this-one"),
            "{held}"
        );
        nothing_happens(&node, "web").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_was_registered_anew_is_left_alone() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    node.start().await;
    assert_eq!(node.status().await.held, None);
    assert_eq!(node.stop().await, Ok(()));
    node.object(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE, "uid": "another-uid" } }));
    node.start().await;
    let held = node.status().await.held.unwrap();
    assert!(
        held.contains("another-uid") && held.contains("the journal was made for"),
        "{held}"
    );
    nothing_happens(&node, "web").await;
}

#[tokio::test(start_paused = true)]
async fn while_a_kubelet_is_there_nothing_is_touched_and_afterwards_the_work_goes_on() {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| drop(pod.container("main")));
    let process = node.path("proc/4711");
    fs::create_dir_all(process.join("task/4711")).unwrap();
    fs::write(process.join("comm"), "kubelet-1.36.3\n").unwrap();
    let command = format!(
        "/usr/bin/kubelet-1.36.3\0--root_dir={}\0",
        node.path("kubelet").display()
    );
    fs::write(process.join("cmdline"), command).unwrap();
    symlink("/", process.join("root")).unwrap();
    node.start().await;
    let held = node.status().await.held.unwrap();
    assert!(
        held.contains("a kubelet works on this node's pods") && held.contains("4711"),
        "{held}"
    );
    nothing_happens(&node, "web").await;
    fs::remove_dir_all(&process).unwrap();
    node.cri.allow_everything();
    node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_mirror_pod_is_never_touched() {
    let mut node = Node::new().await;
    node.polite_pod("mirror");
    let mut mirror = pod("mirror", &plain());
    mirror["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "" });
    node.object(mirror.clone());
    node.start().await;
    nothing_happens(&node, "mirror").await;
    // Not when its object goes, either.
    node.delete("mirror", Some(0)).await;
    until("the object is gone", async || node.get("mirror").await.is_none()).await;
    sleep(secs(400)).await;
    assert!(node.cri.effects().is_empty() && node.pod_dir("mirror").exists());
    assert_eq!(node.status().await.counters.begun, 0);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_performs_nothing() {
    let mut node = Node::new().await;
    node.pod("web", &hooked(&exec()), |pod| drop(pod.container("main")));
    let volume = node.pod_dir("web").join("volumes/kubernetes.io~empty-dir/data");
    fs::create_dir_all(&volume).unwrap();
    let cgroup = node.path("cgroup/kubepods").join(format!("pod{}", uid("web")));
    fs::create_dir_all(&cgroup).unwrap();
    node.flags.dry_run = true;
    node.launch().await;
    nothing_happens(&node, "web").await;
    assert!(volume.exists() && cgroup.exists() && node.path("logs").read_dir().unwrap().count() == 1);
    assert!(!node.flags.state_dir.exists() && !node.flags.socket.socket.exists());
    assert_eq!(node.stop().await, Ok(()));
}
