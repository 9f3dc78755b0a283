//! Slices are stopped by a fake systemd.

use std::{future::pending, sync::Arc};

use tokio::net::UnixListener;

use super::*;
use crate::node::{
    cgroups::{Qos, pod_slice_name},
    systemd::tests::double::{Behavior, at_bus, bus},
};

fn pod() -> PodCgroup {
    pod_slice_name("/", Qos::Guaranteed, "u").unwrap()
}

#[tokio::test]
async fn slices_are_stopped_and_their_jobs_awaited_on_one_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, calls) = bus(dir.path(), &[Behavior::Succeeds]);
    for _ in 0..2 {
        assert_eq!(stop(&systemd, &pod(), &Effects::ungated()).await, Ok(Outcome::Done));
    }
    let calls = calls.lock().unwrap();
    let count = |what: &str| calls.iter().filter(|calls| *calls == what).count();
    assert_eq!(
        ["Hello", "Subscribe", "StopUnit", "ResetFailedUnit"].map(count),
        [1, 1, 2, 2],
        "{calls:?}"
    );
}

#[tokio::test]
async fn failed_job_does_not_prevent_removal() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, _) = bus(dir.path(), &[Behavior::Fails]);
    assert_eq!(stop(&systemd, &pod(), &Effects::ungated()).await, Ok(Outcome::Done));
}

#[tokio::test]
async fn unloaded_unit_is_not_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, calls) = bus(dir.path(), &[Behavior::NotLoaded]);
    assert_eq!(stop(&systemd, &pod(), &Effects::ungated()).await, Ok(Outcome::Nothing));
    assert!(!calls.lock().unwrap().contains(&"StopUnit".to_owned()));
}

#[tokio::test]
async fn broken_connection_is_reopened_once() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, _) = bus(dir.path(), &[Behavior::Disconnects, Behavior::Succeeds]);
    assert_eq!(stop(&systemd, &pod(), &Effects::ungated()).await, Ok(Outcome::Done));
    let dir = tempfile::tempdir().unwrap();
    let (systemd, calls) = bus(dir.path(), &[Behavior::Disconnects]);
    assert!(stop(&systemd, &pod(), &Effects::ungated()).await.is_err());
    assert_eq!(
        calls.lock().unwrap().iter().filter(|calls| *calls == "Hello").count(),
        2
    );
}

#[tokio::test]
async fn hanging_job_times_out_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, calls) = bus(dir.path(), &[Behavior::Hangs, Behavior::Succeeds]);
    let effects = Effects::ungated();
    let stopping = async { stop(&systemd, &pod(), &effects).await };
    let watch = async {
        while !calls.lock().unwrap().contains(&"StopUnit".to_owned()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // No more messages follow, so time may advance.
        tokio::time::pause();
        pending::<()>().await;
    };
    let stopped = tokio::select! {
        stopped = stopping => stopped,
        () = watch => unreachable!("it never returns"),
    };
    tokio::time::resume();
    let text = stopped.unwrap_err().to_string();
    assert!(
        text.contains("within 30s") && text.contains("systemctl status kubepods-podu.slice"),
        "{text}"
    );
    assert_eq!(
        stop(&systemd, &pod(), &effects).await,
        Ok(Outcome::Done),
        "the next attempt connects again"
    );
}

#[tokio::test]
async fn missing_or_unresponsive_bus_fails_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| at_bus(&format!("unix:path={}", dir.path().join(name).display()));
    let _silent = UnixListener::bind(dir.path().join("silent")).unwrap();
    tokio::time::pause();
    for (name, why) in [("away", "No such file"), ("silent", "no answer within 5s")] {
        let text = stop(&at(name), &pod(), &Effects::ungated())
            .await
            .unwrap_err()
            .to_string();
        assert!(text.contains(why) && text.contains("systemctl status dbus"), "{text}");
        assert!(at(name).version().await.unwrap_err().to_string().contains(why));
    }
}

#[tokio::test]
async fn shut_gate_does_not_connect() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, calls) = bus(dir.path(), &[Behavior::Succeeds]);
    let held = || crate::model::blocked::Blocked::Other("a kubelet is here".to_owned());
    let shut = Effects::new(Arc::new(move || Err(held())));
    assert!(stop(&systemd, &pod(), &shut).await.unwrap_err().is_blocked());
    assert!(calls.lock().unwrap().is_empty());
}
