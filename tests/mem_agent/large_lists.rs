//! A runtime whose list does not fit into one message.

use crate::{
    node::{Node, wait_until},
    pods::uid,
};

/// Pods whose annotations are too large for one list, and one deleted by force while no agent ran.
async fn crowded(streams: bool) -> Node {
    let node = Node::with_pods(&["web", "db", "mail"]).await;
    node.pod_without_object("gone", |pod| drop(pod.container("main").container("side")));
    node.cri.change(|world| {
        for sandbox in world.sandboxes.values_mut() {
            sandbox.annotations.push(("large".to_owned(), "x".repeat(10_000)));
        }
        world.largest_list = 15_000;
        world.streams_lists = streams;
    });
    node.cri.allow_everything();
    node
}

#[tokio::test(start_paused = true)]
async fn pod_deleted_by_force_is_found_without_a_complete_runtime_list() {
    for streams in [false, true] {
        let mut node = crowded(streams).await;
        node.start().await;
        wait_until("the runtime has nothing of the pod", async || {
            node.cri.look(|world| {
                let sandboxes = world.sandboxes.values().all(|it| it.pod_uid != uid("gone"));
                sandboxes && world.containers.values().all(|it| it.pod_uid != uid("gone"))
            })
        })
        .await;
        assert_eq!(node.cri.look(|world| world.sandboxes.len()), 3, "the others live on");
        node.delete("web", None).await;
        node.wait_torn_down("web").await;
    }
}
