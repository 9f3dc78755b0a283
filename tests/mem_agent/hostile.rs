//! Pod objects with missing, absurd or hostile fields: reported, never fatal, never an escape from the pod's directory.

use std::fs;

use pod_teardown::ops::admin::stop::StopRequest;
use serde_json::{Value, json};
use testbed::scripted_cri::{Kind, Seen};
use tokio::time::sleep;

use crate::{
    node::{NODE, Node, secs, wait_until},
    pods::{plain, pod, uid},
    stop_requests::granted,
};

/// A deleted pod object with a change.
fn terminating_pod(name: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut object = pod(name, &plain());
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    object["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    change(&mut object);
    object
}

/// Another pod of the node is torn down.
async fn other_pods_are_torn_down(node: &Node) {
    node.simple_pod("polite");
    node.delete("polite", None).await;
    node.wait_torn_down("polite").await;
    assert!(node.runs());
}

#[tokio::test(start_paused = true)]
async fn objects_without_identity_are_counted_and_skipped() {
    let mut node = Node::new().await;
    node.start().await;
    node.cri.allow_everything();
    let hostile = [
        terminating_pod("a", |pod| pod["metadata"]["annotations"] = "mirror".into()),
        terminating_pod("b", |pod| pod["metadata"]["annotations"] = json!([])),
    ];
    let count = u64::try_from(hostile.len()).unwrap();
    hostile.into_iter().for_each(|object| node.insert(object));
    wait_until("all are counted", async || {
        node.status().await.counters.pods_unreadable == count
    })
    .await;
    other_pods_are_torn_down(&node).await;
    assert_eq!(node.status().await.counters.started, 1);
    // They are reported once; a list shows them, too.
    assert_eq!(node.stop().await, Ok(()));
    node.start().await;
    assert_eq!(node.status().await.counters.pods_unreadable, count);
}

#[tokio::test(start_paused = true)]
async fn deleted_pod_with_any_unreadable_field_is_torn_down() {
    let late = "9999-12-31T23:59:59Z";
    let mut node = Node::new().await;
    let hostile = [
        terminating_pod("containers", |pod| pod["spec"]["containers"] = "none".into()),
        terminating_pod("grace", |pod| {
            pod["spec"]["terminationGracePeriodSeconds"] = "soon".into();
        }),
        terminating_pod("deletion", |pod| pod["metadata"]["deletionTimestamp"] = late.into()),
        terminating_pod("name", |pod| pod["spec"]["containers"] = json!([{ "name": 7 }])),
        terminating_pod("hook", |pod| {
            pod["spec"]["containers"] = json!([{ "name": "main", "lifecycle": { "preStop": 3 } }]);
        }),
        terminating_pod("condition", |pod| {
            pod["status"]["conditions"] = json!([{ "type": "Mine", "status": "True", "lastTransitionTime": late }]);
        }),
        terminating_pod("manager", |pod| {
            pod["metadata"]["managedFields"] = json!([{ "manager": "m", "time": late }]);
        }),
        terminating_pod("status", |pod| {
            pod["status"]["containerStatuses"] = json!([7, { "name": 7 }]);
        }),
    ];
    let names = hostile
        .each_ref()
        .map(|object| object["metadata"]["name"].as_str().unwrap().to_owned());
    for object in hostile {
        node.insert(object);
    }
    for name in &names {
        node.pod_without_object(name, |pod| drop(pod.container("main")));
    }
    node.cri.allow_everything();
    node.start().await;
    for name in &names {
        node.wait_torn_down(name).await;
    }
    // All but the one with only unreadable managedFields.
    assert_eq!(node.status().await.counters.pods_unreadable, 7);
    other_pods_are_torn_down(&node).await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_an_unreadable_condition_is_deleted_also_by_force() {
    let mut node = Node::new().await;
    for (name, grace) in [("polite", None), ("forced", Some(0))] {
        let mut object = pod(name, &plain());
        object["status"]["conditions"] =
            json!([{ "type": "Mine", "status": "True", "lastTransitionTime": "9999-12-31T23:59:59Z" }]);
        node.insert(object);
        node.pod_without_object(name, |pod| drop(pod.container("main")));
        node.start().await;
        node.cri.allow_everything();
        node.delete(name, grace).await;
        node.wait_torn_down(name).await;
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
    node.insert(odd);
    wait_until("it is reported", async || {
        node.status().await.counters.pods_unreadable == 1
    })
    .await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    node.wait_blocked("web", "its annotations cannot be read").await;
}

#[tokio::test(start_paused = true)]
async fn missing_fields_are_accepted() {
    let mut node = Node::new().await;
    node.start().await;
    node.cri.allow_everything();
    let sparse = [
        terminating_pod("no-status", |pod| drop(pod.as_object_mut().unwrap().remove("status"))),
        terminating_pod("no-containers", |pod| pod["spec"]["containers"] = json!([])),
        terminating_pod("null-containers", |pod| pod["spec"]["containers"] = Value::Null),
        terminating_pod("little-spec", |pod| pod["spec"] = json!({ "nodeName": NODE })),
    ];
    for object in sparse {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        node.insert(object);
        node.wait_torn_down(&name).await;
    }
    other_pods_are_torn_down(&node).await;
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
        node.insert(terminating_pod("evil", |pod| pod["metadata"]["uid"] = uid.into()));
        wait_until(&format!("{uid:?} is reported"), async || {
            let trace = node.trace("evil").await;
            trace.is_some_and(|trace| trace.blocked.iter().any(|it| it.message.contains("cannot be part of")))
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
        other_pods_are_torn_down(&node).await;
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
        node.insert(terminating_pod("evil", |pod| {
            pod["metadata"]["name"] = name.into();
            pod["metadata"]["namespace"] = namespace.into();
        }));
        sleep(secs(20)).await;
        assert!(
            node.path("precious/data").exists() && node.path("logs").exists(),
            "{namespace}/{name}"
        );
        assert!(node.path("kubelet/pods").exists());
        other_pods_are_torn_down(&node).await;
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
    node.wait_torn_down("evil").await;
    assert!(node.path("precious").exists());
    other_pods_are_torn_down(&node).await;
}

/// The first has objects as large as all that may be in memory. Its grace period is long, and nothing of its object is needed meanwhile.
#[tokio::test(start_paused = true)]
async fn large_pod_in_its_grace_period_delays_no_other_large_pod() {
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
        node.insert(object);
        node.pod_without_object(name, |pod| drop(pod.container("main").ignores_term()));
    }
    node.cri.allow_everything();
    node.start().await;
    node.delete("first", None).await;
    let stops = |seen: &Seen, name| seen.kind == Kind::StopContainer && seen.pod_uid == uid(name);
    node.calls(1, |seen| stops(seen, "first")).await;
    node.delete("second", None).await;
    node.calls(1, |seen| stops(seen, "second")).await;
    node.delete("second", Some(0)).await;
    node.wait_deleted("second").await;
}

/// Together their hooks are larger than the memory for large objects. A pod with nothing on the node counts as large, too.
#[tokio::test(start_paused = true)]
async fn pods_with_large_hooks_run_them_whole_and_delay_no_other() {
    const PODS: usize = 40;
    const BYTES: usize = 1_300_000;
    let mut node = Node::new().await;
    let name = |number: usize| format!("large-{number}");
    for number in 0..PODS {
        let containers = json!([{
            "name": "main",
            "image": "i",
            "lifecycle": { "preStop": { "exec": { "command": ["x".repeat(BYTES)] } } },
        }]);
        let mut object = pod(&name(number), &containers);
        object["spec"]["terminationGracePeriodSeconds"] = 3_600.into();
        node.insert(object);
        node.pod_without_object(&name(number), |pod| {
            drop(pod.container("main").commands(secs(1_800), 0, b""));
        });
    }
    node.insert(pod("nothing", &plain()));
    node.cri.allow_everything();
    node.start().await;
    for number in 0..PODS {
        node.delete(&name(number), None).await;
    }
    let is_whole = |seen: &Seen| seen.kind == Kind::ExecSync && seen.command.iter().all(|it| it.len() == BYTES);
    node.calls(PODS, is_whole).await;
    node.delete("nothing", None).await;
    node.wait_deleted("nothing").await;
    let stopped = node
        .cri
        .effects()
        .iter()
        .filter(|(_, seen)| seen.kind == Kind::StopContainer)
        .count();
    assert_eq!(stopped, 0, "all hooks are still running");
}

/// Quadratic searches would block the agent for seconds.
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
    other_pods_are_torn_down(&node).await;
    node.wait_deleted("crowd").await;
}
