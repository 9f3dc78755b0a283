//! Volumes without a pod that cannot be unstaged: they block nothing else and are retried with backoff.

use pod_teardown::ops::admin::pause::PAUSE;
use testbed::{drivers::CsiCall, scripted_cri::Fault};

use crate::prelude::*;
use crate::{
    housekeeping::node_after_termination_of,
    in_use::{DRIVER, csi_driver},
    pause::send,
};

/// A driver with staged volumes that no pod has.
fn staged(node: &Node, name: &str, handles: &[&str]) -> CsiDriver {
    let driver = csi_driver(node, name);
    for handle in handles {
        let pv = Pv {
            name: handle,
            driver: name,
            handle,
            staged: true,
        };
        let staging = staging(&node.path("kubelet"), &pv);
        fs::create_dir_all(&staging).unwrap();
        let data = json!({ "driverName": name, "volumeHandle": handle });
        fs::write(staging.with_file_name("vol_data.json"), data.to_string()).unwrap();
    }
    driver
}

fn unstaged(driver: &CsiDriver) -> usize {
    let calls = driver.effects();
    calls
        .iter()
        .filter(|call| matches!(call, CsiCall::Unstage { .. }))
        .count()
}

#[tokio::test(start_paused = true)]
async fn hanging_driver_delays_no_other_leftover_and_no_volume_of_another_driver() {
    let node = node_after_termination_of(&["web"]).await;
    let driver = staged(&node, DRIVER, &["1", "2", "3", "4", "5", "6", "7", "8"]);
    driver.behave(Behavior::Hangs);
    let quick = staged(&node, "quick.example.com", &["quick"]);
    let began = Instant::now();
    let left = node.pod_dir("web").join("volumes/kubernetes.io~empty-dir/data");
    fs::create_dir_all(&left).unwrap();
    wait_until!(!node.pod_dir("web").exists() && unstaged(&quick) == 1);
    assert!(began.elapsed() < secs(200), "{:?}", began.elapsed());
    wait_until!(!driver.called().is_empty());
}

#[tokio::test(start_paused = true)]
async fn volume_that_cannot_be_unstaged_is_retried_with_backoff_and_logged_once() {
    let log = Log::new();
    let node = node_after_termination_of(&[]).await;
    let driver = staged(&node, DRIVER, &["1"]);
    let refuses = |why: &str| Behavior::Fails(Code::Internal, why.to_owned());
    driver.behave(refuses("no way"));
    sleep(secs(3600)).await;
    // The first call is always GetCapabilities.
    let tries = driver.called().len();
    assert!((5..15).contains(&tries), "{tries}");
    let status = node.status().await;
    assert_eq!(status.counters.unused_volumes_failed, tries as u64);
    assert_eq!(status.housekeeping.unused_volumes.len(), 1);
    assert!(
        status.housekeeping.unused_volumes[0].contains("no way"),
        "{:?}",
        status.housekeeping.unused_volumes
    );
    assert_eq!(log.lines("no way").len(), 1);
    driver.behave(refuses("no chance"));
    wait_until!(log.lines("no chance").len() == 1);
    driver.behave(Behavior::Well);
    node.wait_status(|it| it.housekeeping.unused_volumes.is_empty(), true)
        .await;
    assert!(
        !node
            .path("kubelet/plugins/kubernetes.io/csi")
            .join(DRIVER)
            .join("1")
            .exists()
    );
}

#[tokio::test(start_paused = true)]
async fn failure_of_a_call_from_before_a_pause_is_not_reported() {
    let node = node_after_termination_of(&[]).await;
    let driver = staged(&node, DRIVER, &["1"]);
    driver.behave(Behavior::Hangs);
    // The timeout of the call is not the time of a pass.
    node.cri.fault(Read::ListPodSandbox, Fault::Late(secs(7)));
    wait_until!(!driver.called().is_empty());
    node.cri.heal();
    send(&node, PAUSE).await;
    sleep(secs(31)).await;
    let before = node.status().await.counters.unused_volumes_failed;
    for _ in 0..600 {
        sleep(secs(1)).await;
        let status = node.status().await;
        assert!(
            status.housekeeping.unused_volumes.is_empty(),
            "{:?}",
            status.housekeeping.unused_volumes
        );
    }
    assert_eq!((before, node.status().await.counters.unused_volumes_failed), (0, 1));
}
