//! Virtual time, and sockets that restart, say nothing or something else.

use std::time::Duration;

use k8s_cri::v1;
use testbed::scripted_cri::{Fault, Read, ScriptedCri, StopContainer, World, expect};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use crate::{Client, MAIN, SIDE, secs, start};

#[tokio::test(start_paused = true)]
async fn no_virtual_time_passes_while_bytes_are_on_the_way() {
    let (cri, client) = start().await;
    let begun = Instant::now();
    for _ in 0..100 {
        timeout(Duration::from_millis(1), client.version())
            .await
            .expect("in no time")
            .unwrap();
    }
    let many = (0..100).map(|_| client.status(MAIN));
    timeout(Duration::from_millis(1), futures::future::join_all(many))
        .await
        .expect("in no time");
    assert_eq!(begun.elapsed(), Duration::ZERO);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn no_virtual_time_passes_for_a_client_in_a_task_of_its_own() {
    let (cri, client) = start().await;
    let task = tokio::spawn(async move {
        sleep(secs(5)).await;
        let begun = Instant::now();
        for _ in 0..10 {
            client.version().await.unwrap();
        }
        begun.elapsed()
    });
    assert_eq!(timeout(secs(3600), task).await.unwrap().unwrap(), Duration::ZERO);
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_large_answer_takes_no_virtual_time_either() {
    let mut world = World::new();
    let mut pod = world
        .pod("shop", "web-0", "u1")
        .annotation("large", &"x".repeat(1 << 20));
    for _ in 0..500 {
        pod = pod.container("main");
    }
    let cri = ScriptedCri::start(world).await;
    let client = Client::of(&cri);
    let begun = Instant::now();
    let list = timeout(secs(1), client.ids(v1::ContainerFilter::default()))
        .await
        .unwrap();
    let mut plain = client.0.clone();
    let sandboxes = timeout(secs(1), plain.list_pod_sandbox(v1::ListPodSandboxRequest::default()))
        .await
        .unwrap();
    assert_eq!((list.len(), sandboxes.unwrap().into_inner().items.len()), (500, 1));
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn reads_fail_hang_or_are_late_as_scripted() {
    let (cri, client) = start().await;
    cri.fault_of(
        Read::ContainerStatus,
        "side",
        Fault::Error(Code::Unknown, "broken".to_owned()),
    );
    assert_eq!(client.status(SIDE).await.unwrap_err().code(), Code::Unknown);
    client.status(MAIN).await.unwrap();
    cri.fault(Read::ContainerStatus, Fault::Late(secs(9)));
    let begun = Instant::now();
    client.status(MAIN).await.unwrap();
    assert_eq!(begun.elapsed(), secs(9));
    cri.fault(Read::Version, Fault::Hang);
    assert!(timeout(secs(60), client.version()).await.is_err());
    cri.heal();
    client.status(SIDE).await.unwrap();
    client.version().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_restart_loses_the_calls_in_flight_and_nothing_else() {
    let (cri, client) = start().await;
    cri.in_order([expect(StopContainer::of("main"))]);
    let (lost, ()) = futures::join!(client.stop(MAIN, 30), async {
        sleep(secs(1)).await;
        cri.stop().await;
    });
    lost.unwrap_err();
    assert_eq!(client.version().await.unwrap_err().code(), Code::Unavailable);
    sleep(secs(60)).await;
    cri.start_again().await;
    assert_eq!(client.version().await.unwrap(), "containerd");
    let status = client.status(MAIN).await.unwrap();
    assert_eq!(status.exit_code, 3, "the signal had been sent");
    assert_eq!(
        status.finished_at - status.created_at,
        60_000_000_000,
        "2 s after it, runtime or not"
    );
    cri.finished().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_socket_takes_connections_and_never_answers() {
    let (cri, client) = start().await;
    cri.fall_silent().await;
    assert!(timeout(secs(600), client.version()).await.is_err());
    cri.start_again().await;
    assert_eq!(Client::of(&cri).version().await.unwrap(), "containerd");
}

#[tokio::test(start_paused = true)]
async fn a_foreign_socket_speaks_first_and_not_grpc() {
    use tokio::io::AsyncReadExt;

    let (cri, client) = start().await;
    cri.speak_another_protocol().await;
    let mut plain = tokio::net::UnixStream::connect(cri.path()).await.unwrap();
    let mut greeting = [0; 4];
    plain.read_exact(&mut greeting).await.unwrap();
    assert_eq!(&greeting, b"SSH-");
    timeout(secs(1), client.version())
        .await
        .expect("a quick failure")
        .unwrap_err();
}
