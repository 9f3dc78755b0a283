//! The effect of a CRI call, and its pod.

use k8s_cri::v1::{
    ListContainersResponse, ListPodSandboxResponse, PodSandbox, RunPodSandboxRequest, StopPodSandboxRequest,
};
use prost::Message;

const SERVICE: &str = "/runtime.v1.RuntimeService/";
const SANDBOXES: &str = "ListPodSandbox";
const CONTAINERS: &str = "ListContainers";
/// Prefix of each message: compression flag and length.
const PREFIX: usize = 5;

/// A changing call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub method: &'static str,
    pub pod: Pod,
}

/// How its pod is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Pod {
    /// By this pod.
    Uid(String),
    /// By this sandbox or container.
    Of(String),
}

/// Changing calls that name a sandbox or container.
const CHANGES: [&str; 8] = [
    "CreateContainer",
    "StartContainer",
    "StopContainer",
    "RemoveContainer",
    "UpdateContainerResources",
    "ExecSync",
    "StopPodSandbox",
    "RemovePodSandbox",
];

/// The call, if it changes something.
pub(super) fn read(path: &str, body: &[u8]) -> Option<Call> {
    let name = path.strip_prefix(SERVICE)?;
    if name == "RunPodSandbox" {
        let metadata = message::<RunPodSandboxRequest>(body)?.config?.metadata?;
        return Some(Call {
            method: "RunPodSandbox",
            pod: Pod::Uid(metadata.uid),
        });
    }
    Some(Call {
        method: CHANGES.into_iter().find(|method| *method == name)?,
        pod: Pod::Of(id(body).unwrap_or_default()),
    })
}

/// ID of the created object in an answer.
pub(super) fn made(call: &Call, answer: &[u8]) -> Option<String> {
    ["RunPodSandbox", "CreateContainer"]
        .contains(&call.method)
        .then(|| id(answer))?
}

/// The first field, which is the ID in all these requests and answers.
fn id(body: &[u8]) -> Option<String> {
    message::<StopPodSandboxRequest>(body).map(|it| it.pod_sandbox_id)
}

/// Whether it is a list that [`listed`] understands.
pub(super) fn is_list(path: &str) -> bool {
    path.strip_prefix(SERVICE)
        .is_some_and(|name| [SANDBOXES, CONTAINERS].contains(&name))
}

/// IDs in the answer to a list, with their pods.
pub(super) fn listed(path: &str, answer: &[u8]) -> Vec<(String, Pod)> {
    match path.strip_prefix(SERVICE) {
        Some(SANDBOXES) => {
            let items = message::<ListPodSandboxResponse>(answer).unwrap_or_default().items;
            let uid = |it: PodSandbox| Some((it.id, Pod::Uid(it.metadata?.uid)));
            items.into_iter().filter_map(uid).collect()
        }
        Some(CONTAINERS) => {
            let items = message::<ListContainersResponse>(answer).unwrap_or_default().containers;
            items
                .into_iter()
                .map(|it| (it.id, Pod::Of(it.pod_sandbox_id)))
                .collect()
        }
        _ => Vec::new(),
    }
}

fn message<M: Message + Default>(body: &[u8]) -> Option<M> {
    M::decode(body.get(PREFIX..)?).ok()
}
