//! Converts CRI protobuf to the agent's own types. Every message is accepted; no conversion fails.

use std::{cmp::Reverse, collections::HashMap};

use jiff::Timestamp;
use k8s_cri::v1;
use serde::Deserialize;

use super::types::{Container, ContainerState, PodSandbox, RuntimePod, Sandbox, keys};
use crate::model::pod::UNKNOWN_EXIT_CODE;

/// What CRI-O reports without an exit file (`server/container_status.go`). No process exits with it.
const NO_EXIT_CODE: i32 = -1;

/// Policy that uses the end of the log if the termination message is empty.
const FALL_BACK_TO_LOGS: &str = "FallbackToLogsOnError";

pub(super) fn pod(sandboxes: Vec<v1::PodSandbox>, containers: impl Iterator<Item = Container>) -> RuntimePod {
    let sandboxes = sandboxes.into_iter().map(|listed| pod_sandbox(listed).sandbox);
    let mut sandboxes: Vec<_> = sandboxes.collect();
    sandboxes.sort_by(|a, b| newer(a).cmp(&newer(b)));
    let mut containers: Vec<_> = containers.collect();
    containers.sort_by_cached_key(|it| (Reverse(it.created_at), Reverse(it.attempt), it.id.clone()));
    RuntimePod { sandboxes, containers }
}

pub(super) fn node_sandboxes(listed: Vec<v1::PodSandbox>) -> Vec<PodSandbox> {
    let mut sandboxes: Vec<_> = listed.into_iter().map(pod_sandbox).collect();
    sandboxes.sort_by(|a, b| (&a.pod_uid, newer(&a.sandbox)).cmp(&(&b.pod_uid, newer(&b.sandbox))));
    sandboxes
}

fn newer(sandbox: &Sandbox) -> (Reverse<u32>, Reverse<Timestamp>, &str) {
    (Reverse(sandbox.attempt), Reverse(sandbox.created_at), &sandbox.id)
}

fn pod_sandbox(listed: v1::PodSandbox) -> PodSandbox {
    let metadata = listed.metadata.unwrap_or_default();
    let (mut labels, mut annotations) = (listed.labels, listed.annotations);
    PodSandbox {
        pod_uid: labels.remove(keys::POD_UID).unwrap_or(metadata.uid),
        namespace: labels.remove(keys::POD_NAMESPACE).unwrap_or(metadata.namespace),
        name: labels.remove(keys::POD_NAME).unwrap_or(metadata.name),
        sandbox: Sandbox {
            id: listed.id,
            attempt: metadata.attempt,
            is_ready: listed.state == i32::from(v1::PodSandboxState::SandboxReady),
            created_at: timestamp(listed.created_at).unwrap_or_default(),
            config_source: annotations.remove(keys::CONFIG_SOURCE),
            ips: Vec::new(),
        },
    }
}

/// A container as the list shows it.
pub(super) fn listed_container(listed: v1::Container) -> Container {
    let is_running = container_state(listed.state) == ContainerState::Running;
    let status = v1::ContainerStatus {
        id: listed.id,
        metadata: listed.metadata,
        state: listed.state,
        created_at: listed.created_at,
        exit_code: if is_running { 0 } else { UNKNOWN_EXIT_CODE },
        image: listed.image,
        image_ref: listed.image_ref,
        labels: listed.labels,
        annotations: listed.annotations,
        ..Default::default()
    };
    Container {
        is_unread: true,
        ..container(status, listed.pod_sandbox_id)
    }
}

/// A container as its status shows it. Only the list names its sandbox.
pub(super) fn container(status: v1::ContainerStatus, sandbox_id: String) -> Container {
    let metadata = status.metadata.unwrap_or_default();
    let (mut labels, annotations) = (status.labels, status.annotations);
    let annotation = |key: &str| annotations.get(key).map(String::as_str);
    let message_path = annotation(keys::TERMINATION_MESSAGE_PATH).filter(|path| !path.is_empty());
    let mut mounts = status.mounts.into_iter();
    let message_mount = message_path.and_then(|path| mounts.find(|mount| mount.container_path == path));
    let restarts = annotation(keys::RESTART_COUNT).map(str::parse);
    let state = container_state(status.state);
    Container {
        id: status.id,
        name: labels.remove(keys::CONTAINER_NAME).unwrap_or(metadata.name),
        attempt: metadata.attempt,
        sandbox_id,
        state,
        created_at: timestamp(status.created_at).unwrap_or_default(),
        started_at: timestamp(status.started_at),
        finished_at: timestamp(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason,
        message: status.message,
        image: status.image.unwrap_or_default().image,
        image_ref: status.image_ref,
        restart_count: restarts.and_then(Result::ok).unwrap_or(0),
        termination_message_file: message_mount.map(|mount| mount.host_path),
        message_falls_back_to_log: annotation(keys::TERMINATION_MESSAGE_POLICY) == Some(FALL_BACK_TO_LOGS),
        log_path: status.log_path,
        is_unread: state == ContainerState::Exited && status.exit_code == NO_EXIT_CODE,
    }
}

pub(super) fn pod_ips(answer: v1::PodSandboxStatusResponse) -> Vec<String> {
    let Some(network) = answer.status.and_then(|status| status.network) else {
        return Vec::new();
    };
    let more = network.additional_ips.into_iter().map(|more| more.ip);
    let all = std::iter::once(network.ip).chain(more);
    all.filter(|ip| !ip.is_empty()).collect()
}

/// Whether the command exceeded its timeout, as CRI-O reports it (`server/container_execsync.go`).
pub(super) fn has_timed_out(answer: &v1::ExecSyncResponse) -> bool {
    // At its end.
    let says = |output: &[u8]| {
        let end = &output[output.len().saturating_sub(4096)..];
        String::from_utf8_lossy(end).contains("timed out")
    };
    answer.exit_code == NO_EXIT_CODE && (says(&answer.stderr) || says(&answer.stdout))
}

/// PID of the first process of a container or sandbox, if the JSON in a verbose answer of containerd or CRI-O has it.
pub(super) fn pid(info: &HashMap<String, String>) -> Option<i32> {
    #[derive(Deserialize)]
    struct Info {
        pid: i32,
    }
    let info: Info = serde_json::from_str(info.get("info")?).ok()?;
    // No container is PID 1 of the node.
    Some(info.pid).filter(|pid| *pid > 1)
}

fn container_state(state: i32) -> ContainerState {
    match v1::ContainerState::try_from(state) {
        Ok(v1::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(v1::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(v1::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(v1::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

/// Zero means "not yet", and so do the negative values that runtimes derive from Go's zero time.
fn timestamp(nanoseconds: i64) -> Option<Timestamp> {
    let nanoseconds = Some(nanoseconds).filter(|nanoseconds| *nanoseconds > 0)?;
    Timestamp::from_nanosecond(nanoseconds.into()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_is_read_if_present() {
        for (info, expected) in [
            (r#"{"sandboxID":"s","pid":4242,"removing":false}"#, Some(4242)),
            (r#"{"pid":0}"#, None),
            (r#"{"pid":1}"#, None),
            (r#"{"pid":-7}"#, None),
            (r#"{"pid":99999999999}"#, None),
            (r#"{"sandboxID":"s"}"#, None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(pid(&[("info".to_owned(), info.to_owned())].into()), expected);
        }
    }

    #[test]
    fn container_is_built_from_an_empty_message() {
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
    fn termination_message_file_is_the_mount_of_its_path() {
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
}
