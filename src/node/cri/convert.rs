//! CRI protobuf into the agent's own types. Whatever a runtime sends has a meaning here; nothing fails.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use k8s_cri::v1;

use super::types::{
    CgroupDriver, Container, ContainerState, ExecOutcome, PodSandbox, RuntimePod, RuntimeVersion, Sandbox,
    SandboxState, keys,
};

/// How much of a command's output is kept: the end, where errors are, and no more than a log line can bear.
const KEPT_OUTPUT: usize = 4096;

/// The exit code of a container whose end was not looked at: never a success.
const UNKNOWN_EXIT: i32 = 137;

/// What CRI-O writes where it has no exit file (`server/container_status.go`). No process exits with it.
const NO_EXIT_CODE: i32 = -1;

/// Asks for the end of the log where the termination message is empty.
const FALL_BACK_TO_LOGS: &str = "FallbackToLogsOnError";

pub(super) fn version(answer: v1::VersionResponse) -> RuntimeVersion {
    let v1::VersionResponse {
        runtime_name,
        runtime_version,
        runtime_api_version,
        ..
    } = answer;
    RuntimeVersion {
        name: runtime_name,
        version: runtime_version,
        api_version: runtime_api_version,
    }
}

pub(super) fn cgroup_driver(answer: &v1::RuntimeConfigResponse) -> Option<CgroupDriver> {
    let driver = answer.linux.as_ref()?.cgroup_driver;
    match v1::CgroupDriver::try_from(driver).ok()? {
        v1::CgroupDriver::Systemd => Some(CgroupDriver::Systemd),
        v1::CgroupDriver::Cgroupfs => Some(CgroupDriver::Cgroupfs),
    }
}

pub(super) fn pod(sandboxes: Vec<v1::PodSandbox>, containers: impl Iterator<Item = Container>) -> RuntimePod {
    let mut sandboxes: Vec<_> = sandboxes
        .into_iter()
        .map(|listed| pod_sandbox(listed).sandbox)
        .collect();
    sandboxes.sort_by(|a, b| newer(a).cmp(&newer(b)));
    let mut containers: Vec<_> = containers.collect();
    containers.sort_by(|a, b| {
        let newer = |container: &Container| (Reverse(container.created_at), Reverse(container.attempt));
        newer(a).cmp(&newer(b)).then_with(|| a.id.cmp(&b.id))
    });
    RuntimePod { sandboxes, containers }
}

pub(super) fn node_sandboxes(listed: Vec<v1::PodSandbox>) -> Vec<PodSandbox> {
    let mut sandboxes: Vec<_> = listed.into_iter().map(pod_sandbox).collect();
    sandboxes.sort_by(|a, b| {
        a.pod_uid
            .cmp(&b.pod_uid)
            .then_with(|| newer(&a.sandbox).cmp(&newer(&b.sandbox)))
    });
    sandboxes
}

fn newer(sandbox: &Sandbox) -> (Reverse<u32>, Reverse<Timestamp>, &str) {
    (Reverse(sandbox.attempt), Reverse(sandbox.created_at), &sandbox.id)
}

fn pod_sandbox(listed: v1::PodSandbox) -> PodSandbox {
    let v1::PodSandbox {
        id,
        metadata,
        state,
        created_at,
        mut labels,
        annotations,
        ..
    } = listed;
    let metadata = metadata.unwrap_or_default();
    let state = match v1::PodSandboxState::try_from(state) {
        Ok(v1::PodSandboxState::SandboxReady) => SandboxState::Ready,
        Ok(v1::PodSandboxState::SandboxNotready) | Err(_) => SandboxState::NotReady,
    };
    PodSandbox {
        pod_uid: labels.remove(keys::POD_UID).unwrap_or(metadata.uid),
        namespace: labels.remove(keys::POD_NAMESPACE).unwrap_or(metadata.namespace),
        name: labels.remove(keys::POD_NAME).unwrap_or(metadata.name),
        sandbox: Sandbox {
            id,
            attempt: metadata.attempt,
            state,
            created_at: timestamp(created_at).unwrap_or_default(),
            annotations: annotations.into_iter().collect::<BTreeMap<_, _>>(),
            ips: Vec::new(),
        },
    }
}

/// A container as a list shows it.
pub(super) fn listed_container(listed: v1::Container) -> Container {
    let v1::Container {
        id,
        pod_sandbox_id,
        metadata,
        image,
        image_ref,
        state,
        created_at,
        mut labels,
        annotations,
        ..
    } = listed;
    let metadata = metadata.unwrap_or_default();
    let state = container_state(state);
    Container {
        id,
        name: labels.remove(keys::CONTAINER_NAME).unwrap_or(metadata.name),
        attempt: metadata.attempt,
        sandbox_id: pod_sandbox_id,
        state,
        created_at: timestamp(created_at).unwrap_or_default(),
        started_at: None,
        finished_at: None,
        exit_code: if state == ContainerState::Running {
            0
        } else {
            UNKNOWN_EXIT
        },
        reason: String::new(),
        message: String::new(),
        image: image.unwrap_or_default().image,
        image_ref,
        restart_count: restart_count(&annotations),
        termination_message_file: None,
        message_falls_back_to_log: falls_back_to_log(&annotations),
        log_path: String::new(),
        is_unread: true,
    }
}

/// A container as its status shows it; the sandbox is known from the list alone.
pub(super) fn container(status: v1::ContainerStatus, sandbox_id: String) -> Container {
    let v1::ContainerStatus {
        id,
        metadata,
        state,
        created_at,
        started_at,
        finished_at,
        exit_code,
        image,
        image_ref,
        reason,
        message,
        mut labels,
        annotations,
        mounts,
        log_path,
        ..
    } = status;
    let metadata = metadata.unwrap_or_default();
    let message_path = annotations
        .get(keys::TERMINATION_MESSAGE_PATH)
        .filter(|path| !path.is_empty());
    let state = container_state(state);
    let message_mount = message_path.and_then(|path| mounts.into_iter().find(|mount| mount.container_path == *path));
    Container {
        id,
        name: labels.remove(keys::CONTAINER_NAME).unwrap_or(metadata.name),
        attempt: metadata.attempt,
        sandbox_id,
        state,
        created_at: timestamp(created_at).unwrap_or_default(),
        started_at: timestamp(started_at),
        finished_at: timestamp(finished_at),
        exit_code,
        reason,
        message,
        image: image.unwrap_or_default().image,
        image_ref,
        restart_count: restart_count(&annotations),
        termination_message_file: message_mount.map(|mount| mount.host_path),
        message_falls_back_to_log: falls_back_to_log(&annotations),
        log_path,
        is_unread: state == ContainerState::Exited && exit_code == NO_EXIT_CODE,
    }
}

pub(super) fn pod_ips(answer: v1::PodSandboxStatusResponse) -> Vec<String> {
    let Some(network) = answer.status.and_then(|status| status.network) else {
        return Vec::new();
    };
    let more = network.additional_ips.into_iter().map(|more| more.ip);
    std::iter::once(network.ip)
        .chain(more)
        .filter(|ip| !ip.is_empty())
        .collect()
}

/// Whether the command did not end in time, as CRI-O puts it (`server/container_execsync.go`).
pub(super) fn has_overrun(answer: &v1::ExecSyncResponse) -> bool {
    let says = |output: &[u8]| tail(output).contains("timed out");
    answer.exit_code == NO_EXIT_CODE && (says(&answer.stderr) || says(&answer.stdout))
}

pub(super) fn exec_outcome(answer: &v1::ExecSyncResponse) -> ExecOutcome {
    ExecOutcome {
        exit_code: answer.exit_code,
        stdout: tail(&answer.stdout),
        stderr: tail(&answer.stderr),
    }
}

fn tail(output: &[u8]) -> String {
    String::from_utf8_lossy(&output[output.len().saturating_sub(KEPT_OUTPUT)..]).into_owned()
}

fn container_state(state: i32) -> ContainerState {
    match v1::ContainerState::try_from(state) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

fn restart_count(annotations: &HashMap<String, String>) -> i32 {
    annotations
        .get(keys::RESTART_COUNT)
        .and_then(|count| count.parse().ok())
        .unwrap_or(0)
}

fn falls_back_to_log(annotations: &HashMap<String, String>) -> bool {
    annotations
        .get(keys::TERMINATION_MESSAGE_POLICY)
        .is_some_and(|policy| policy == FALL_BACK_TO_LOGS)
}

/// Zero means "not yet"; so do the negative values that runtimes make of Go's zero time.
fn timestamp(nanoseconds: i64) -> Option<Timestamp> {
    if nanoseconds <= 0 {
        None
    } else {
        Timestamp::from_nanosecond(i128::from(nanoseconds)).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_message_still_makes_a_container() {
        let bare = v1::ContainerStatus {
            id: "c".to_owned(),
            state: 99,
            started_at: -1,
            ..Default::default()
        };
        let container = container(bare, "s".to_owned());
        assert_eq!(
            container.state,
            ContainerState::Unknown,
            "a state of a later CRI may be a running one"
        );
        assert_eq!(container.started_at, None);
        assert_eq!(container.created_at, Timestamp::UNIX_EPOCH);
        assert_eq!((container.restart_count, container.termination_message_file), (0, None));
    }

    #[test]
    fn the_termination_message_is_where_its_own_path_is_mounted() {
        let mount = |inside: &str, outside: &str| v1::Mount {
            container_path: inside.to_owned(),
            host_path: outside.to_owned(),
            ..Default::default()
        };
        let status = |path: &str| v1::ContainerStatus {
            annotations: [(keys::TERMINATION_MESSAGE_PATH.to_owned(), path.to_owned())].into(),
            mounts: vec![
                mount("/etc/hosts", "/a"),
                mount("/dev/termination-log", "/b"),
                mount("", "/c"),
            ],
            ..Default::default()
        };
        let file = |path: &str| container(status(path), String::new()).termination_message_file;
        assert_eq!(file("/dev/termination-log").as_deref(), Some("/b"));
        assert_eq!(file("/dev/other"), None);
        assert_eq!(file(""), None);
    }

    #[test]
    fn only_the_end_of_an_output_is_kept() {
        let long = [b"begin ".as_slice(), &[b'x'; KEPT_OUTPUT - 3], b"end"].concat();
        let kept = tail(&long);
        assert_eq!(kept.len(), KEPT_OUTPUT);
        assert!(kept.starts_with('x') && kept.ends_with("end"));
        assert_eq!(tail(b"short"), "short");
        assert_eq!(tail(b"\xff!"), "\u{fffd}!");
    }
}
