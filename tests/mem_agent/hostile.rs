//! Pod objects with missing, absurd or hostile fields: reported, never fatal, never a way out of the pod's directory.

use std::fs;

use pod_teardown::ops::admin::stop::StopRequest;
use serde_json::{Value, json};
use testbed::scripted_cri::{Kind, Seen};
use tokio::time::sleep;

use crate::{
    node::{NODE, Node, secs, until},
    pods::{plain, pod, uid},
    requests::granted,
};

/// A pod that is being deleted, with something changed.
fn ending(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut object = pod(name, &plain());
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    object["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    change(&mut object);
    object
}

/// Another pod of the node is still taken down.
async fn others_go_on(node: &Node) {
    node.polite_pod("polite");
    node.delete("polite", None).await;
    node.nothing_left("polite").await;
    assert!(node.runs());
}

#[tokio::test(start_paused = true)]
async fn objects_without_identity_are_counted_and_skipped() {
    let mut node = Node::new().await;
    node.start().await;
    node.cri.allow_everything();
    let hostile = [
        ending("a", |pod| pod["metadata"]["annotations"] = "mirror".into()),
        ending("b", |pod| pod["metadata"]["annotations"] = json!([])),
    ];
    let count = u64::try_from(hostile.len()).unwrap();
    hostile.into_iter().for_each(|object| node.object(object));
    until("all are counted", async || {
        node.status().await.counters.pods_unreadable == count
    })
    .await;
    others_go_on(&node).await;
    assert_eq!(node.status().await.counters.begun, 1);
    // They are reported once, and are no secret to a list, either.
    assert_eq!(node.stop().await, Ok(()));
    node.start().await;
    assert_eq!(node.status().await.counters.pods_unreadable, count);
}

#[tokio::test(start_paused = true)]
async fn deleted_pod_with_any_unreadable_field_is_torn_down() {
    let late = "9999-12-31T23:59:59Z";
    let mut node = Node::new().await;
    let hostile = [
        ending("containers", |pod| pod["spec"]["containers"] = "none".into()),
        ending("grace", |pod| {
            pod["spec"]["terminationGracePeriodSeconds"] = "soon".into();
        }),
        ending("deletion", |pod| pod["metadata"]["deletionTimestamp"] = late.into()),
        ending("name", |pod| pod["spec"]["containers"] = json!([{ "name": 7 }])),
        ending("hook", |pod| {
            pod["spec"]["containers"] = json!([{ "name": "main", "lifecycle": { "preStop": 3 } }]);
        }),
        ending("condition", |pod| {
            pod["status"]["conditions"] = json!([{ "type": "Mine", "status": "True", "lastTransitionTime": late }]);
        }),
        ending("manager", |pod| {
            pod["metadata"]["managedFields"] = json!([{ "manager": "m", "time": late }]);
        }),
        ending("status", |pod| {
            pod["status"]["containerStatuses"] = json!([7, { "name": 7 }]);
        }),
    ];
    let names = hostile
        .each_ref()
        .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned());
    for object in hostile {
        node.object(object);
    }
    for name in &names {
        node.left_over(name, |pod| drop(pod.container("main")));
    }
    node.cri.allow_everything();
    node.start().await;
    for name in &names {
        node.nothing_left(name).await;
    }
    // All but the one whose managers nobody needs to know.
    assert_eq!(node.status().await.counters.pods_unreadable, 7);
    others_go_on(&node).await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_an_unreadable_condition_is_deleted_also_by_force() {
    let mut node = Node::new().await;
    for (name, grace) in [("polite", None), ("forced", Some(0))] {
        let mut object = pod(name, &plain());
        object["status"]["conditions"] =
            json!([{ "type": "Mine", "status": "True", "lastTransitionTime": "9999-12-31T23:59:59Z" }]);
        node.object(object);
        node.left_over(name, |pod| drop(pod.container("main")));
        node.start().await;
        node.cri.allow_everything();
        node.delete(name, grace).await;
        node.nothing_left(name).await;
        assert_eq!(node.stop().await, Ok(()));
    }
}

#[tokio::test(start_paused = true)]
async fn unreadable_object_does_not_count_as_absent() {
    let mut node = Node::with_pods(&["web"]).await;
    node.start().await;
    node.cri.allow_everything();
    let mut odd = node.get("web").await.unwrap();
    odd["metadata"]["annotations"] = "mirror".into();
    node.object(odd);
    until("it is noticed", async || {
        node.status().await.counters.pods_unreadable == 1
    })
    .await;
    granted(&node, "web/kill", &StopRequest::default()).await;
    node.failing("web", "its annotations cannot be read").await;
}

#[tokio::test(start_paused = true)]
async fn missing_fields_are_accepted() {
    let mut node = Node::new().await;
    node.start().await;
    node.cri.allow_everything();
    let sparse = [
        ending("no-status", |pod| drop(pod.as_object_mut().unwrap().remove("status"))),
        ending("no-containers", |pod| pod["spec"]["containers"] = json!([])),
        ending("null-containers", |pod| pod["spec"]["containers"] = Value::Null),
        ending("little-spec", |pod| pod["spec"] = json!({ "nodeName": NODE })),
    ];
    for object in sparse {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        node.object(object);
        node.nothing_left(&name).await;
    }
    others_go_on(&node).await;
}

#[tokio::test(start_paused = true)]
async fn uid_that_is_a_path_is_harmless() {
    for uid in [
        "..",
        "../../precious",
        "/precious",
        "a/../..",
        "uid\nx",
        "uid\0x",
        &"u".repeat(300),
    ] {
        let mut node = Node::new().await;
        fs::create_dir_all(node.path("precious/volumes/kubernetes.io~empty-dir/data")).unwrap();
        fs::create_dir_all(node.path("kubelet/volumes/kubernetes.io~empty-dir/data")).unwrap();
        node.start().await;
        node.cri.allow_everything();
        node.object(ending("evil", |pod| pod["metadata"]["uid"] = uid.into()));
        until(&format!("{uid:?} is reported"), async || {
            let story = node.story("evil").await;
            story.is_some_and(|story| story.blocked.iter().any(|it| it.message.contains("cannot be part of")))
                || node.status().await.counters.pods_unreadable > 0
        })
        .await;
        sleep(secs(20)).await;
        assert!(
            node.path("precious/volumes/kubernetes.io~empty-dir/data").exists(),
            "{uid:?}"
        );
        assert!(
            node.path("kubelet/volumes/kubernetes.io~empty-dir/data").exists(),
            "{uid:?}"
        );
        others_go_on(&node).await;
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_are_paths_are_harmless() {
    for (namespace, name) in [
        ("default", ".."),
        ("..", "web"),
        ("default", "a/../../precious"),
        ("default", "x\ny"),
    ] {
        let mut node = Node::new().await;
        fs::create_dir_all(node.path("precious/data")).unwrap();
        node.start().await;
        node.cri.allow_everything();
        node.object(ending("evil", |pod| {
            pod["metadata"]["name"] = name.into();
            pod["metadata"]["namespace"] = namespace.into();
        }));
        sleep(secs(20)).await;
        assert!(
            node.path("precious/data").exists() && node.path("logs").exists(),
            "{namespace}/{name}"
        );
        assert!(node.path("kubelet/pods").exists());
        others_go_on(&node).await;
    }
}

#[tokio::test(start_paused = true)]
async fn container_names_that_are_paths_are_harmless() {
    let mut node = Node::new().await;
    node.start().await;
    node.cri.allow_everything();
    let containers = json!([{ "name": "../../precious", "image": "i" }, { "name": "", "image": "i" }, { "name": "..", "image": "i" }]);
    fs::create_dir_all(node.path("precious")).unwrap();
    node.pod("evil", &containers, |pod| {
        drop(pod.container("../../precious").container("").container(".."));
    });
    node.delete("evil", None).await;
    node.nothing_left("evil").await;
    assert!(node.path("precious").exists());
    others_go_on(&node).await;
}

/// A termination with a long grace period holds the room for as long.
#[tokio::test(start_paused = true)]
async fn large_pod_beyond_the_memory_limit_is_named_and_stopped_when_removed() {
    let mut node = Node::new().await;
    let ephemeral = |count: usize| -> Value {
        (0..count)
            .map(|at| json!({ "name": format!("c{at}"), "image": "i" }))
            .collect()
    };
    for (name, count) in [("first", 17_000), ("second", 200)] {
        let mut object = pod(name, &plain());
        object["spec"]["terminationGracePeriodSeconds"] = 3_600.into();
        object["spec"]["ephemeralContainers"] = ephemeral(count);
        node.object(object);
        node.left_over(name, |pod| drop(pod.container("main").ignores_term()));
    }
    node.cri.allow_everything();
    node.start().await;
    node.delete("first", None).await;
    let stops = |seen: &Seen, name| seen.kind == Kind::StopContainer && seen.pod_uid == uid(name);
    node.calls(1, |seen| stops(seen, "first")).await;
    node.delete("second", None).await;
    node.failing("second", "other large pods").await;
    node.delete("second", Some(0)).await;
    node.calls(1, |seen| stops(seen, "second")).await;
}

/// A list that is searched for each entry of another takes seconds, in which the agent does nothing else.
#[tokio::test(start_paused = true)]
async fn pod_of_ten_thousand_containers_delays_no_other() {
    let mut node = Node::new().await;
    let containers: Vec<Value> = (0..10_000)
        .map(|number| json!({ "name": format!("c{number}"), "image": "x" }))
        .collect();
    node.pod("crowd", &containers.into(), |pod| drop(pod.container("c0")));
    node.start().await;
    node.cri.allow_everything();
    node.delete("crowd", None).await;
    others_go_on(&node).await;
    node.gone("crowd").await;
}
