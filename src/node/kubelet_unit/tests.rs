use std::process::Command;

use serde_json::json;

use super::*;
use crate::node::systemd::tests::double::{Behavior, UnitKind, at_bus, bus};

/// A program in place of journalctl that prints one entry of this run.
fn journalctl(dir: &Path, run: &str) -> std::path::PathBuf {
    let path = dir.join("journalctl");
    let message = r#"E1129 01:01:29.482843 1 run.go:72] "command failed" err="unknown flag: --x""#;
    let entry = json!({ "MESSAGE": message, "_SYSTEMD_INVOCATION_ID": run });
    let script = format!("#!/bin/sh\ncat <<'EOT'\n{entry}\nEOT\n");
    let mut writer = Command::new("sh");
    // Another process writes it: a fork of this one could still have it open at its exec.
    let written = writer
        .args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""])
        .arg(&path)
        .arg(script);
    assert!(written.status().unwrap().success());
    path
}

async fn details(behaviors: &'static [Behavior], proc: &Path) -> Option<String> {
    details_with(behaviors, proc, "b2").await
}

async fn details_with(behaviors: &'static [Behavior], proc: &Path, run: &str) -> Option<String> {
    let dir = tempfile::tempdir().unwrap();
    let (systemd, _) = bus(dir.path(), behaviors);
    let unit = read(&systemd, &journalctl(dir.path(), run), proc, None).await?;
    Some(unit.details())
}

#[tokio::test]
async fn unit_that_fails_has_its_last_error_and_one_that_a_user_has_stopped_has_none() {
    for (behaviors, text) in [
        (
            &[Behavior::Kubelet(UnitKind::Restarting)][..],
            "kubelet.service fails and is restarted each time (7 restarts): exit code 1; last error: unknown flag: --x",
        ),
        (
            &[Behavior::Kubelet(UnitKind::Killed)],
            "kubelet.service has failed: oom-kill, killed by SIGKILL; last error: unknown flag: --x",
        ),
        (
            &[Behavior::Kubelet(UnitKind::Stopped)],
            "kubelet.service is stopped since 2026-01-02 03:04:05 UTC, by a user or a program, or it exited with code 0",
        ),
        (&[Behavior::Kubelet(UnitKind::Masked)], "kubelet.service is masked"),
    ] {
        assert_eq!(details(behaviors, Path::new("/proc")).await.as_deref(), Some(text));
    }
}

#[tokio::test]
async fn process_of_a_unit_that_hangs_is_shown_with_its_state() {
    let proc = tempfile::tempdir().unwrap();
    let process = proc.path().join("42");
    std::fs::create_dir_all(process.join("task/42")).unwrap();
    for (state, text) in [
        (
            'T',
            "main process 42, which a signal has stopped; last error: unknown flag: --x",
        ),
        (
            'D',
            "main process 42, in uninterruptible sleep in rpc_wait_bit_killable; last error: unknown flag: --x",
        ),
        ('S', "main process 42; last error: unknown flag: --x"),
    ] {
        for stat in ["stat", "task/42/stat"] {
            std::fs::write(process.join(stat), format!("42 (kubelet) {state} 1")).unwrap();
        }
        std::fs::write(process.join("task/42/wchan"), "rpc_wait_bit_killable").unwrap();
        let details = details(&[Behavior::Kubelet(UnitKind::Running)], proc.path())
            .await
            .unwrap();
        assert!(details.ends_with(text), "{details}");
    }
}

#[tokio::test]
async fn node_without_systemd_or_without_the_unit_has_none() {
    assert_eq!(details(&[Behavior::NotLoaded], Path::new("/proc")).await, None);
    let without_bus = at_bus("unix:path=/no/such/bus");
    assert_eq!(
        read(&without_bus, Path::new("journalctl"), Path::new("/proc"), None).await,
        None
    );
}
