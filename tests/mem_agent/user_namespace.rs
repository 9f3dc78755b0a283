//! A pod's user namespace mapping is released when no process or file has its IDs.

use crate::prelude::*;

const RANGE: &str = r#"{"uidMappings":[{"hostId":65536,"containerId":0,"length":65536}]}"#;

#[tokio::test(start_paused = true)]
async fn user_namespace_mapping_is_released_after_the_cgroup_and_while_the_object_stays() {
    let mut node = Node::new().await;
    let mut own_users = pod("web", &plain());
    own_users["spec"]["hostUsers"] = json!(false);
    own_users["metadata"]["finalizers"] = json!(["test/hold"]);
    node.pod("web", &plain(), |pod| pod.container("main").ends_after_term(secs(1), 0));
    node.insert(own_users);
    let file = node.pod_dir("web").join("userns");
    fs::write(&file, RANGE).unwrap();
    // In this directory a cgroup with a foreign file cannot be removed.
    let stuck = node.pod_cgroup("web").join("stuck");
    fs::write(&stuck, "").unwrap();
    node.run().await;
    node.delete("web", None).await;
    node.wait_blocked("web", "cgroup:").await;
    assert_eq!(fs::read_to_string(&file).unwrap(), RANGE, "whole, or not there");
    fs::remove_file(stuck).unwrap();
    wait_until!(!file.exists());
    assert!(node.get("web").await.is_some());
}

#[tokio::test(start_paused = true)]
async fn symlink_in_place_of_the_mapping_is_removed_and_not_followed() {
    let mut node = Node::new().await;
    let mut own_users = pod("web", &plain());
    own_users["spec"]["hostUsers"] = json!(false);
    node.pod("web", &plain(), |pod| pod.container("main").ends_after_term(secs(1), 0));
    node.insert(own_users);
    let precious = node.path("precious");
    fs::write(&precious, RANGE).unwrap();
    std::os::unix::fs::symlink(&precious, node.pod_dir("web").join("userns")).unwrap();
    node.run().await;
    node.tear_down("web").await;
    assert_eq!(fs::read_to_string(precious).unwrap(), RANGE);
}
