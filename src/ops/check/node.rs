//! Checks this node, and detects other agents and kubelets on it.

use std::{fmt::Display, iter, net::IpAddr, path::Path};

use nix::{
    errno::Errno,
    unistd::{AccessFlags, access},
};
use tokio::time::timeout;

use super::{
    item::Item,
    row::{CONFIGURATION, FAILURE, Row, UNAVAILABLE, Verdict},
    server::REQUEST_TIMEOUT,
};
use crate::{
    config::PodSettings,
    journal::{
        self,
        peek::{Peek, peek, quarantined},
    },
    model::{kubelet_unit::KubeletUnit, problem::ProblemKind, problems},
    node::{
        cgroups::Cgroups,
        cri::{Cri, CriEndpoint},
        host::{self, PROC},
        identity::Identity,
        kubelet_process::{
            self, KubeletProcess, MatchReason,
            flags::{self, Difference, KubeletFlags},
        },
        kubelet_unit,
        lock::{LockError, LockOwner},
        mount_namespace,
        systemd::Systemd,
    },
    ops::admin,
};

/// Checks the journal. Also returns the Node UID that it records.
pub(super) fn journal(state_dir: &Path, machine: &Identity, agent_runs: bool) -> (Vec<Row>, Option<String>) {
    const WHAT: Item = Item::JOURNAL;
    const LOST: &str = "no action is needed: the agent quarantines the file when it starts, and creates a new journal. Lost: \
                        elapsed grace periods and finished hooks";
    let file = state_dir.join(journal::FILE);
    let file = file.display();
    let (row, uid) = match peek(state_dir, machine) {
        Ok(Peek::Good(node)) => match node.node_uid {
            Some(uid) => (Row::ok(WHAT, format!("records the Node with UID {uid}")), Some(uid)),
            None => (Row::ok(WHAT, "will be created"), None),
        },
        Ok(Peek::Unusable { reason, node_uid }) => {
            let remedy = match node_uid {
                Some(_) => LOST.to_owned(),
                None => format!("{LOST}, and the UID of the Node"),
            };
            let seen = format!("{file}: {reason}");
            (Row::new(WHAT, Verdict::Warning, seen, &remedy), node_uid)
        }
        Ok(Peek::InUse) if agent_runs => {
            let seen =
                format!("{file} is open in the agent that runs here; `pod-teardown status` compares its Node UID");
            (Row::ok(WHAT, seen), None)
        }
        Ok(Peek::InUse) => {
            let why = "an agent with another --kubelet-root has it open";
            let row = Row::from_problem(WHAT, &problems::journal(state_dir, &why, true));
            (row.with_verdict(Verdict::Failed(CONFIGURATION)), None)
        }
        Err(error) if error.prevents_start() => {
            let problem = problems::journal(state_dir, &error, false);
            (Row::from_problem(WHAT, &problem), None)
        }
        Err(error) => {
            let seen = format!("{file}: {error}");
            let remedy = "free space on that disk, or repair its file system: until then the agent works without a journal, and \
                          a restart would forget the teardowns in progress";
            (Row::new(WHAT, Verdict::Failed(FAILURE), seen, remedy), None)
        }
    };
    let quarantined = quarantined(state_dir).into_iter().map(|path| {
        let seen = format!("{} was unusable and is quarantined", path.display());
        let remedy = "no action is needed: the agent does not read it; delete it when you do not want to examine it";
        Row::new(Item::QUARANTINED_FILES, Verdict::Warning, seen, remedy)
    });
    (iter::once(row).chain(quarantined).collect(), uid)
}

/// Checks whether the admin socket can be created.
pub(super) async fn socket(path: &Path, agent_runs: bool) -> Row {
    const WHAT: Item = Item::ADMIN_SOCKET;
    let shown = path.display();
    let problem = |why: &dyn Display, is_taken| Row::from_problem(WHAT, &problems::admin_socket(path, why, is_taken));
    match timeout(REQUEST_TIMEOUT, admin::socket::is_listened_on(path)).await {
        Ok(Ok(None)) => Row::ok(WHAT, format!("{shown} can be created")),
        Ok(Ok(Some(false))) => {
            let seen = format!("{shown} can be created; it replaces the socket of an agent that has exited");
            Row::ok(WHAT, seen)
        }
        Ok(Ok(Some(true))) if agent_runs => Row::ok(WHAT, format!("the agent that runs here listens on {shown}")),
        Ok(Ok(Some(true))) | Err(_) => {
            problem(&"another process listens on it", true).with_verdict(Verdict::Failed(CONFIGURATION))
        }
        Ok(Err(error)) => problem(&error, false),
    }
}

/// Checks the runtime, and what the agent needs to stop its containers.
pub(super) async fn runtime(cri: &Cri, settings: &PodSettings) -> Vec<Row> {
    const WHAT: Item = Item::RUNTIME;
    let endpoint: &CriEndpoint = &settings.cri_endpoint;
    let unreachable = |seen: String, remedy: &str| vec![Row::new(WHAT, Verdict::Failed(UNAVAILABLE), seen, remedy)];
    let version = match timeout(REQUEST_TIMEOUT, cri.version()).await {
        Ok(Ok(version)) => version,
        Ok(Err(error)) if error.is_not_a_runtime() => {
            return vec![Row::from_problem(WHAT, &problems::not_a_runtime(endpoint, &error))];
        }
        Ok(Err(error)) => {
            let remedy = match access(endpoint.path(), AccessFlags::W_OK) {
                Err(Errno::EACCES) => "run check and the agent as root",
                _ => "start the container runtime, or set --cri-endpoint to its socket",
            };
            return unreachable(format!("{endpoint}: {error}"), remedy);
        }
        Err(_) => {
            return unreachable(
                format!("{endpoint}: no answer within {REQUEST_TIMEOUT:?}"),
                "read the container runtime's log, such as `journalctl -u containerd`, and restart the runtime if it hangs",
            );
        }
    };
    let seen = format!(
        "{} {}, CRI {}",
        version.runtime_name, version.runtime_version, version.runtime_api_version
    );
    let mount_namespace = match mount_namespace::check(Path::new(PROC), endpoint.path()).await {
        Ok(()) => Row::ok(Item::MOUNT_NAMESPACE, "the same as the runtime's"),
        Err(problem) => {
            let row = Row::from_problem(Item::MOUNT_NAMESPACE, &problem);
            if problem.kind == ProblemKind::Absent {
                row.with_verdict(Verdict::Failed(UNAVAILABLE))
            } else {
                row
            }
        }
    };
    let cgroups = cgroups(&settings.cgroup_root).await;
    vec![Row::ok(WHAT, seen), mount_namespace, cgroups]
}

async fn cgroups(root: &str) -> Row {
    const WHAT: Item = Item::CGROUPS;
    let cgroups = match Cgroups::detect(Path::new(host::MOUNTINFO), Path::new(host::CGROUP_ROOT)) {
        Ok(cgroups) => cgroups,
        Err(error) => return Row::from_problem(WHAT, &problems::cgroups(&error)),
    };
    if !cgroups.has_slices(root) {
        return Row::ok(WHAT, format!("cgroupfs driver, {cgroups}"));
    }
    match Systemd::default().version().await {
        Ok(version) => Row::ok(WHAT, format!("systemd driver, {cgroups}, systemd {version}")),
        Err(error) => {
            let seen = format!("systemd driver, {cgroups}, but systemd does not answer on D-Bus: {error}");
            Row::new(WHAT, Verdict::Failed(UNAVAILABLE), seen, "see `systemctl status dbus`")
        }
    }
}

fn other_agents(lock: Result<(), LockError>) -> Row {
    match lock {
        Ok(()) => Row::ok(Item::OTHER_AGENTS, "none"),
        Err(LockError::Taken {
            holder: Some(LockOwner {
                pid, in_service: true, ..
            }),
            ..
        }) => Row::ok(Item::OTHER_AGENTS, format!("only the service (pid {pid})")),
        Err(error @ LockError::Taken { .. }) => {
            Row::from_problem(Item::OTHER_AGENTS, &problems::node_lock(&error, true)).with_verdict(Verdict::Warning)
        }
        Err(error) => Row::from_problem(Item::OTHER_AGENTS, &problems::node_lock(&error, false)),
    }
}

pub(super) async fn other_processes(settings: &PodSettings, node_name: &str, lock: Result<(), LockError>) -> Vec<Row> {
    let mut rows = vec![other_agents(lock)];
    let (kubelet, started) = match kubelet_process::find(Path::new(PROC), &settings.local_kubelet()) {
        Ok(found) => {
            let kubelet = found.into_iter().next();
            let started = kubelet
                .as_ref()
                .map(|kubelet| flags::read(Path::new(PROC), kubelet.pid));
            (kubelet, started.unwrap_or_else(|| settings.flags.kubelet_start.clone()))
        }
        Err(error) => {
            let remedy = "run check as root, with the host's /proc";
            rows.push(Row::new(Item::KUBELET, Verdict::Failed(FAILURE), error, remedy));
            return rows;
        }
    };
    let unit = started.as_ref().and_then(|started| started.unit.clone());
    let read_unit = || kubelet_unit::on_this_node(Path::new(PROC))(unit);
    let is_standby = settings.take_over_after.is_some();
    rows.push(match &kubelet {
        None => missing_kubelet(read_unit().await.as_ref(), is_standby),
        Some(kubelet) => kubelet_row(kubelet, is_standby, settings.only_observes),
    });
    rows.extend(k3s_dependencies(
        settings.cri_endpoint.path(),
        &settings.kube.cluster_url,
    ));
    if let Some(started) = started {
        rows.extend(kubelet_flags(&started, &settings.expected_kubelet_settings(node_name)));
    }
    rows
}

/// Compares the flags of the running or last known kubelet with the agent's settings.
fn kubelet_flags(started: &KubeletFlags, ours: &flags::ExpectedFlags) -> Vec<Row> {
    const WHAT: Item = Item::KUBELET_FLAGS;
    let differences = started.differences(ours);
    if differences.is_empty() {
        return vec![Row::ok(WHAT, "match the agent's settings")];
    }
    let row = |difference: &Difference| Row::new(WHAT, Verdict::Warning, &difference.what, &difference.remedy);
    differences.iter().map(row).collect()
}

/// Warns of dependencies on k3s or RKE2. Their containerd is a child process with a death signal, so no container can be stopped
/// while they are down. Their kubeconfig names a proxy in the same process.
fn k3s_dependencies(runtime: &Path, server: &http::Uri) -> Vec<Row> {
    const WHAT: Item = Item::K3S;
    // With another runtime they start no containerd.
    if !runtime.ends_with("k3s/containerd/containerd.sock") {
        return vec![Row::skipped(WHAT, "the runtime is not that of k3s or RKE2")];
    }
    let seen = format!(
        "{}: this containerd is a child process of k3s or RKE2, and exits with it",
        runtime.display()
    );
    let remedy = "run containerd as a separate service, and k3s with --container-runtime-endpoint: without a runtime the \
                  agent waits, and no pod terminates while k3s is down";
    let mut rows = vec![Row::new(WHAT, Verdict::Warning, seen, remedy)];
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if is_loopback {
        let seen = format!("{server}: this address is a proxy inside k3s or RKE2, and exits with it");
        let remedy = "set --kubeconfig to a file with the address of an API server: while the agent cannot reach one, it does \
                      not become active";
        rows.push(Row::new(WHAT, Verdict::Warning, seen, remedy));
    }
    rows
}

/// The row for a node without a kubelet process, with the state of its unit. With `--mode always` none is expected.
fn missing_kubelet(unit: Option<&KubeletUnit>, is_standby: bool) -> Row {
    const WHAT: Item = Item::KUBELET;
    let Some(unit) = unit else {
        return Row::ok(WHAT, "not running");
    };
    let seen = format!("not running; {}", unit.details());
    match is_standby {
        true => Row::new(WHAT, Verdict::Warning, seen, &unit.remedy()),
        false => Row::ok(WHAT, seen),
    }
}

/// The row for a running kubelet. It is not expected with `--mode always`.
fn kubelet_row(kubelet: &KubeletProcess, is_standby: bool, only_observes: bool) -> Row {
    const WHAT: Item = Item::KUBELET;
    let beside = match only_observes {
        true => "the agent only observes it",
        false => "the agent stays on standby while it is alive",
    };
    let seen = format!("{} (pid {})", kubelet.command, kubelet.pid);
    match (&kubelet.why, is_standby) {
        (MatchReason::SameDirectory, true) => Row::ok(WHAT, format!("{seen}; {beside}")),
        (MatchReason::SameDirectory | MatchReason::Unreadable(_) | MatchReason::UnknownDirectory, false) => {
            let remedy = "stop it, or set --mode auto to stay on standby for it: with --mode always the agent changes nothing \
                          while it runs";
            Row::new(WHAT, Verdict::Warning, seen, remedy)
        }
        (MatchReason::Unreadable(_) | MatchReason::UnknownDirectory, true) => {
            Row::ok(WHAT, format!("{seen}, probably this node's; {beside}"))
        }
        (MatchReason::SameNode, _) => {
            let remedy = "set --kubelet-root to its --root-dir; or, if it serves another node, start it with \
                          --container-runtime-endpoint: the agent changes nothing while it may be this node's kubelet";
            Row::new(WHAT, Verdict::Warning, seen, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn unusable_socket_path_is_a_configuration_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let plain = path("plain");
        std::fs::write(&plain, "").unwrap();
        let alive = std::os::unix::net::UnixListener::bind(path("alive")).unwrap();
        testbed::host_files::stale_socket(&path("dead")).unwrap();
        for (path, agent_runs, verdict) in [
            (path("none"), false, Verdict::Ok),
            (path("dead"), false, Verdict::Ok),
            (path("alive"), true, Verdict::Ok),
            (path("alive"), false, Verdict::Failed(CONFIGURATION)),
            (plain, false, Verdict::Failed(CONFIGURATION)),
        ] {
            let row = socket(&path, agent_runs).await;
            assert_eq!(row.verdict, verdict, "{path:?}: {row:?}");
            row.assert_helps();
        }
        drop(alive);
    }

    #[test]
    fn running_agent_is_expected_only_if_it_is_the_service() {
        let taken = |in_service| LockError::Taken {
            path: "/pods".into(),
            holder: Some(LockOwner {
                pid: 7,
                command: "pod-teardown run".into(),
                in_service,
            }),
        };
        let unseen = LockError::Taken {
            path: "/pods".into(),
            holder: None,
        };
        for (lock, verdict) in [
            (Ok(()), Verdict::Ok),
            (Err(taken(true)), Verdict::Ok),
            (Err(taken(false)), Verdict::Warning),
            (Err(unseen), Verdict::Warning),
        ] {
            let row = other_agents(lock);
            row.assert_helps();
            assert_eq!(row.verdict, verdict, "{row:?}");
        }
    }

    #[test]
    fn running_kubelet_is_expected_only_with_mode_auto() {
        for (why, is_standby, verdict, words) in [
            (MatchReason::SameDirectory, true, Verdict::Ok, ""),
            (MatchReason::SameDirectory, false, Verdict::Warning, "--mode auto"),
            (MatchReason::UnknownDirectory, true, Verdict::Ok, ""),
            (MatchReason::UnknownDirectory, false, Verdict::Warning, "--mode auto"),
            (MatchReason::SameNode, true, Verdict::Warning, "--kubelet-root"),
            (MatchReason::SameNode, false, Verdict::Warning, "--kubelet-root"),
        ] {
            let kubelet = KubeletProcess {
                pid: 7,
                command: "kubelet --v=2".into(),
                why,
                is_wrapper: false,
            };
            let row = kubelet_row(&kubelet, is_standby, false);
            row.assert_helps();
            assert_eq!(row.verdict, verdict, "{row:?}");
            assert!(
                row.message.starts_with("kubelet --v=2 (pid 7)") && row.remedy.contains(words),
                "{row:?}"
            );
        }
    }

    #[test]
    fn kubelet_that_does_not_run_has_a_row_that_says_why() {
        let unit = |active: &str, sub: &str| KubeletUnit {
            unit: "kubelet.service".to_owned(),
            load_state: "loaded".to_owned(),
            active_state: active.to_owned(),
            sub_state: sub.to_owned(),
            last_error: Some("unknown flag: --x".to_owned()),
            ..KubeletUnit::default()
        };
        let failed = unit("activating", "auto-restart");
        let row = missing_kubelet(Some(&failed), true);
        row.assert_helps();
        assert_eq!(row.verdict, Verdict::Warning);
        assert!(
            row.message.ends_with("(0 restarts); last error: unknown flag: --x"),
            "{row:?}"
        );
        for row in [missing_kubelet(Some(&failed), false), missing_kubelet(None, true)] {
            row.assert_helps();
            assert_eq!(row.verdict, Verdict::Ok, "{row:?}");
        }
    }

    #[test]
    fn every_different_kubelet_flag_has_a_row_with_a_remedy() {
        let ours = flags::ExpectedFlags {
            flags: KubeletFlags {
                runtime: Some("/run/cri.sock".to_owned()),
                ..KubeletFlags::default()
            },
            ..flags::ExpectedFlags::default()
        };
        let same = kubelet_flags(&KubeletFlags::default(), &ours);
        assert_eq!((same.len(), same[0].verdict), (1, Verdict::Ok), "{same:?}");
        let other = KubeletFlags {
            config: Some("/etc/kubelet.yaml".into()),
            runtime: Some("unix:///run/crio/crio.sock".to_owned()),
            ..KubeletFlags::default()
        };
        let rows = kubelet_flags(&other, &ours);
        assert_eq!(rows.len(), 2, "{rows:?}");
        for row in rows {
            row.assert_helps();
            assert_eq!(row.verdict, Verdict::Warning, "{row:?}");
        }
    }

    #[test]
    fn runtime_and_api_server_inside_k3s_are_warnings() {
        let k3s = "/run/k3s/containerd/containerd.sock";
        for (runtime, server, warnings) in [
            (k3s, "https://127.0.0.1:6444", 2),
            (k3s, "https://[::1]:6443", 2),
            (k3s, "https://api.example:6443", 1),
            ("/run/containerd/containerd.sock", "https://127.0.0.1:6444", 0),
            ("/run/crio/crio.sock", "https://api.example:6443", 0),
        ] {
            let rows = k3s_dependencies(Path::new(runtime), &http::Uri::from_static(server));
            rows.iter().for_each(Row::assert_helps);
            let verdicts: Vec<_> = rows.iter().map(|row| row.verdict).collect();
            let expected = match warnings {
                0 => vec![Verdict::Skipped],
                warnings => vec![Verdict::Warning; warnings],
            };
            assert_eq!(verdicts, expected, "{runtime} {server}");
        }
    }

    #[test]
    fn unusable_journal_is_a_warning_with_a_remedy() {
        let here = Identity::default();
        let dir = tempfile::tempdir().unwrap();
        let (rows, _) = journal(dir.path(), &here, false);
        assert_eq!((rows.len(), rows[0].verdict), (1, Verdict::Ok), "{rows:?}");

        let plain = dir.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        let damaged = dir.path().join("damaged");
        std::fs::create_dir_all(damaged.join(journal::FILE)).unwrap();
        std::fs::write(damaged.join("journal.redb.bad-20260102T030405Z"), "before").unwrap();
        for (state_dir, verdicts) in [
            (plain, vec![Verdict::Failed(CONFIGURATION)]),
            (damaged, vec![Verdict::Warning, Verdict::Warning]),
        ] {
            let (rows, _) = journal(&state_dir, &here, false);
            assert_eq!(
                rows.iter().map(|row| row.verdict).collect::<Vec<_>>(),
                verdicts,
                "{rows:?}"
            );
            rows.iter().for_each(Row::assert_helps);
        }
    }

    #[tokio::test]
    async fn open_journal_is_an_error_unless_this_agent_runs() {
        let here = Identity::default();
        let dir = tempfile::tempdir().unwrap();
        let open = crate::journal::Journal::open(dir.path(), &here).unwrap();
        for (agent_runs, verdict) in [(true, Verdict::Ok), (false, Verdict::Failed(CONFIGURATION))] {
            let (rows, _) = journal(dir.path(), &here, agent_runs);
            assert_eq!((rows.len(), rows[0].verdict), (1, verdict), "{rows:?}");
            rows[0].assert_helps();
        }
        drop(open);
    }
}
