//! With a systemd that does as it is told.

use std::{future::pending, sync::Arc};

use tokio::net::UnixListener;

use super::*;
use crate::node::{
    cgroups::{Qos, pod_slice_name},
    systemd::double::{Behavior, bus},
};

fn pod() -> PodCgroup {
    pod_slice_name("/", Qos::Guaranteed, "u").unwrap()
}

#[tokio::test]
async fn a_slice_is_stopped_and_its_job_awaited_on_one_connection_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, asked) = bus(dir.path(), &[Behavior::Well]);
    for _ in 0..2 {
        assert_eq!(stop(&systemd, &pod(), &Effects::ungated()).await, Ok(Outcome::Done));
    }
    let asked = asked.lock().unwrap();
    let count = |what: &str| asked.iter().filter(|asked| *asked == what).count();
    assert_eq!(
        ["Hello", "Subscribe", "StopUnit", "ResetFailedUnit"].map(count),
        [1, 1, 2, 2],
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_job_that_fails_is_no_reason_to_keep_the_directories() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, _) = bus(dir.path(), &[Behavior::Fails]);
    assert_eq!(stop(&systemd, &pod(), &Effects::ungated()).await, Ok(Outcome::Done));
}

#[tokio::test]
async fn a_unit_that_is_not_loaded_is_not_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, asked) = bus(dir.path(), &[Behavior::KnowsNothing]);
    assert_eq!(stop(&systemd, &pod(), &Effects::ungated()).await, Ok(Outcome::Nothing));
    assert!(!asked.lock().unwrap().contains(&"StopUnit".to_owned()));
}

#[tokio::test]
async fn a_connection_that_breaks_is_made_anew_once() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, _) = bus(dir.path(), &[Behavior::HangsUp, Behavior::Well]);
    assert_eq!(stop(&systemd, &pod(), &Effects::ungated()).await, Ok(Outcome::Done));
    let dir = tempfile::tempdir().unwrap();
    let (systemd, asked) = bus(dir.path(), &[Behavior::HangsUp]);
    assert!(stop(&systemd, &pod(), &Effects::ungated()).await.is_err());
    assert_eq!(
        asked.lock().unwrap().iter().filter(|asked| *asked == "Hello").count(),
        2
    );
}

#[tokio::test]
async fn a_job_that_does_not_end_is_given_up_with_what_to_look_at() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, asked) = bus(dir.path(), &[Behavior::Hangs, Behavior::Well]);
    let effects = Effects::ungated();
    let stopping = async { stop(&systemd, &pod(), &effects).await };
    let watch = async {
        while !asked.lock().unwrap().contains(&"StopUnit".to_owned()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // From here on nothing is said: time may run.
        tokio::time::pause();
        pending::<()>().await;
    };
    let stopped = tokio::select! {
        stopped = stopping => stopped,
        () = watch => unreachable!("it waits for ever"),
    };
    tokio::time::resume();
    let told = stopped.unwrap_err().to_string();
    assert!(
        told.contains("within 30s") && told.contains("systemctl status kubepods-podu.slice"),
        "{told}"
    );
    assert_eq!(
        stop(&systemd, &pod(), &effects).await,
        Ok(Outcome::Done),
        "the next attempt begins anew"
    );
}

#[tokio::test]
async fn a_bus_that_is_away_or_says_nothing_is_a_failure_with_a_remedy_and_no_hang() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| Systemd::at(&format!("unix:path={}", dir.path().join(name).display()));
    let _silent = UnixListener::bind(dir.path().join("silent")).unwrap();
    tokio::time::pause();
    for (name, why) in [("away", "No such file"), ("silent", "no answer within 5s")] {
        let told = stop(&at(name), &pod(), &Effects::ungated())
            .await
            .unwrap_err()
            .to_string();
        assert!(told.contains(why) && told.contains("systemctl status dbus"), "{told}");
        assert!(at(name).version().await.unwrap_err().contains(why));
    }
}

#[tokio::test]
async fn a_dry_run_and_a_shut_gate_connect_to_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, asked) = bus(dir.path(), &[Behavior::Well]);
    let dry = Effects::new(true, Arc::new(|| Ok(())));
    assert_eq!(stop(&systemd, &pod(), &dry).await, Ok(Outcome::Withheld));
    let held = || crate::node::effects::EffectsBlocked {
        reason: "a kubelet is here".to_owned(),
    };
    let shut = Effects::new(false, Arc::new(move || Err(held())));
    assert!(stop(&systemd, &pod(), &shut).await.unwrap_err().is_blocked());
    assert!(asked.lock().unwrap().is_empty());
}
