//! Unreachable runtimes, and servers that are no runtime.

use k8s_cri::v1::VersionResponse;
use pod_teardown::node::effects::Effects;
use pod_teardown::node::{
    cri::{Cri, CriEndpoint},
    grpc::CallFailure,
};
use testbed::scripted_cri::{Fault, Read, StopContainer, World, expect};
use tokio::time::Instant;
use tonic::Code;

use crate::{MAIN, PATIENCE, one_container, secs, start, start_pod};

#[tokio::test(start_paused = true)]
async fn client_does_not_wait_for_the_runtime_and_reconnects() {
    let (runtime, cri) = start(one_container()).await;
    let containerd = VersionResponse {
        version: "0.1.0".to_owned(),
        runtime_name: "containerd".to_owned(),
        runtime_version: "1.6.20".to_owned(),
        runtime_api_version: "v1".to_owned(),
    };
    for _ in 0..3 {
        assert_eq!(cri.version().await.unwrap(), containerd);
        runtime.stop().await;
        for _ in 0..3 {
            let error = cri.version().await.unwrap_err();
            assert!(error.is_unreachable(), "{error}");
        }
        runtime.start_again().await;
    }
    let clone = cri.clone();
    assert_eq!(clone.version().await.unwrap(), containerd);
}

#[tokio::test(start_paused = true)]
async fn call_interrupted_by_a_restart_is_unreachable() {
    let (runtime, cri) = start_pod(|pod| pod.container("main").ignores_term()).await;
    runtime.in_order([expect(StopContainer::any()), expect(StopContainer::any())]);
    let (cut, ()) = futures::join!(cri.stop_container(MAIN, secs(30)), async {
        tokio::time::sleep(secs(3)).await;
        runtime.stop().await;
    });
    let error = cut.unwrap_err();
    assert!(matches!(error.failure, CallFailure::Unreachable(..)), "{error}");
    runtime.start_again().await;
    cri.stop_container(MAIN, secs(5)).await.unwrap();
    assert_eq!(
        cri.pod("u1", crate::PATIENCE).await.unwrap().containers[0].exit_code,
        137
    );
    runtime.finished().await;
}

#[tokio::test(start_paused = true)]
async fn missing_socket_is_reported_with_its_cause() {
    let dir = tempfile::tempdir().unwrap();
    let endpoint: CriEndpoint = format!("unix://{}/no.sock", dir.path().display()).parse().unwrap();
    let error = Cri::new(&endpoint, Effects::ungated()).version().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Version: the runtime cannot be reached: No such file or directory"
    );
    std::fs::write(endpoint.path(), "").unwrap();
    let error = Cri::new(&endpoint, Effects::ungated()).version().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Version: the runtime cannot be reached: Connection refused"
    );
}

#[tokio::test(start_paused = true)]
async fn another_protocol_on_the_socket_is_detected() {
    let (runtime, cri) = start(World::new()).await;
    runtime.speak_another_protocol().await;
    let error = cri.version().await.unwrap_err();
    assert!(matches!(error.failure, CallFailure::Foreign(_)), "{error}");
    assert!(error.is_not_a_runtime() && !error.is_unreachable());

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
async fn unresponsive_socket_times_out() {
    let (runtime, cri) = start(World::new()).await;
    runtime.fall_silent().await;
    let begun = Instant::now();
    let error = cri.version().await.unwrap_err();
    assert_eq!(begun.elapsed(), PATIENCE);
    assert!(matches!(error.failure, CallFailure::Timeout(_)), "{error}");
    runtime.start_again().await;
    cri.version().await.unwrap();
}
