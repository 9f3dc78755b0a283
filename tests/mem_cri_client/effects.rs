//! Calls that change something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use pod_teardown::node::{
    cri::Cri,
    grpc::{CallFailure, GrpcError},
};
use pod_teardown::{model::blocked::Blocked, node::effects::Effects};
use testbed::scripted_cri::{
    ExecSync, Fault, Manners, Read, RemoveContainer, RemovePodSandbox, ScriptedCri, StopContainer, StopPodSandbox,
    World, expect,
};
use tokio::time::Instant;
use tonic::Code;

use crate::{MAIN, PATIENCE, SANDBOX, client, one_container, secs, start, start_pod};

#[tokio::test(start_paused = true)]
async fn stop_timeout_is_rounded_up_to_whole_seconds() {
    let (runtime, cri) = start(one_container()).await;
    runtime.in_order([0, 1, 30, 30].map(|seconds| expect(StopContainer::of(MAIN).timeout(secs(seconds)))));
    for millis in [0, 1, 29_001, 30_000] {
        cri.stop_container(MAIN, Duration::from_millis(millis)).await.unwrap();
    }
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn missing_containers_and_sandboxes_count_as_stopped_and_removed() {
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
            error.failure,
            CallFailure::Failed {
                code: Code::NotFound,
                ..
            }
        ),
        "a command that never ran is no success"
    );
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn unanswered_call_times_out_after_its_duration_plus_extra_time() {
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
    let timed = async |call: &'static str, after, error: GrpcError| {
        assert!(error.failure == CallFailure::Timeout(after), "{error}");
        assert_eq!((begun.elapsed(), error.call.name), (after, call));
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
        cri.container_pid(MAIN, PATIENCE)
            .then(|r| timed("ContainerStatus", PATIENCE, r.unwrap_err())),
    );
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn command_timeout_is_recognized_from_both_runtimes() {
    for manners in [Manners::Containerd, Manners::CriO] {
        let mut world = World::with(manners);
        world
            .pod("shop", "web-0", "u1")
            .container("main")
            .commands(secs(60), 0, b"");
        let (runtime, cri) = start(world).await;
        runtime.allow_everything();
        let error = cri.exec_sync(MAIN, &["sleep".to_owned()], secs(5)).await.unwrap_err();
        assert!(error.failure == CallFailure::Timeout(secs(5)), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn command_returns_its_exit_code() {
    let mut world = World::new();
    world
        .pod("shop", "web-0", "u1")
        .container("main")
        .commands(secs(4), 5, b"");
    let (runtime, cri) = start(world).await;
    let sync = ["sync".to_owned(), "-f".to_owned()];
    runtime.in_order([expect(ExecSync::of("main").command(&["sync", "-f"]).timeout(secs(10)))]);
    let begun = Instant::now();
    let exit_code = cri.exec_sync(MAIN, &sync, Duration::from_millis(9500)).await;
    assert_eq!(exit_code, Ok(5));
    assert_eq!(begun.elapsed(), secs(4));
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn command_without_time_left_gets_one_second() {
    let (runtime, cri) = start_pod(|pod| pod.container("main").commands(secs(1000), 0, b"")).await;
    runtime.in_order([expect(ExecSync::of("main").timeout(secs(1)))]);
    let begun = Instant::now();
    let error = cri
        .exec_sync(MAIN, &["sleep".to_owned()], Duration::ZERO)
        .await
        .unwrap_err();
    assert!(error.failure == CallFailure::Timeout(secs(1)), "{error}");
    assert_eq!(begun.elapsed(), secs(1), "the runtime reported it");
    runtime.finished().await;
}

/// Makes every changing call once.
async fn every_effect(cri: &Cri) -> Vec<Result<(), GrpcError>> {
    vec![
        cri.exec_sync(MAIN, &["true".to_owned()], secs(2))
            .await
            .map(|outcome| assert_eq!(outcome, 0)),
        cri.stop_container(MAIN, secs(30)).await,
        cri.stop_sandbox(SANDBOX).await,
        cri.remove_container(MAIN).await,
        cri.remove_sandbox(SANDBOX).await,
    ]
}

#[tokio::test(start_paused = true)]
async fn shut_gate_blocks_changes_but_not_reads() {
    let runtime = ScriptedCri::start(one_container()).await;
    let open = Arc::new(AtomicBool::new(false));
    let gate = {
        let open = Arc::clone(&open);
        move || {
            let held = || Blocked::Other("a kubelet runs".to_owned());
            open.load(Ordering::Relaxed).then_some(()).ok_or_else(held)
        }
    };
    let cri = client(&runtime, Effects::new(Arc::new(gate)));
    for result in every_effect(&cri).await {
        let error = result.unwrap_err();
        assert!(
            matches!(&error.failure, CallFailure::Blocked(blocked) if blocked.to_string() == "a kubelet runs"),
            "{error}"
        );
    }
    assert_eq!(runtime.effects(), []);
    assert_eq!(
        cri.pod("u1", crate::PATIENCE).await.unwrap().possibly_running().count(),
        1
    );

    open.store(true, Ordering::Relaxed);
    runtime.in_order([expect(StopContainer::of("main"))]);
    cri.stop_container(MAIN, secs(30)).await.unwrap();
    runtime.finished().await;
}
