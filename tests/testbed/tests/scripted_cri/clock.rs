//! Virtual time, and sockets that restart, say nothing or something else.

use std::time::Duration;

use testbed::scripted_cri::{Fault, Read, StopContainer, expect};
use tokio::time::{Instant, sleep, timeout};
use tonic::Code;

use crate::{MAIN, SIDE, secs, start};

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
