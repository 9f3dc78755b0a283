//! Pod objects with missing, absurd or hostile fields: reported, never fatal, never an escape from the pod's directory.

use crate::prelude::*;

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
    node.tear_down("polite").await;
    assert!(node.runs());
}

#[tokio::test(start_paused = true)]
async fn objects_without_identity_are_counted_and_skipped() {
    let mut node = Node::new().await;
    node.run().await;
    let hostile = [
        terminating_pod("a", |pod| pod["metadata"]["annotations"] = "mirror".into()),
        terminating_pod("b", |pod| pod["metadata"]["annotations"] = json!([])),
    ];
    let count = u64::try_from(hostile.len()).unwrap();
    hostile.into_iter().for_each(|object| node.insert(object));
    node.wait_status(|it| it.counters.pods_unreadable, count).await;
    other_pods_are_torn_down(&node).await;
    assert_eq!(node.status().await.counters.started, 1);
    // They are reported once; a list shows them, too.
    assert_eq!(node.stop().await, Ok(()));
    node.start().await;
    assert_eq!(node.status().await.counters.pods_unreadable, count);
}

#[tokio::test(start_paused = true)]
async fn pod_with_a_used_field_of_another_type_is_left_alone() {
    let late = "9999-12-31T23:59:59Z";
    let mut node = Node::new().await;
    let hostile = [
        terminating_pod("containers", |pod| pod["spec"]["containers"] = "none".into()),
        terminating_pod("deletion", |pod| pod["metadata"]["deletionTimestamp"] = late.into()),
        terminating_pod("status", |pod| pod["status"]["containerStatuses"] = json!([7])),
        terminating_pod("finalizer", |pod| pod["metadata"]["finalizers"] = json!([7])),
        terminating_pod("finalizers", |pod| pod["metadata"]["finalizers"] = "none".into()),
        terminating_pod("manager", |pod| {
            pod["metadata"]["managedFields"] = json!([{ "manager": "m", "time": late }]);
        }),
    ];
    for object in hostile {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        node.insert(object);
        node.pod_without_object(&name, |pod| pod.container("main"));
    }
    node.run().await;
    node.wait_torn_down("manager").await;
    assert_eq!(node.status().await.counters.pods_unreadable, 5);
    other_pods_are_torn_down(&node).await;
    let stopped = |seen: &Seen| seen.kind == Kind::StopContainer && seen.pod_uid == uid("deletion");
    assert!(!node.cri.effects().iter().any(|(_, seen)| stopped(seen)));
}

#[tokio::test(start_paused = true)]
async fn unreadable_object_does_not_count_as_absent() {
    let node = Node::running(&["web"]).await;
    let mut odd = node.get("web").await.unwrap();
    odd["metadata"]["annotations"] = "mirror".into();
    node.insert(odd);
    node.wait_status(|it| it.counters.pods_unreadable, 1).await;
    granted(&node, "web/stop", &StopRequest::default()).await;
    node.wait_blocked("web", "invalid type").await;
}

#[tokio::test(start_paused = true)]
async fn missing_fields_are_accepted() {
    let mut node = Node::new().await;
    node.run().await;
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
async fn uids_and_names_that_are_paths_are_harmless() {
    let long = "u".repeat(300);
    let uids = [
        "..",
        "../../precious",
        "/precious",
        "a/../..",
        "uid\nx",
        "uid\0x",
        &long,
    ];
    let names = [
        ("default", ".."),
        ("..", "web"),
        ("default", "a/../../precious"),
        ("default", "x\ny"),
    ];
    let uids = uids.map(|uid| (uid, "default", "evil"));
    for (uid, namespace, name) in uids
        .into_iter()
        .chain(names.map(|(namespace, name)| ("uid-evil", namespace, name)))
    {
        let mut node = Node::new().await;
        let data = "volumes/kubernetes.io~empty-dir/data";
        let kept = ["precious", "kubelet"].map(|dir| node.path(dir).join(data));
        kept.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
        node.run().await;
        node.insert(terminating_pod("evil", |pod| {
            pod["metadata"]["uid"] = uid.into();
            pod["metadata"]["name"] = name.into();
            pod["metadata"]["namespace"] = namespace.into();
        }));
        if uid != "uid-evil" {
            wait_until!(
                node.status().await.counters.pods_unreadable > 0
                    || node.trace("evil").await.is_some_and(|trace| {
                        trace.blocked.iter().any(|it| it.message.contains("cannot be part of"))
                    })
            );
        }
        sleep(secs(20)).await;
        assert!(kept.iter().all(|dir| dir.exists()), "{uid:?} {namespace}/{name}");
        assert!(
            node.path("logs").exists() && node.path("kubelet/pods").exists(),
            "{namespace}/{name}"
        );
        other_pods_are_torn_down(&node).await;
    }
}

#[tokio::test(start_paused = true)]
async fn container_names_that_are_paths_are_harmless() {
    let mut node = Node::new().await;
    node.run().await;
    let containers = json!([{ "name": "../../precious", "image": "i" }, { "name": "", "image": "i" }, { "name": "..", "image": "i" }]);
    fs::create_dir_all(node.path("precious")).unwrap();
    node.pod("evil", &containers, |pod| {
        pod.container("../../precious").container("").container("..")
    });
    node.tear_down("evil").await;
    assert!(node.path("precious").exists());
    other_pods_are_torn_down(&node).await;
}

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
        node.pod_without_object(&name(number), |pod| pod.container("main").commands(secs(1_800), 0, b""));
    }
    node.insert(pod("nothing", &plain()));
    node.run().await;
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
    node.pod("crowd", &containers.into(), |pod| pod.container("c0"));
    node.run().await;
    node.delete("crowd", None).await;
    other_pods_are_torn_down(&node).await;
    node.wait_deleted("crowd").await;
}
