//! The CRI client against a scripted runtime: what it makes of answers, of errors, and of none.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use jiff::Timestamp;
use pod_teardown::node::cri::types::{
    CgroupDriver, Container, ContainerState, ExecOutcome, RuntimeVersion, Sandbox, SandboxState, keys,
};
use pod_teardown::node::{
    cri::{Cri, CriEndpoint, CriError},
    effects::{Effects, Held},
};
use testbed::scripted_cri::{
    ExecSync, Fault, Logged, Read, RemoveContainer, RemovePodSandbox, ScriptedCri, StopContainer, StopPodSandbox,
    World, expect,
};
use tokio::time::Instant;
use tonic::Code;

const MAIN: &str = "container-u1-main-0";
const SANDBOX: &str = "sandbox-u1-0";

/// What every call without a time of its own is given, and what is added to the others.
const PATIENCE: Duration = secs(120);

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn one_container() -> World {
    let mut world = World::new();
    world.pod("shop", "web-0", "u1").container("main");
    world
}

fn client(cri: &ScriptedCri, effects: Effects) -> Cri {
    let endpoint: CriEndpoint = cri.endpoint().parse().expect("an endpoint");
    Cri::new(&endpoint, effects)
}

async fn start(world: World) -> (ScriptedCri, Cri) {
    let runtime = ScriptedCri::start(world).await;
    let cri = client(&runtime, Effects::ungated());
    (runtime, cri)
}

/// How often a call that looks was made.
fn looks(runtime: &ScriptedCri, name: &str) -> usize {
    let is_it = |call: &Logged| matches!(call, Logged::Read(called, _) if *called == name);
    runtime.log().iter().filter(|entry| is_it(&entry.call)).count()
}

fn at(time: &str) -> Timestamp {
    format!("2025-12-31T23:{time}Z").parse().expect("a time")
}

// --- looks ---

#[tokio::test(start_paused = true)]
async fn a_pod_is_shown_whole_and_newest_first() {
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

    let pod = cri.pod("u1").await.unwrap();
    let sandbox = |id: &str, attempt, state, created: &str, annotations: &[(&str, &str)]| Sandbox {
        id: id.to_owned(),
        attempt,
        state,
        created_at: at(created),
        annotations: annotations
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
        ips: Vec::new(),
    };
    let from_api = (keys::CONFIG_SOURCE, "api");
    assert_eq!(
        pod.sandboxes,
        [
            sandbox(
                "sandbox-u1-1",
                1,
                SandboxState::Ready,
                "59:03",
                &[from_api, ("team", "blue")]
            ),
            sandbox("sandbox-u1-0", 0, SandboxState::NotReady, "59:01", &[from_api]),
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
    assert!(cri.pod("u3").await.unwrap().is_gone());
}

#[tokio::test(start_paused = true)]
async fn the_brief_look_asks_for_lists_alone_and_never_shows_a_success() {
    let mut world = World::new();
    world
        .pod("shop", "web-0", "u1")
        .container("main")
        .exited(0)
        .container("main")
        .container("side")
        .unknown();
    let (runtime, cri) = start(world).await;

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
    assert_eq!(pod.running().count(), 2, "one of them unknown");
    assert_eq!(pod.sandboxes.len(), 1);
    assert_eq!(
        (looks(&runtime, "ListContainers"), looks(&runtime, "ContainerStatus")),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_container_that_vanishes_between_list_and_look_is_gone() {
    let mut world = one_container();
    world.pod("shop", "web-0", "u2").container("main").container("side");
    let (runtime, cri) = start(world).await;
    runtime.fault_of(
        Read::ContainerStatus,
        "side",
        Fault::Error(Code::NotFound, "gone".to_owned()),
    );
    let pod = cri.pod("u2").await.unwrap();
    assert_eq!(pod.containers.iter().map(|c| &*c.name).collect::<Vec<_>>(), ["main"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_never_shown_in_part() {
    let mut world = World::new();
    world.pod("shop", "web-0", "u1").container("main").container("side");
    let (runtime, cri) = start(world).await;
    for read in [Read::ListPodSandbox, Read::ListContainers, Read::ContainerStatus] {
        for code in [Code::Unknown, Code::Unavailable, Code::Internal] {
            let target = if read == Read::ContainerStatus { "side" } else { "" };
            runtime.fault_of(read, target, Fault::Error(code, "no shim".to_owned()));
            let error = cri.pod("u1").await.unwrap_err();
            assert!(
                matches!(&error, CriError::Failed { code: seen, .. } if *seen == code),
                "{error}"
            );
            runtime.heal();
        }
    }
    runtime.fault_of(
        Read::ContainerStatus,
        "side",
        Fault::Error(Code::Unknown, "no shim".to_owned()),
    );
    let error = cri.pod("u1").await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "ContainerStatus container-u1-side-0: Unknown: no shim"
    );
}

#[tokio::test(start_paused = true)]
async fn containers_are_looked_at_all_at_once() {
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
    assert_eq!(cri.pod("u1").await.unwrap().containers.len(), 5);
    assert_eq!(begun.elapsed(), secs(5));
}

#[tokio::test(start_paused = true)]
async fn ips_come_with_the_primary_one_first() {
    let mut world = World::new();
    world.pod("shop", "web-0", "u1").ips(&["10.1.2.3", "fd00::3"]);
    world.pod("shop", "host", "u2").ips(&[]);
    let (_runtime, cri) = start(world).await;
    assert_eq!(cri.pod_ips(SANDBOX).await.unwrap(), ["10.1.2.3", "fd00::3"]);
    assert_eq!(cri.pod_ips("sandbox-u2-0").await.unwrap(), [""; 0]);
    assert_eq!(cri.pod_ips("gone").await.unwrap(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_cgroup_parent_is_what_the_sandbox_was_made_with() {
    let mut world = World::new();
    world
        .pod("shop", "web-0", "u1")
        .cgroup_parent("/kubepods/burstable/podu1");
    let (_runtime, cri) = start(world).await;
    assert_eq!(
        cri.cgroup_parent(SANDBOX).await.unwrap().as_deref(),
        Some("/kubepods/burstable/podu1")
    );
    assert_eq!(cri.cgroup_parent("gone").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn the_node_is_seen_with_every_pod_on_it() {
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
    assert_eq!(sandboxes[2].sandbox.annotations[keys::CONFIG_SOURCE], "file");
    let uids = cri.all_pod_uids().await.unwrap();
    assert_eq!(
        uids.iter().map(String::as_str).collect::<Vec<_>>(),
        ["u1", "u2", "u9"],
        "u2 has but a container"
    );
}

#[tokio::test(start_paused = true)]
async fn a_runtime_too_old_to_know_its_cgroup_driver_is_no_error() {
    let (runtime, cri) = start(World::new()).await;
    assert_eq!(cri.cgroup_driver().await.unwrap(), None);
    runtime.change(|world| world.systemd_cgroups = Some(true));
    assert_eq!(cri.cgroup_driver().await.unwrap(), Some(CgroupDriver::Systemd));
    runtime.change(|world| world.systemd_cgroups = Some(false));
    assert_eq!(cri.cgroup_driver().await.unwrap(), Some(CgroupDriver::Cgroupfs));
    runtime.fault(
        Read::RuntimeConfig,
        Fault::Error(Code::Unavailable, "starting".to_owned()),
    );
    assert!(cri.cgroup_driver().await.unwrap_err().is_unreachable());
}

#[tokio::test(start_paused = true)]
async fn answers_larger_than_the_usual_limit_are_taken_in() {
    let mut world = World::new();
    world
        .pod("shop", "web-0", "u1")
        .annotation("large", &"x".repeat(15 << 20));
    let (runtime, cri) = start(world).await;
    assert_eq!(
        cri.list_sandboxes().await.unwrap()[0].sandbox.annotations["large"].len(),
        15 << 20
    );
    runtime.change(|world| {
        world.sandboxes[SANDBOX]
            .annotations
            .push(("more".to_owned(), "x".repeat(2 << 20)));
    });
    assert!(
        !cri.list_sandboxes().await.unwrap_err().is_retryable(),
        "asking again makes it no smaller"
    );
}

// --- effects ---

#[tokio::test(start_paused = true)]
async fn a_stop_is_sent_in_whole_seconds_and_never_with_less_than_was_meant() {
    let (runtime, cri) = start(one_container()).await;
    runtime.in_order([0, 1, 30, 30].map(|seconds| expect(StopContainer::of(MAIN).timeout(secs(seconds)))));
    for millis in [0, 1, 29_001, 30_000] {
        cri.stop_container(MAIN, Duration::from_millis(millis)).await.unwrap();
    }
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_has_been_stopped_and_removed() {
    let (runtime, cri) = start(one_container()).await;
    let missing = |pattern| expect(pattern).error(Code::NotFound, "no such thing");
    runtime.in_order([
        missing(StopContainer::any()),
        missing(StopPodSandbox::any()),
        missing(RemoveContainer::any()),
        missing(RemovePodSandbox::any()),
        missing(ExecSync::any()),
    ]);
    cri.stop_container("gone", secs(30)).await.unwrap();
    cri.stop_sandbox("gone").await.unwrap();
    cri.remove_container("gone").await.unwrap();
    cri.remove_sandbox("gone").await.unwrap();
    let error = cri.exec_sync("gone", &["true".to_owned()], secs(1)).await.unwrap_err();
    assert!(
        matches!(
            error,
            CriError::Failed {
                code: Code::NotFound,
                ..
            }
        ),
        "a command that never ran is no success"
    );
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_whole_teardown_leaves_nothing() {
    let (runtime, cri) = start(one_container()).await;
    runtime.in_order([
        expect(StopContainer::of("main")),
        expect(StopPodSandbox::of("web-0")),
        expect(RemoveContainer::of("main")),
        expect(RemovePodSandbox::of("web-0")),
    ]);
    cri.stop_container(MAIN, secs(30)).await.unwrap();
    cri.stop_sandbox(SANDBOX).await.unwrap();
    cri.remove_container(MAIN).await.unwrap();
    cri.remove_sandbox(SANDBOX).await.unwrap();
    assert!(cri.pod("u1").await.unwrap().is_gone());
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_answered_ends_with_its_own_time_and_the_patience_on_top() {
    let (runtime, cri) = start(one_container()).await;
    runtime.in_any_order([
        expect(StopContainer::any()).hang(),
        expect(StopPodSandbox::any()).hang(),
        expect(RemoveContainer::any()).hang(),
        expect(RemovePodSandbox::any()).hang(),
        expect(ExecSync::any()).hang(),
    ]);
    runtime.fault(Read::ContainerStatus, Fault::Hang);
    let begun = Instant::now();
    let timed = async |call: &'static str, after, error: CriError| {
        assert!(
            matches!(&error, CriError::Timeout { after: waited, .. } if *waited == after),
            "{error}"
        );
        assert_eq!((begun.elapsed(), error.call().name), (after, call));
        assert!(error.is_retryable());
    };
    let command = ["sleep".to_owned()];
    futures::join!(
        cri.stop_container(MAIN, secs(30))
            .then(|r| timed("StopContainer", secs(30) + PATIENCE, r.unwrap_err())),
        cri.exec_sync(MAIN, &command, secs(9))
            .then(|r| timed("ExecSync", secs(9) + PATIENCE, r.unwrap_err())),
        cri.stop_sandbox(SANDBOX)
            .then(|r| timed("StopPodSandbox", PATIENCE, r.unwrap_err())),
        cri.remove_container(MAIN)
            .then(|r| timed("RemoveContainer", PATIENCE, r.unwrap_err())),
        cri.remove_sandbox(SANDBOX)
            .then(|r| timed("RemovePodSandbox", PATIENCE, r.unwrap_err())),
        cri.pod("u1")
            .then(|r| timed("ContainerStatus", PATIENCE, r.unwrap_err())),
    );
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_hanging_call_does_not_hold_up_the_others() {
    let (runtime, cri) = start(one_container()).await;
    runtime.in_order([expect(StopContainer::any()).hang(), expect(StopPodSandbox::any())]);
    let begun = Instant::now();
    let stop = cri.stop_container(MAIN, secs(30));
    tokio::select! {
        biased;
        _ = stop => panic!("nobody answers this"),
        result = cri.stop_sandbox(SANDBOX) => result.unwrap(),
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_command_tells_its_exit_code_and_the_end_of_its_output() {
    let mut world = World::new();
    world
        .pod("shop", "web-0", "u1")
        .container("main")
        .commands(secs(4), 5, &[b'x'; 9000]);
    let (runtime, cri) = start(world).await;
    let sync = ["sync".to_owned(), "-f".to_owned()];
    runtime.in_order([expect(ExecSync::of("main").command(&["sync", "-f"]).timeout(secs(10)))]);
    let begun = Instant::now();
    let outcome = cri.exec_sync(MAIN, &sync, Duration::from_millis(9500)).await.unwrap();
    assert_eq!(
        outcome,
        ExecOutcome {
            exit_code: 5,
            stdout: "x".repeat(4096),
            stderr: String::new()
        }
    );
    assert_eq!(begun.elapsed(), secs(4));
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_command_without_time_left_gets_one_second_and_not_for_ever() {
    let mut world = World::new();
    world
        .pod("shop", "web-0", "u1")
        .container("main")
        .commands(secs(1000), 0, b"");
    let (runtime, cri) = start(world).await;
    runtime.in_order([expect(ExecSync::of("main").timeout(secs(1)))]);
    let begun = Instant::now();
    let error = cri
        .exec_sync(MAIN, &["sleep".to_owned()], Duration::ZERO)
        .await
        .unwrap_err();
    assert!(
        matches!(error, CriError::Timeout { after, .. } if after == secs(1)),
        "{error}"
    );
    assert_eq!(begun.elapsed(), secs(1), "the runtime itself said so");
    runtime.finished().await;
}

/// Makes every changing call once.
async fn every_effect(cri: &Cri) -> Vec<Result<(), CriError>> {
    vec![
        cri.exec_sync(MAIN, &["true".to_owned()], secs(2))
            .await
            .map(|outcome| assert_eq!(outcome.exit_code, 0)),
        cri.stop_container(MAIN, secs(30)).await,
        cri.stop_sandbox(SANDBOX).await,
        cri.remove_container(MAIN).await,
        cri.remove_sandbox(SANDBOX).await,
    ]
}

#[tokio::test(start_paused = true)]
async fn nothing_is_changed_while_the_gate_is_shut_and_everything_can_be_seen() {
    let runtime = ScriptedCri::start(one_container()).await;
    let open = Arc::new(AtomicBool::new(false));
    let gate = {
        let open = Arc::clone(&open);
        move || {
            let held = || Held {
                reason: "a kubelet runs".to_owned(),
            };
            open.load(Ordering::Relaxed).then_some(()).ok_or_else(held)
        }
    };
    let cri = client(&runtime, Effects::new(false, Arc::new(gate)));
    for result in every_effect(&cri).await {
        let error = result.unwrap_err();
        assert!(
            matches!(&error, CriError::Held { held, .. } if held.reason == "a kubelet runs"),
            "{error}"
        );
    }
    assert_eq!(runtime.effects(), []);
    assert_eq!(cri.pod("u1").await.unwrap().running().count(), 1);

    open.store(true, Ordering::Relaxed);
    runtime.in_order([expect(StopContainer::of("main"))]);
    cri.stop_container(MAIN, secs(30)).await.unwrap();
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_says_what_it_would_do_and_does_nothing() {
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);
    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no poison").write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let runtime = ScriptedCri::start(one_container()).await;
    let cri = client(&runtime, Effects::new(true, Arc::new(|| Ok(()))));
    for result in every_effect(&cri).await {
        result.unwrap();
    }
    assert_eq!(runtime.effects(), []);

    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let told: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_once("Dry run: not done "))
        .collect();
    assert_eq!(told.len(), 5, "{text}");
    assert_eq!(
        told[1].1,
        format!("effect=\"StopContainer\" target_of_effect=\"{MAIN}\"")
    );
}

// --- a runtime out of reach ---

#[tokio::test(start_paused = true)]
async fn a_client_waits_for_no_runtime_and_finds_it_when_it_comes_back() {
    let (runtime, cri) = start(one_container()).await;
    let containerd = RuntimeVersion {
        name: "containerd".to_owned(),
        version: "1.6.20".to_owned(),
        api_version: "v1".to_owned(),
    };
    for _ in 0..3 {
        assert_eq!(cri.version().await.unwrap(), containerd);
        runtime.stop().await;
        for _ in 0..3 {
            let error = cri.version().await.unwrap_err();
            assert!(error.is_unreachable() && error.is_retryable(), "{error}");
        }
        runtime.start_again().await;
    }
    let clone = cri.clone();
    assert_eq!(clone.version().await.unwrap(), containerd);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_a_restart_cuts_off_is_unreachable_and_not_a_refusal() {
    let mut world = World::new();
    world.pod("shop", "web-0", "u1").container("main").ignores_term();
    let (runtime, cri) = start(world).await;
    runtime.in_order([expect(StopContainer::any()), expect(StopContainer::any())]);
    let (cut, ()) = futures::join!(cri.stop_container(MAIN, secs(30)), async {
        tokio::time::sleep(secs(3)).await;
        runtime.stop().await;
    });
    let error = cut.unwrap_err();
    assert!(
        matches!(error, CriError::Unreachable { .. }) && error.is_retryable(),
        "{error}"
    );
    runtime.start_again().await;
    cri.stop_container(MAIN, secs(5)).await.unwrap();
    assert_eq!(cri.pod("u1").await.unwrap().containers[0].exit_code, 137);
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_is_not_there_is_named_by_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint: CriEndpoint = format!("unix://{}/no.sock", dir.path().display()).parse().unwrap();
    let error = Cri::new(&endpoint, Effects::ungated()).version().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Version: the runtime cannot be reached: No such file or directory (os error 2)"
    );
    std::fs::write(endpoint.path(), "").unwrap();
    let error = Cri::new(&endpoint, Effects::ungated()).version().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Version: the runtime cannot be reached: Connection refused (os error 111)"
    );
    assert!(
        !endpoint.is_socket().unwrap(),
        "which tells the file from a runtime that is away"
    );
}

#[tokio::test(start_paused = true)]
async fn another_protocol_on_the_socket_is_not_taken_for_a_runtime_that_is_away() {
    let (runtime, cri) = start(World::new()).await;
    runtime.speak_another_protocol().await;
    let error = cri.version().await.unwrap_err();
    assert!(matches!(error, CriError::Foreign { .. }), "{error}");
    assert!(error.is_not_a_runtime() && !error.is_unreachable() && !error.is_retryable());

    runtime.start_again().await;
    runtime.fault(
        Read::Version,
        Fault::Error(Code::Unimplemented, "unknown service".to_owned()),
    );
    let error = cri.version().await.unwrap_err();
    assert!(error.is_not_a_runtime(), "gRPC without the CRI: {error}");
    runtime.stop().await;
    assert!(!cri.version().await.unwrap_err().is_not_a_runtime());
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_never_answers_is_given_up() {
    let (runtime, cri) = start(World::new()).await;
    runtime.fall_silent().await;
    let begun = Instant::now();
    let error = cri.version().await.unwrap_err();
    assert_eq!(begun.elapsed(), PATIENCE);
    assert!(matches!(error, CriError::Timeout { .. }), "{error}");
    runtime.start_again().await;
    cri.version().await.unwrap();
}
