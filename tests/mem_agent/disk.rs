//! Volumes, cgroups and directories that stand between a pod and its final delete.

use std::{fs, os::unix::fs::symlink, path::PathBuf};

use testbed::apiserver::requests::Request;
use tokio::time::sleep;

use crate::{
    node::{Node, secs},
    pods::uid,
};

async fn with_polite_pod() -> Node {
    let mut node = Node::new().await;
    node.polite_pod("web");
    node.start().await;
    node.cri.allow_everything();
    node
}

fn cgroup(node: &Node, name: &str) -> PathBuf {
    node.path("cgroup/kubepods").join(format!("pod{}", uid(name)))
}

fn deletes(node: &Node) -> usize {
    let by_agent = |it: &Request| it.asked.verb == "delete" && it.asked.user.starts_with("system:node:");
    node.api.requests().iter().filter(|request| by_agent(request)).count()
}

#[tokio::test(start_paused = true)]
async fn volumes_and_the_cgroup_go_before_the_object() {
    let node = with_polite_pod().await;
    for plugin in ["empty-dir", "projected", "secret", "configmap", "downward-api"] {
        let volume = node.pod_dir("web").join(format!("volumes/kubernetes.io~{plugin}/v"));
        fs::create_dir_all(volume.join("..data")).unwrap();
        fs::write(volume.join("..data/key"), "value").unwrap();
    }
    fs::create_dir_all(cgroup(&node, "web").join("container")).unwrap();
    node.delete("web", None).await;
    node.gone("web").await;
    assert!(!cgroup(&node, "web").exists() && !node.pod_dir("web").join("volumes/kubernetes.io~secret/v").exists());
    node.nothing_left("web").await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_an_unknown_kind_keeps_the_object_and_is_named_in_the_status() {
    for kind in [
        "kubernetes.io~csi/pvc-1",
        "kubernetes.io~nfs/share",
        "example.com~flex/x",
    ] {
        let node = with_polite_pod().await;
        let volume = node.pod_dir("web").join("volumes").join(kind);
        fs::create_dir_all(volume.join("mount")).unwrap();
        fs::write(volume.join("vol_data.json"), "{}").unwrap();
        node.delete("web", None).await;
        node.failing("web", kind).await;
        sleep(secs(300)).await;
        assert_eq!(deletes(&node), 0);
        // The end itself is no secret, and what lies there is not ours.
        assert_eq!(node.get("web").await.unwrap()["status"]["phase"], "Succeeded");
        assert!(volume.join("vol_data.json").exists());
        // Its driver takes it away.
        fs::remove_dir_all(&volume).unwrap();
        node.nothing_left("web").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_in_place_of_the_volumes_is_not_followed() {
    let node = with_polite_pod().await;
    let precious = node.path("precious/kubernetes.io~empty-dir/data");
    fs::create_dir_all(&precious).unwrap();
    fs::write(precious.join("file"), "").unwrap();
    symlink(node.path("precious"), node.pod_dir("web").join("volumes")).unwrap();
    node.delete("web", None).await;
    node.failing("web", "volumes").await;
    sleep(secs(100)).await;
    assert!(precious.join("file").exists() && deletes(&node) == 0);
}

#[tokio::test(start_paused = true)]
async fn a_cgroup_with_processes_of_which_the_runtime_knows_nothing_is_held() {
    for class in ["", "burstable", "besteffort"] {
        let node = with_polite_pod().await;
        // The runtime has lost its memory, or is another one.
        node.cri.change(|world| {
            world.containers.clear();
            world.sandboxes.clear();
        });
        let cgroup = node
            .path("cgroup/kubepods")
            .join(class)
            .join(format!("pod{}", uid("web")));
        fs::create_dir_all(cgroup.join("container")).unwrap();
        fs::write(cgroup.join("container/cgroup.procs"), "4711\n4712\n").unwrap();
        node.delete("web", None).await;
        node.failing("web", "held: it holds 2 processes (first pid 4711)").await;
        sleep(secs(200)).await;
        assert!(cgroup.exists() && node.pod_dir("web").exists());
        assert_eq!(deletes(&node), 0);
        assert_eq!(
            node.get("web").await.unwrap()["status"]["phase"],
            "Running",
            "nobody knows how it ended"
        );
        fs::remove_dir_all(&cgroup).unwrap();
        node.nothing_left("web").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_and_is_not_deleted_keeps_its_object_containers_and_logs() {
    let mut node = Node::new().await;
    node.polite_pod("web");
    let mut ended = node.get("web").await.unwrap();
    ended["status"]["phase"] = "Succeeded".into();
    node.object(ended);
    node.cri.allow_everything();
    node.start().await;
    sleep(secs(60)).await;
    assert_eq!(node.status().await.pods.kept, 1);
    assert!(node.cri.look(|world| world.containers.len() == 1));
    assert!(node.path("logs").read_dir().unwrap().count() == 1 && deletes(&node) == 0);
    node.delete("web", None).await;
    node.nothing_left("web").await;
}
