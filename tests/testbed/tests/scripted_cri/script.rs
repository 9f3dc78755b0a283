//! What fails the test: a call that is wrong, too early, unexpected or missing.

use futures::FutureExt;
use testbed::scripted_cri::{ExecSync, ScriptedCri, SimState, StopContainer, StopPodSandbox, expect};
use tokio::time::{Instant, timeout};
use tonic::Code;

use crate::{MAIN, SANDBOX, SIDE, secs, start};

#[tokio::test(start_paused = true)]
async fn a_hanging_call_is_never_answered_and_does_not_keep_the_script_from_its_end() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main")).hang()]);
    assert!(timeout(secs(1_000_000), client.stop(MAIN, 30)).await.is_err());
    assert_eq!(
        cri.look(|world| world.container("main").unwrap().state),
        SimState::Running
    );
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn an_unexpected_call_is_refused_and_fails_the_test() {
    let (cri, client) = start().await;
    let refused = client.remove(MAIN).await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    assert!(cri.look(|world| world.container("main").is_some()));
    let verdict = cri.verdict(secs(1)).await.unwrap_err();
    assert!(
        verdict.contains("RemoveContainer of main in pod u1 was not expected; due: nothing"),
        "{verdict}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_with_other_arguments_fails_the_test() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main").timeout(secs(30)))]);
    client.stop(MAIN, 29).await.unwrap_err();
    let verdict = cri.verdict(secs(1)).await.unwrap_err();
    let says = "StopContainer of main in pod u1, timeout 29s came with other arguments than expected; \
                due: [StopContainer of main, timeout 30s]";
    assert!(verdict.contains(says), "{verdict}");
    assert!(
        verdict.contains("never came: StopContainer of main, timeout 30s"),
        "{verdict}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_before_its_turn_fails_the_test() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main")), expect(StopPodSandbox::any())]);
    client.stop_sandbox(SANDBOX).await.unwrap_err();
    let verdict = cri.verdict(secs(1)).await.unwrap_err();
    assert!(
        verdict.contains("StopPodSandbox of web-0 in pod u1 came too early; due: [StopContainer"),
        "{verdict}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_comes_fails_the_test_in_the_time_given() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main")), expect(StopPodSandbox::of("u1"))]);
    client.stop(MAIN, 30).await.unwrap();
    let begun = Instant::now();
    let verdict = cri.verdict(secs(50)).await.unwrap_err();
    assert_eq!(begun.elapsed(), secs(50));
    assert!(verdict.contains("- never came: StopPodSandbox of u1\n"), "{verdict}");
    assert!(
        verdict.contains("0.000s StopContainer of main in pod u1, timeout 30s -> OK at 2.000s"),
        "{verdict}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_script_that_was_not_played_fails_the_test_that_drops_it() {
    let (cri, _client) = start().await;
    cri.in_order([expect(StopContainer::of("main"))]);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(cri))).unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("never came: StopContainer of main"), "{message}");

    let (cri, _client) = start().await;
    cri.in_order([expect(StopContainer::of("main"))]);
    let panic = std::panic::AssertUnwindSafe(cri.finished())
        .catch_unwind()
        .await
        .unwrap_err();
    let message = panic.downcast_ref::<String>().unwrap();
    assert!(message.contains("never came: StopContainer of main"), "{message}");
    assert!(
        message.contains("scripted_cri/script.rs:"),
        "it says who waited: {message}"
    );
}

#[tokio::test(start_paused = true)]
async fn lanes_keep_their_own_order_and_not_each_others() {
    let script = |cri: &ScriptedCri| {
        cri.side_by_side([
            vec![expect(ExecSync::of("main")), expect(StopContainer::of("main"))],
            vec![expect(ExecSync::of("side")), expect(StopContainer::of("side"))],
        ]);
        cri.in_order([expect(StopPodSandbox::any())]);
    };
    let (cri, client) = start().await;
    script(&cri);
    client.exec(SIDE, &["true"], 0).await.unwrap();
    client.exec(MAIN, &["true"], 0).await.unwrap();
    client.stop(MAIN, 1).await.unwrap();
    client.stop(SIDE, 1).await.unwrap();
    client.stop_sandbox(SANDBOX).await.unwrap();
    cri.finished().await;

    let (cri, client) = start().await;
    script(&cri);
    client.exec(MAIN, &["true"], 0).await.unwrap();
    client.stop(SIDE, 1).await.unwrap_err();
    assert!(cri.verdict(secs(1)).await.unwrap_err().contains("came too early"));

    let (cri, client) = start().await;
    script(&cri);
    client.stop_sandbox(SANDBOX).await.unwrap_err();
    assert!(cri.verdict(secs(1)).await.unwrap_err().contains("came too early"));
}
