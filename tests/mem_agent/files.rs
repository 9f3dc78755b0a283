//! Files of the agent that are damaged, foreign, or changed while it runs.

use std::os::unix::net::UnixListener;

use pod_teardown::{config, model::problem::ProblemKind};
use testbed::{api::ApiServer as _, host_files};

use crate::prelude::*;

#[tokio::test(start_paused = true)]
async fn file_that_is_no_socket_is_not_replaced() {
    let mut node = Node::new().await;
    let precious = node.path("precious");
    fs::write(&precious, "data").unwrap();
    let link = node.path("link");
    std::os::unix::fs::symlink(&precious, &link).unwrap();
    for path in [&precious, &link] {
        node.flags.socket.socket = path.clone();
        let problems = config::validate(&node.flags).await.unwrap_err();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].kind, ProblemKind::Configuration);
        assert!(problems[0].what.contains("it is not a socket"), "{problems:?}");
    }
    assert_eq!(fs::read_to_string(&link).unwrap(), "data");
}

#[tokio::test(start_paused = true)]
async fn socket_with_a_listener_is_not_replaced() {
    let mut node = Node::new().await;
    let runtime = PathBuf::from(node.cri.endpoint().trim_start_matches("unix://"));
    node.flags.socket.socket = runtime.clone();
    node.launch().await;
    let problem = node.ended().await.unwrap_err();
    assert_eq!(problem.kind, ProblemKind::Taken);
    assert!(problem.what.contains("another process listens there"), "{problem}");
    assert!(runtime.exists());
}

#[tokio::test(start_paused = true)]
async fn stale_socket_is_replaced_and_only_the_own_one_is_removed() {
    let mut node = Node::new().await;
    let path = node.flags.socket.socket.clone();
    host_files::stale_socket(&path).unwrap();
    node.start().await;
    assert_eq!(node.stop().await, Ok(()));
    assert!(!path.exists());
    node.start().await;
    fs::remove_file(&path).unwrap();
    let another = UnixListener::bind(&path).unwrap();
    assert_eq!(node.stop().await, Ok(()));
    assert!(path.exists());
    drop(another);
}

#[tokio::test(start_paused = true)]
async fn changed_kubeconfig_is_used_when_the_old_server_is_gone() {
    let mut node = Node::running(&["web"]).await;
    let path = format!("/api/v1/nodes/{NODE}");
    let metadata = node.admin.get(&path).await.unwrap().body["metadata"].clone();
    let config = Config {
        first_version: 5000,
        ..Config::default()
    };
    // This stops the old one.
    node.api = MemApiServer::start(config).await.unwrap();
    node.admin = node.api.admin().unwrap();
    node.insert(json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }));
    node.insert(pod("web", &plain()));
    fs::write(node.path("kubeconfig"), node.api.node_kubeconfig(NODE)).unwrap();
    node.tear_down("web").await;
}
