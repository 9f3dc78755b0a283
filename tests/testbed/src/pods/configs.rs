//! The kubelet's CRI configs of a sandbox and its containers: metadata, labels, annotations.

use std::collections::HashMap;

use k8s_cri::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, Int64Value, KeyValue, LinuxContainerConfig, LinuxContainerResources,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, LinuxSandboxSecurityContext, Mount, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxMetadata,
};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::identity::Identity;
use super::qos::{cpu_shares, memory_limit};
use crate::containerd::TOOL_IMAGE;

/// Default path of the termination message in a container.
pub const TERMINATION_LOG: &str = "/dev/termination-log";
/// As the kubelet: a hostname is a DNS label.
const MAX_HOSTNAME: usize = 63;

/// Configuration of a pod's sandbox. `seen` is when the pod reached the node.
pub fn sandbox(pod: &Pod, identity: &Identity, cgroup: &str, logs: &str, seen: jiff::Timestamp) -> PodSandboxConfig {
    let mut labels: HashMap<_, _> = pod.metadata.labels.clone().unwrap_or_default().into_iter().collect();
    labels.extend(pod_labels(identity));
    let mut annotations: HashMap<_, _> = pod
        .metadata
        .annotations
        .clone()
        .unwrap_or_default()
        .into_iter()
        .collect();
    // As the kubelet: it sets the source itself, whatever the object says. The mirror of a static pod stands for the
    // static pod here.
    if !annotations.contains_key("kubernetes.io/config.mirror") {
        annotations.insert("kubernetes.io/config.source".to_owned(), "api".to_owned());
    }
    annotations.insert("kubernetes.io/config.seen".to_owned(), format!("{seen:.9}"));
    let namespaces = namespaces(pod);
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: identity.name.clone(),
            uid: identity.uid.clone(),
            namespace: identity.namespace.clone(),
            attempt: 0,
        }),
        // In the host network a pod has the machine's name.
        hostname: if namespaces.network == NamespaceMode::Node as i32 {
            String::new()
        } else {
            hostname(pod, identity)
        },
        log_directory: logs.to_owned(),
        labels,
        annotations,
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: cgroup.to_owned(),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Configuration of a container on its first start.
pub fn container(pod: &Pod, identity: &Identity, container: &Container, mounts: Vec<Mount>) -> ContainerConfig {
    let mut labels: HashMap<_, _> = pod_labels(identity).into_iter().collect();
    labels.insert("io.kubernetes.container.name".to_owned(), container.name.clone());
    let env = container.env.iter().flatten();
    let env = env.map(|variable| KeyValue {
        key: variable.name.clone(),
        value: variable.value.clone().unwrap_or_default(),
    });
    ContainerConfig {
        metadata: Some(ContainerMetadata {
            name: container.name.clone(),
            attempt: 0,
        }),
        image: Some(ImageSpec {
            image: image(container),
            ..Default::default()
        }),
        command: container.command.clone().unwrap_or_default(),
        args: container.args.clone().unwrap_or_default(),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: env.collect(),
        mounts,
        labels,
        annotations: container_annotations(pod.spec.as_ref(), pod.metadata.deletion_grace_period_seconds, container),
        log_path: format!("{}/0.log", container.name),
        stdin: container.stdin.unwrap_or_default(),
        stdin_once: container.stdin_once.unwrap_or_default(),
        tty: container.tty.unwrap_or_default(),
        linux: Some(LinuxContainerConfig {
            resources: Some(LinuxContainerResources {
                cpu_shares: cpu_shares([container]),
                memory_limit_in_bytes: memory_limit(container),
                ..Default::default()
            }),
            security_context: Some(security_context(pod, container)),
        }),
        ..Default::default()
    }
}

/// The image as the user wrote it; the tool image if the pod leaves it open.
pub fn image(container: &Container) -> String {
    container.image.clone().unwrap_or_else(|| TOOL_IMAGE.to_owned())
}

/// Host path of the termination message.
pub fn termination_message_path(container: &Container) -> String {
    container
        .termination_message_path
        .clone()
        .unwrap_or_else(|| TERMINATION_LOG.to_owned())
}

fn pod_labels(identity: &Identity) -> [(String, String); 3] {
    [
        ("name", &identity.name),
        ("namespace", &identity.namespace),
        ("uid", &identity.uid),
    ]
    .map(|(key, value)| (format!("io.kubernetes.pod.{key}"), value.clone()))
}

fn container_annotations(
    spec: Option<&PodSpec>,
    deletion_grace: Option<i64>,
    container: &Container,
) -> HashMap<String, String> {
    let policy = container
        .termination_message_policy
        .clone()
        .unwrap_or_else(|| "File".to_owned());
    let pre_stop = container
        .lifecycle
        .as_ref()
        .and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let ports = container.ports.as_ref().filter(|ports| !ports.is_empty());
    let grace = spec.and_then(|spec| spec.termination_grace_period_seconds);
    let entries = [
        ("container.hash", Some(hash(container))),
        ("container.restartCount", Some("0".to_owned())),
        (
            "container.terminationMessagePath",
            Some(termination_message_path(container)),
        ),
        ("container.terminationMessagePolicy", Some(policy)),
        (
            "container.preStopHandler",
            pre_stop.and_then(|hook| serde_json::to_string(hook).ok()),
        ),
        (
            "container.ports",
            ports.and_then(|ports| serde_json::to_string(ports).ok()),
        ),
        ("pod.terminationGracePeriod", grace.map(|seconds| seconds.to_string())),
        (
            "pod.deletionGracePeriod",
            deletion_grace.map(|seconds| seconds.to_string()),
        ),
    ];
    let present = entries
        .into_iter()
        .filter_map(|(key, value)| Some((format!("io.kubernetes.{key}"), value?)));
    present.collect()
}

/// Of the kubelet's shape (32-bit FNV-1a over name and image, in hexadecimal), not its value: it is never compared.
fn hash(container: &Container) -> String {
    let text = format!("{} {}", container.name, image(container));
    let sum = text.bytes().fold(0x811c_9dc5_u32, |sum, byte| {
        (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    format!("{sum:x}")
}

fn security_context(pod: &Pod, container: &Container) -> LinuxContainerSecurityContext {
    let context = container.security_context.clone().unwrap_or_default();
    let pod_context = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.security_context.clone())
        .unwrap_or_default();
    LinuxContainerSecurityContext {
        privileged: context.privileged.unwrap_or_default(),
        namespace_options: Some(namespaces(pod)),
        run_as_user: context
            .run_as_user
            .or(pod_context.run_as_user)
            .map(|value| Int64Value { value }),
        readonly_rootfs: context.read_only_root_filesystem.unwrap_or_default(),
        ..Default::default()
    }
}

fn namespaces(pod: &Pod) -> NamespaceOption {
    let spec = pod.spec.as_ref();
    let asked = |field: fn(&PodSpec) -> Option<bool>| spec.and_then(field).unwrap_or_default();
    let of_node = |node: bool, otherwise: NamespaceMode| if node { NamespaceMode::Node } else { otherwise } as i32;
    let pid = if asked(|spec| spec.share_process_namespace) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    NamespaceOption {
        network: of_node(asked(|spec| spec.host_network), NamespaceMode::Pod),
        pid: of_node(asked(|spec| spec.host_pid), pid),
        ipc: of_node(asked(|spec| spec.host_ipc), NamespaceMode::Pod),
        ..Default::default()
    }
}

fn hostname(pod: &Pod, identity: &Identity) -> String {
    let asked = pod.spec.as_ref().and_then(|spec| spec.hostname.clone());
    let name = asked.unwrap_or_else(|| identity.name.clone());
    let cut = name.get(..MAX_HOSTNAME).unwrap_or(&name);
    cut.trim_end_matches(['-', '.']).to_owned()
}
