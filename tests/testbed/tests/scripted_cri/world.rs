//! Containers, sandboxes and commands end as containerd has them end.

use k8s_cri::v1;
use testbed::scripted_cri::{ExecSync, RemovePodSandbox, ScriptedCri, StopContainer, StopPodSandbox, World, expect};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use crate::{Client, MAIN, SANDBOX, SIDE, secs, start};

#[tokio::test(start_paused = true)]
async fn a_container_ends_some_time_after_its_signal() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main").timeout(secs(30)))]);
    let begun = Instant::now();
    client.stop(MAIN, 30).await.unwrap();
    assert_eq!(begun.elapsed(), secs(2));
    let status = client.status(MAIN).await.unwrap();
    assert_eq!(
        (status.state(), status.exit_code),
        (v1::ContainerState::ContainerExited, 3)
    );
    assert_eq!(
        status.finished_at - status.created_at,
        60_000_000_000,
        "created 58 s before, ended 2 s after"
    );
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_container_that_ignores_its_signal_is_killed_at_the_timeout() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of(SIDE))]);
    let begun = Instant::now();
    client.stop(SIDE, 7).await.unwrap();
    assert_eq!(begun.elapsed(), secs(7));
    assert_eq!(client.status(SIDE).await.unwrap().exit_code, 137);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn canceled_stop_leaves_the_container_with_only_the_signal() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("side")), expect(StopContainer::of("main"))]);
    timeout(secs(1), client.stop(SIDE, 30)).await.unwrap_err();
    timeout(secs(1), client.stop(MAIN, 30)).await.unwrap_err();
    sleep(secs(100)).await;
    assert_eq!(
        client.status(SIDE).await.unwrap().state(),
        v1::ContainerState::ContainerRunning
    );
    assert_eq!(client.status(MAIN).await.unwrap().exit_code, 3);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_stop_with_less_time_ends_the_first_one_too() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("side")), expect(StopContainer::of("side"))]);
    let begun = Instant::now();
    let (first, second) = futures::join!(client.stop(SIDE, 30), async {
        sleep(secs(4)).await;
        client.stop(SIDE, 2).await
    });
    first.unwrap();
    second.unwrap();
    assert_eq!(begun.elapsed(), secs(6));
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_sandbox_is_the_end_of_what_runs_in_it() {
    let (cri, client) = start().await;
    cri.in_order([
        expect(StopPodSandbox::of("web-0")).then(secs(3)),
        expect(RemovePodSandbox::of("u1")),
    ]);
    let begun = Instant::now();
    client.stop_sandbox(SANDBOX).await.unwrap();
    assert_eq!(begun.elapsed(), secs(3));
    assert_eq!(client.status(MAIN).await.unwrap().exit_code, 137);
    assert!(!cri.look(|world| world.sandboxes[SANDBOX].ready));
    client.remove_sandbox(SANDBOX).await.unwrap();
    assert!(cri.look(World::is_empty));
    assert_eq!(client.status(MAIN).await.unwrap_err().code(), Code::NotFound);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn command_exits_as_scripted_or_at_its_timeout_or_with_its_container() {
    let mut world = World::new();
    world
        .pod("shop", "web-0", "u1")
        .container("main")
        .commands(secs(10), 4, b"done");
    let cri = ScriptedCri::start(world).await;
    let client = Client::of(&cri);
    let hook = || ExecSync::of("main").command(&["sh", "-c", "true"]);
    cri.in_order([
        expect(hook()),
        expect(hook().timeout(secs(5))),
        expect(hook()).exit(9),
        expect(hook()),
    ]);
    let run = |timeout| client.exec(MAIN, &["sh", "-c", "true"], timeout);

    assert_eq!(run(0).await.unwrap(), 4);
    assert_eq!(run(5).await.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(run(30).await.unwrap(), 9);
    cri.change(|world| world.will_end(MAIN, Instant::now() + secs(1), 0));
    let begun = Instant::now();
    assert_eq!(run(30).await.unwrap(), 137);
    assert_eq!(begun.elapsed(), secs(1));
    cri.finished().await;
}
