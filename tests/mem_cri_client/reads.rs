//! Calls that read.

use pod_teardown::node::cri::types::{Container, ContainerState, Sandbox};
use pod_teardown::node::grpc::CallFailure;
use testbed::scripted_cri::{Fault, Read, World};
use tokio::time::Instant;
use tonic::Code;

use crate::{PATIENCE, SANDBOX, at, count_reads, one_container, secs, start, start_pod};

#[tokio::test(start_paused = true)]
async fn pod_has_all_fields_and_newest_first() {
    let mut world = World::new();
    world
        .pod("shop", "web-0", "u1")
        .container("main")
        .exited(3)
        .because("OOMKilled", "too large")
        .termination_message("/dev/termination-log", "/pods/u1/message", "FallbackToLogsOnError")
        .sandbox()
        .annotation("team", "blue")
        .container("main")
        .created();
    world.pod("shop", "web-1", "u2").container("main");
    let (_runtime, cri) = start(world).await;

    let pod = cri.pod("u1", PATIENCE).await.unwrap();
    let sandbox = |id: &str, attempt, is_ready, created: &str| Sandbox {
        id: id.to_owned(),
        attempt,
        is_ready,
        created_at: at(created),
        config_source: Some("api".to_owned()),
        ips: Vec::new(),
    };
    assert_eq!(
        pod.sandboxes,
        [
            sandbox("sandbox-u1-1", 1, true, "59:03"),
            sandbox("sandbox-u1-0", 0, false, "59:01"),
        ]
    );
    let older = Container {
        id: "container-u1-main-0".to_owned(),
        name: "main".to_owned(),
        attempt: 0,
        sandbox_id: "sandbox-u1-0".to_owned(),
        state: ContainerState::Exited,
        created_at: at("59:02"),
        started_at: Some(at("59:02.1")),
        finished_at: Some(at("59:02.2")),
        exit_code: 3,
        reason: "OOMKilled".to_owned(),
        message: "too large".to_owned(),
        image: "registry.test/busybox:1".to_owned(),
        image_ref: "sha256:registry.test/busybox:1".to_owned(),
        restart_count: 0,
        termination_message_file: Some("/pods/u1/message".to_owned()),
        message_falls_back_to_log: true,
        log_path: "/var/log/pods/shop_web-0_u1/main/0.log".to_owned(),
        is_unread: false,
    };
    let newer = Container {
        id: "container-u1-main-1".to_owned(),
        attempt: 1,
        sandbox_id: "sandbox-u1-1".to_owned(),
        state: ContainerState::Created,
        created_at: at("59:04"),
        started_at: None,
        finished_at: None,
        exit_code: 0,
        reason: String::new(),
        message: String::new(),
        restart_count: 1,
        termination_message_file: None,
        message_falls_back_to_log: false,
        log_path: "/var/log/pods/shop_web-0_u1/main/1.log".to_owned(),
        ..older.clone()
    };
    assert_eq!(pod.containers, [newer, older]);
    assert!(cri.pod("u3", PATIENCE).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn brief_read_uses_only_lists_and_shows_no_success() {
    let (runtime, cri) = start_pod(|pod| {
        pod.container("main")
            .exited(0)
            .container("main")
            .container("side")
            .unknown()
    })
    .await;

    let pod = cri.pod_brief("u1").await.unwrap();
    let seen: Vec<_> = pod
        .containers
        .iter()
        .map(|c| (&*c.name, c.restart_count, c.state, c.exit_code))
        .collect();
    assert_eq!(
        seen,
        [
            ("side", 0, ContainerState::Unknown, 137),
            ("main", 1, ContainerState::Running, 0),
            ("main", 0, ContainerState::Exited, 137),
        ]
    );
    assert_eq!(pod.possibly_running().count(), 2, "one of them unknown");
    assert_eq!(pod.sandboxes.len(), 1);
    assert_eq!(
        (
            count_reads(&runtime, "ListContainers"),
            count_reads(&runtime, "ContainerStatus")
        ),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn container_removed_after_the_list_is_left_out() {
    let mut world = one_container();
    world.pod("shop", "web-0", "u2").container("main").container("side");
    let (runtime, cri) = start(world).await;
    runtime.fault_of(
        Read::ContainerStatus,
        "side",
        Fault::Error(Code::NotFound, "gone".to_owned()),
    );
    let pod = cri.pod("u2", PATIENCE).await.unwrap();
    assert_eq!(pod.containers.iter().map(|c| &*c.name).collect::<Vec<_>>(), ["main"]);
}

#[tokio::test(start_paused = true)]
async fn pod_with_failing_lists_is_never_incomplete() {
    let (runtime, cri) = start_pod(|pod| pod.container("main").container("side")).await;
    for read in [Read::ListPodSandbox, Read::ListContainers, Read::ContainerStatus] {
        for code in [Code::Unknown, Code::Unavailable, Code::Internal] {
            if read == Read::ContainerStatus && code != Code::Unavailable {
                continue;
            }
            let target = if read == Read::ContainerStatus { "side" } else { "" };
            runtime.fault_of(read, target, Fault::Error(code, "no shim".to_owned()));
            let error = cri.pod("u1", PATIENCE).await.unwrap_err();
            assert!(
                matches!(error.failure, CallFailure::Failed { code: seen, .. } if seen == code),
                "{error}"
            );
            runtime.heal();
        }
    }
    runtime.fault(Read::ListContainers, Fault::Error(Code::Unknown, "no shim".to_owned()));
    let error = cri.pod("u1", PATIENCE).await.unwrap_err();
    assert_eq!(error.to_string(), "ListContainers u1: Unknown: no shim");
}

#[tokio::test(start_paused = true)]
async fn container_with_failing_or_hanging_status_has_the_values_of_the_list() {
    for fault in [Fault::Error(Code::Unknown, "no image".to_owned()), Fault::Hang] {
        let mut world = World::new();
        let pod = world.pod("shop", "web-0", "u1").container("init").exited(0);
        drop(pod.container("main").container("side"));
        let (runtime, cri) = start(world).await;
        for name in ["init", "main"] {
            runtime.fault_of(Read::ContainerStatus, name, fault.clone());
        }
        let begun = Instant::now();
        let pod = cri.pod("u1", secs(2)).await.unwrap();
        assert!(begun.elapsed() <= secs(2), "{:?}", begun.elapsed());
        let seen: Vec<_> = pod
            .containers
            .iter()
            .map(|c| (&*c.name, c.state, c.exit_code, c.is_unread))
            .collect();
        assert_eq!(
            seen,
            [
                ("side", ContainerState::Running, 0, false),
                ("main", ContainerState::Running, 0, true),
                ("init", ContainerState::Exited, 137, true),
            ]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn impossible_exit_code_is_none() {
    let (_runtime, cri) = start_pod(|pod| pod.container("main").exited(-1)).await;
    assert!(cri.pod("u1", PATIENCE).await.unwrap().containers[0].is_unread);
}

#[tokio::test(start_paused = true)]
async fn container_pid_is_the_reported_one() {
    let (_runtime, cri) = start_pod(|pod| pod.container("main").process(4242).container("vm")).await;
    let process = async |id: &str| cri.container_pid(id, PATIENCE).await.unwrap();
    assert_eq!(process("container-u1-main-0").await, Some(4242));
    assert_eq!(process("container-u1-vm-0").await, None);
    assert_eq!(process("gone").await, None);
}

#[tokio::test(start_paused = true)]
async fn container_statuses_are_read_concurrently() {
    let mut world = World::new();
    let mut pod = world.pod("shop", "web-0", "u1");
    for name in ["a", "b", "c", "d", "e"] {
        pod = pod.container(name);
    }
    drop(pod);
    let (runtime, cri) = start(world).await;
    runtime.fault(Read::ListPodSandbox, Fault::Late(secs(2)));
    runtime.fault(Read::ListContainers, Fault::Late(secs(2)));
    runtime.fault(Read::ContainerStatus, Fault::Late(secs(3)));
    let begun = Instant::now();
    assert_eq!(cri.pod("u1", PATIENCE).await.unwrap().containers.len(), 5);
    assert_eq!(begun.elapsed(), secs(5));
}

#[tokio::test(start_paused = true)]
async fn primary_ip_comes_first() {
    let mut world = World::new();
    world.pod("shop", "web-0", "u1").ips(&["10.1.2.3", "fd00::3"]);
    world.pod("shop", "host", "u2").ips(&[]);
    let (_runtime, cri) = start(world).await;
    assert_eq!(cri.pod_ips(SANDBOX).await.unwrap(), ["10.1.2.3", "fd00::3"]);
    assert_eq!(cri.pod_ips("sandbox-u2-0").await.unwrap(), [""; 0]);
    assert_eq!(cri.pod_ips("gone").await.unwrap(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn node_list_contains_every_pod() {
    let mut world = World::new();
    world.pod("kube-system", "proxy", "u9").source("file").container("main");
    world.pod("shop", "web-0", "u1").sandbox().container("main");
    world.pod("shop", "web-1", "u2").container("main");
    world.sandboxes.shift_remove("sandbox-u2-0");
    let (_runtime, cri) = start(world).await;

    let sandboxes = cri.list_sandboxes().await.unwrap();
    let seen: Vec<_> = sandboxes
        .iter()
        .map(|s| (&*s.pod_uid, &*s.namespace, &*s.name, s.sandbox.attempt))
        .collect();
    assert_eq!(
        seen,
        [
            ("u1", "shop", "web-0", 1),
            ("u1", "shop", "web-0", 0),
            ("u9", "kube-system", "proxy", 0)
        ]
    );
    assert_eq!(sandboxes[2].sandbox.config_source.as_deref(), Some("file"));
}
