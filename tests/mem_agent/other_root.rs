//! `--kubelet-root` differs from the kubelet's `--root-dir`.

use crate::prelude::*;

/// A pod without a sandbox, for which a kubelet with another root has created a cgroup and mounted a token.
async fn node_of_another_directory() -> (Node, PathBuf) {
    let node = Node::new().await;
    let theirs = node.path("data-kubelet");
    let token = theirs.join(format!("pods/{}/volumes/kubernetes.io~projected/token", uid("web")));
    fs::create_dir_all(&token).unwrap();
    let mut table = fs::read_to_string(node.path("mountinfo")).unwrap();
    table.push_str(&format!("40 1 0:30 / {} rw - tmpfs tmpfs rw\n", token.display()));
    fs::write(node.path("mountinfo"), table).unwrap();
    let mut object = pod("web", &plain());
    object["status"] = json!({ "phase": "Pending" });
    node.insert(object);
    node.cri.allow_everything();
    (node, theirs)
}

#[tokio::test(start_paused = true)]
async fn kubelet_with_another_root_directory_blocks_everything() {
    let (mut node, theirs) = node_of_another_directory().await;
    kubelet_at(&node, &theirs);
    node.start().await;
    node.delete("web", None).await;
    sleep(secs(60)).await;
    assert!(node.get("web").await.is_some());
    let held = node.status().await.blocked.unwrap();
    assert!(held.contains("--root-dir is not the agent's --kubelet-root"), "{held}");
}

#[tokio::test(start_paused = true)]
async fn mount_of_the_pod_below_another_root_keeps_the_object_and_is_named() {
    let (mut node, theirs) = node_of_another_directory().await;
    node.start().await;
    node.delete("web", None).await;
    node.wait_blocked("web", &theirs.display().to_string()).await;
    sleep(secs(60)).await;
    assert!(node.get("web").await.is_some());
    // Without the mount the pod terminates.
    let table = fs::read_to_string(node.path("mountinfo")).unwrap();
    let without = table.lines().filter(|line| !line.contains("projected/token"));
    fs::write(node.path("mountinfo"), without.collect::<Vec<_>>().join("\n") + "\n").unwrap();
    node.wait_deleted("web").await;
}

/// The directory may be mounted over, or renamed.
#[tokio::test(start_paused = true)]
async fn mount_of_a_pod_without_a_directory_keeps_its_object() {
    for directory in [uid("web"), format!("{}.bak", uid("web"))] {
        let mut node = Node::new().await;
        let mut object = pod("web", &plain());
        object["status"] = json!({ "phase": "Pending" });
        node.insert(object);
        let volume = node.path(&format!("kubelet/pods/{directory}/volumes/kubernetes.io~secret/s"));
        let table = fs::read_to_string(node.path("mountinfo")).unwrap();
        let mount = format!("40 1 0:30 / {} rw - tmpfs tmpfs rw\n", volume.display());
        fs::write(node.path("mountinfo"), table.clone() + &mount).unwrap();
        node.run().await;
        node.delete("web", None).await;
        node.wait_blocked("web", "still mounted").await;
        sleep(secs(300)).await;
        assert!(node.get("web").await.is_some());
        fs::write(node.path("mountinfo"), table).unwrap();
        node.wait_deleted("web").await;
    }
}

/// A kubelet died after it created the cgroup and before the directory.
#[tokio::test(start_paused = true)]
async fn pod_without_a_directory_continues_when_the_remedy_is_followed() {
    let node = &mut Node::new().await;
    let mut object = pod("web", &plain());
    object["status"] = json!({ "phase": "Pending" });
    node.insert(object);
    let cgroup = node.pod_cgroup("web");
    fs::create_dir_all(&cgroup).unwrap();
    node.start().await;
    node.delete("web", None).await;
    let remedy = format!(
        "{} does not exist. Check that --kubelet-root is the kubelet's --root-dir. If it is, create that directory, empty",
        node.pod_dir("web").display()
    );
    node.wait_blocked("web", &remedy).await;
    sleep(secs(120)).await;
    assert!(cgroup.exists() && node.get("web").await.is_some());
    fs::create_dir(node.pod_dir("web")).unwrap();
    node.wait_torn_down("web").await;
    assert!(!cgroup.exists() && node.cri.effects().is_empty());
}

#[tokio::test(start_paused = true)]
async fn pod_that_runs_without_a_cgroup_continues_when_the_remedy_is_followed() {
    let mut node = Node::with_pods(&["web"]).await;
    fs::remove_dir(node.pod_cgroup("web")).unwrap();
    node.start().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "Check that --cgroup-root is the kubelet's.")
        .await;
    node.wait_blocked("web", "If it is, stop the pod's containers and sandboxes by hand")
        .await;
    sleep(secs(120)).await;
    assert!(node.cri.effects().is_empty() && node.get("web").await.is_some());
    node.cri.change(|world| {
        world.containers.values_mut().for_each(|it| it.state = SimState::Exited);
        world.sandboxes.values_mut().for_each(|it| it.ready = false);
    });
    node.cri.allow_everything();
    node.wait_torn_down("web").await;
}

#[tokio::test(start_paused = true)]
async fn running_pod_without_a_directory_is_blocked_without_its_object() {
    let mut node = Node::with_pods(&["web"]).await;
    fs::rename(node.pod_dir("web"), node.path("elsewhere")).unwrap();
    node.start().await;
    node.delete("web", Some(0)).await;
    sleep(secs(60)).await;
    assert_eq!(node.cri.effects().len(), 0);
}
