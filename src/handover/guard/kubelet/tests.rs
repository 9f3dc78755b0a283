use tokio::time::advance;

use super::*;
use crate::{
    handover::guard::Guard,
    node::{identity::Identity, kubelet_root::KubeletRoot},
};

/// The search in a directory that is both /proc and the kubelet's root directory.
pub(in crate::handover) fn search() -> (tempfile::TempDir, KubeletSearch) {
    let proc = tempfile::tempdir().unwrap();
    std::fs::create_dir(proc.path().join("pods")).unwrap();
    let search = KubeletSearch {
        proc: proc.path().into(),
        ours: LocalKubelet {
            root: KubeletRoot::resolve(proc.path()).unwrap(),
            runtime: "/run/cri.sock".into(),
            healthz: None,
        },
        blocking: Blocking::default(),
        events: None,
        expected: None,
    };
    (proc, search)
}

/// A guard whose Node is the recorded one.
pub(in crate::handover) fn machine() -> (tempfile::TempDir, Guard) {
    let (proc, search) = search();
    let guard = Guard::new(Identity::default(), Journal::in_memory(), search, false);
    guard.identity.set(Ok(()));
    (proc, guard)
}

fn watch() -> (tempfile::TempDir, KubeletWatch) {
    let (proc, search) = search();
    let watch = KubeletWatch::new(search, Journal::in_memory(), Work::default(), Arc::default());
    (proc, watch)
}

#[tokio::test(start_paused = true)]
async fn old_process_probe_is_unknown() {
    let (_proc, watch) = watch();
    watch.probe().await;
    assert_eq!(watch.check(), Ok(()));
    advance(STALE + Duration::from_secs(1)).await;
    assert!(matches!(watch.check(), Err(Blocked::KubeletUnknown(_))));
    watch.probe().await;
    assert_eq!(watch.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn kubelet_that_ran_between_two_readings_counts_as_alive_once() {
    let (proc, watch) = watch();
    let probe = async || watch.probe().await;
    probe().await;
    assert!(matches!(watch.take_probes().0, Probe::Down(_)));
    std::fs::create_dir(proc.path().join("77")).unwrap();
    std::fs::write(proc.path().join("77/comm"), "kubelet\n").unwrap();
    probe().await;
    std::fs::write(proc.path().join("77/comm"), "sleep\n").unwrap();
    probe().await;
    assert_eq!(watch.kubelet(), None);
    assert!(matches!(watch.take_probes().0, Probe::Alive(_)));
    assert!(matches!(watch.take_probes().0, Probe::Down(_)));
}

#[tokio::test(start_paused = true)]
async fn kubelet_flags_are_recorded_for_the_time_when_it_does_not_run() {
    let (proc, watch) = watch();
    let at = |name: &str| proc.path().join(name);
    for dir in ["self/ns", "77/ns", "77/task/77"] {
        std::fs::create_dir_all(at(dir)).unwrap();
    }
    for process in ["self", "77"] {
        std::os::unix::fs::symlink("mnt:[1]", at(process).join("ns/mnt")).unwrap();
    }
    std::os::unix::fs::symlink("/", at("77/root")).unwrap();
    std::fs::write(at("77/comm"), "kubelet\n").unwrap();
    for config in ["/first", "/second"] {
        let command = format!("kubelet\0--root-dir={}\0--config={config}\0", proc.path().display());
        std::fs::write(at("77/cmdline"), command).unwrap();
        watch.probe().await;
        let kept = watch.journal.node(|node| node.kubelet.clone()).unwrap();
        assert_eq!(kept.config.as_deref(), Some(std::path::Path::new(config)));
    }
    // While it exits.
    let known = watch.kubelet();
    std::fs::write(at("77/cmdline"), "").unwrap();
    watch.probe().await;
    assert!(known.is_some());
    assert_eq!(watch.kubelet(), known, "it is the same process");
    // A short-lived kubelet that serves no node.
    std::fs::write(at("77/comm"), "sleep\n").unwrap();
    watch.probe().await;
    assert_eq!(watch.kubelet(), None);
    std::fs::write(at("77/comm"), "kubelet\n").unwrap();
    let command = format!("kubelet\0--root-dir={}\0--version\0", proc.path().display());
    std::fs::write(at("77/cmdline"), command).unwrap();
    watch.probe().await;
    assert!(watch.kubelet().is_some());
    let kept = watch.journal.node(|node| node.kubelet.clone()).unwrap();
    assert_eq!(kept.config.as_deref(), Some(std::path::Path::new("/second")));
}
