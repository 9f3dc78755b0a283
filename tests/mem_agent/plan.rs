//! A plan names what a teardown then touches, and neither it nor `why` touches anything.

use std::collections::BTreeSet;

use pod_teardown::{
    explanation::cause::{Cause, CauseKind},
    model::{step::Step, termination::GraceStart},
    ops::admin::{plan, why},
    teardown::plan::{Plan, PlannedAction},
};

use crate::devices::DRIVER;
use crate::prelude::*;

impl Node {
    pub async fn plan(&self, name: &str) -> Plan {
        let path = plan::request_path(&format!("default/{name}"));
        self.query(&path).await.unwrap()
    }

    pub async fn explanation(&self, name: &str) -> Explanation {
        let path = why::request_path(&format!("default/{name}"));
        self.query(&path).await.unwrap()
    }
}

/// A sidecar and two containers with hooks, one of which has exited; volumes, and a finalizer.
fn full(node: &Node, name: &str) {
    let mut object = pod(
        name,
        &json!([
            { "name": "main", "image": "registry.test/busybox:1", "lifecycle": { "preStop": exec() } },
            { "name": "other", "image": "registry.test/busybox:1" },
            { "name": "gone", "image": "registry.test/busybox:1", "lifecycle": { "preStop": exec() } },
        ]),
    );
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    object["spec"]["initContainers"] =
        json!([{ "name": "mesh", "image": "registry.test/busybox:1", "restartPolicy": "Always" }]);
    node.insert(object);
    node.pod_without_object(name, |pod| {
        pod.container("mesh")
            .container("main")
            .container("other")
            .container("gone")
            .exited(1)
    });
    for (plugin, volume) in [("empty-dir", "data"), ("secret", "token")] {
        let path = node
            .pod_dir(name)
            .join(format!("volumes/kubernetes.io~{plugin}/{volume}"));
        fs::create_dir_all(path).unwrap();
    }
}

fn set(texts: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    texts.into_iter().collect()
}

/// Calls that change the runtime, as the plan names them.
fn planned_calls(plan: &Plan) -> BTreeSet<String> {
    set(plan.actions().filter_map(|(_, action)| match action {
        PlannedAction::RunHook { id, .. } => Some(format!("{:?} {id}", Kind::ExecSync)),
        PlannedAction::StopContainer { id, .. } => Some(format!("{:?} {id}", Kind::StopContainer)),
        PlannedAction::StopSandbox { id } => Some(format!("{:?} {id}", Kind::StopPodSandbox)),
        PlannedAction::RemoveContainer { id, .. } => Some(format!("{:?} {id}", Kind::RemoveContainer)),
        PlannedAction::RemoveSandbox { id } => Some(format!("{:?} {id}", Kind::RemovePodSandbox)),
        _ => None,
    }))
}

fn paths(plan: &Plan) -> Vec<String> {
    let paths = |action: &PlannedAction| match action {
        PlannedAction::RemoveDirectory { path } => vec![path.clone()],
        PlannedAction::RemoveCgroup { paths, .. } => paths.clone(),
        _ => Vec::new(),
    };
    plan.actions().flat_map(|(_, action)| paths(action)).collect()
}

/// Everything below the node's directories.
fn tree(node: &Node) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut next: Vec<_> = ["kubelet", "logs", "cgroup"]
        .iter()
        .map(|name| node.path(name))
        .collect();
    while let Some(dir) = next.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            found.insert(entry.path().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                next.push(entry.path());
            }
        }
    }
    found
}

/// Writes of the agent that the API server has seen.
async fn object(node: &Node, name: &str) -> Value {
    node.get(name).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn plan_names_exactly_what_the_teardown_then_touches() {
    let mut node = Node::new().await;
    full(&node, "web");
    node.run().await;
    let before = (tree(&node), object(&node, "web").await);
    let plan = node.plan("web").await;
    assert_eq!(
        (tree(&node), object(&node, "web").await),
        before,
        "a plan touches nothing"
    );
    assert!(node.cri.effects().is_empty());
    assert!(
        !plan.is_deleted && plan.blocked.is_empty() && plan.unknown.is_empty(),
        "{plan:#?}"
    );
    assert_eq!((plan.grace_seconds, plan.grace_left_seconds), (30, 30));

    let all = before.0;
    node.delete("web", None).await;
    // A finalizer keeps the object; the directory is removed last.
    wait_until!(!node.pod_dir("web").exists());
    sleep(secs(1)).await;
    let done = node
        .cri
        .effects()
        .into_iter()
        .map(|(_, seen)| format!("{:?} {}", seen.kind, seen.id));
    assert_eq!(set(done), planned_calls(&plan));
    let left = tree(&node);
    let removed: BTreeSet<_> = all.difference(&left).cloned().collect();
    let planned = paths(&plan);
    for path in &planned {
        assert!(removed.contains(path), "{path} is planned to be removed, and is left");
    }
    let is_planned = |path: &String| planned.iter().any(|planned| path.starts_with(planned.as_str()));
    let unplanned: Vec<_> = removed.iter().filter(|path| !is_planned(path)).collect();
    assert!(unplanned.is_empty(), "removed, and not in the plan: {unplanned:?}");
    let kept = plan.actions().find_map(|(_, action)| match action {
        PlannedAction::DeleteObject { uid, kept_by } => Some((uid.clone(), kept_by.clone())),
        _ => None,
    });
    assert_eq!(kept, Some((uid("web"), vec!["example.com/hold".to_owned()])));
    let why = node.explanation("web").await;
    assert!(
        matches!(
            &why.causes[..],
            [Cause {
                kind: CauseKind::Finalizer,
                ..
            }]
        ),
        "{why:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn sidecar_is_planned_after_the_containers_that_use_it() {
    let mut node = Node::new().await;
    full(&node, "web");
    node.start().await;
    let plan = node.plan("web").await;
    let stops = plan.actions().filter_map(|(_, action)| match action {
        PlannedAction::StopContainer { container, after, .. } => Some((container.clone(), set(after.clone()))),
        _ => None,
    });
    let stops: Vec<_> = stops.collect();
    assert_eq!(stops.len(), 3);
    assert_eq!(
        stops.last(),
        Some(&("mesh".to_owned(), set(["main".to_owned(), "other".to_owned()])))
    );
    let text = pod_teardown::teardown::plan::text(&plan, false);
    assert_has(
        &text,
        &["  1. hook     run the preStop hook of container main: exec drain"],
    );
    assert!(text.contains("nothing would be done now"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn claims_and_drivers_are_planned_and_a_missing_driver_is_a_cause() {
    let mut node = Node::new().await;
    node.pod("web", &crate::pods::plain(), |pod| pod.container("main").ignores_term());
    checkpoint(
        &node,
        &[Prepared {
            name: "gpu",
            pods: &["web"],
            drivers: &[DRIVER],
        }],
    );
    node.run().await;
    let plan = node.plan("web").await;
    let claim = PlannedAction::UnprepareClaim {
        claim: "default/gpu".to_owned(),
        drivers: vec![DRIVER.to_owned()],
    };
    assert!(plan.actions().any(|(_, action)| *action == claim), "{plan:#?}");
    node.delete("web", None).await;
    sleep(secs(5)).await;
    let why = node.explanation("web").await;
    let is_missing = |cause: &Cause| cause.kind == CauseKind::DriverMissing && cause.message.contains(DRIVER);
    assert!(why.causes.iter().any(is_missing), "{why:#?}");
}

#[tokio::test(start_paused = true)]
async fn beside_a_kubelet_why_and_plan_only_read() {
    let node = &NodeWithKubelet::new().await;
    assert_eq!(node.flags.mode, ModeFlag::Auto);
    full(node, "db");
    sleep(secs(2)).await;
    node.delete("db", None).await;
    sleep(secs(2)).await;
    let before = (tree(node), object(node, "db").await);
    let calls = node.cri.log().len();
    let why = node.explanation("db").await;
    let plan = node.plan("db").await;
    assert_eq!((tree(node), object(node, "db").await), before);
    let log = node.cri.log().split_off(calls);
    assert!(
        log.iter().all(|entry| matches!(entry.call, Logged::Read(..))),
        "{log:?}"
    );
    assert!(
        log.iter().any(|entry| matches!(entry.call, Logged::Read("Status", _))),
        "the runtime was asked"
    );

    let has = |kind| why.causes.iter().any(|cause| cause.kind == kind);
    for kind in [
        CauseKind::KubeletTerminates,
        CauseKind::GracePeriod,
        CauseKind::PreStopHook,
        CauseKind::SidecarWaits,
        CauseKind::Finalizer,
    ] {
        assert!(has(kind), "{kind:?}: {why:#?}");
    }
    assert!(!has(CauseKind::Unknown), "{why:#?}");
    assert!(
        plan.is_deleted && plan.blocked.iter().any(|why| why.contains("kubelet")),
        "{plan:#?}"
    );
    assert!(!plan.steps.is_empty());

    // The kubelet's grace period.
    let kubelet = GraceStart::DeleteRequest;
    let grace = why.causes.iter().find(|cause| cause.kind == CauseKind::GracePeriod);
    let grace = &grace.unwrap().message;
    assert!(grace.ends_with("s left of 30s, by the API server's clock"), "{grace}");
    // The clock of the deletion does not stand still.
    let is_near = |(counted_from, left): (GraceStart, u64)| counted_from == kubelet && (20..=30).contains(&left);
    assert!(is_near((plan.grace_counted_from, plan.grace_left_seconds)), "{plan:#?}");
    node.cri.heal();
}

#[tokio::test(start_paused = true)]
async fn silent_runtime_and_api_server_leave_an_answer_with_what_is_unknown() {
    let node = &NodeWithKubelet::new().await;
    full(node, "db");
    sleep(secs(2)).await;
    node.delete("db", None).await;
    sleep(secs(2)).await;
    use testbed::scripted_cri::{Fault as CriFault, Read};
    for read in [Read::ListPodSandbox, Read::ListContainers, Read::Status] {
        node.cri.fault(read, CriFault::Hang);
    }
    let why = node.explanation("db").await;
    let unknown: Vec<_> = why.causes.iter().filter(|it| it.kind == CauseKind::Unknown).collect();
    assert_eq!(unknown.len(), 2, "{why:#?}");
    assert!(
        unknown.iter().all(|cause| cause.message.contains("no answer within")),
        "{unknown:?}"
    );
    let plan = node.plan("db").await;
    assert!(
        plan.unknown.iter().any(|what| what.contains("container runtime")),
        "{plan:#?}"
    );
    let delete = plan.steps.iter().find(|planned| planned.step == Step::Delete);
    assert!(delete.is_some(), "{plan:#?}");

    // The client waits for 5 seconds.
    inject_fault(node, Fault::new(Action::Delay { millis: 60_000 }));
    let why = node.explanation("db").await;
    let is_unread = |cause: &Cause| cause.kind == CauseKind::ApiServerUnreachable;
    assert!(why.causes.iter().any(is_unread), "{why:#?}");
    let plan = node.plan("db").await;
    assert!(plan.unknown.iter().any(|what| what.contains("API server")), "{plan:#?}");
    node.api.faults().clear();
    node.cri.heal();
}

#[tokio::test(start_paused = true)]
async fn file_with_user_ids_is_planned_for_a_pod_with_a_user_namespace() {
    for (own_users, has_file) in [(true, true), (true, false), (false, true)] {
        let mut node = Node::new().await;
        let mut object = crate::pods::pod("web", &crate::pods::plain());
        object["spec"]["hostUsers"] = json!(!own_users);
        node.pod_without_object("web", |pod| pod.container("main"));
        node.insert(object);
        let file = node.pod_dir("web").join("userns");
        if has_file {
            fs::write(&file, "{}").unwrap();
        }
        node.start().await;
        let path = file.display().to_string();
        let release = PlannedAction::ReleaseUserIds { path };
        let planned = node.plan("web").await;
        let is_planned = planned.actions().any(|(_, action)| *action == release);
        assert_eq!(is_planned, own_users && has_file, "{planned:#?}");
    }
}
