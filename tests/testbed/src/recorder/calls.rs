//! The effect of a CRI call, and its pod.

use k8s_cri::v1::{
    CreateContainerRequest, CreateContainerResponse, ExecSyncRequest, ListContainersResponse, ListPodSandboxResponse,
    PodSandbox, RemoveContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest, RunPodSandboxResponse,
    StartContainerRequest, StopContainerRequest, StopPodSandboxRequest, UpdateContainerResourcesRequest,
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

/// The call, if it changes something.
pub(super) fn read(path: &str, body: &[u8]) -> Option<Call> {
    let of = |method, id: Option<String>| {
        Some(Call {
            method,
            pod: Pod::Of(id.unwrap_or_default()),
        })
    };
    match path.strip_prefix(SERVICE)? {
        "RunPodSandbox" => {
            let metadata = message::<RunPodSandboxRequest>(body)?.config?.metadata?;
            Some(Call {
                method: "RunPodSandbox",
                pod: Pod::Uid(metadata.uid),
            })
        }
        "CreateContainer" => of(
            "CreateContainer",
            message::<CreateContainerRequest>(body).map(|it| it.pod_sandbox_id),
        ),
        "StartContainer" => of(
            "StartContainer",
            message::<StartContainerRequest>(body).map(|it| it.container_id),
        ),
        "StopContainer" => of(
            "StopContainer",
            message::<StopContainerRequest>(body).map(|it| it.container_id),
        ),
        "RemoveContainer" => of(
            "RemoveContainer",
            message::<RemoveContainerRequest>(body).map(|it| it.container_id),
        ),
        "UpdateContainerResources" => of(
            "UpdateContainerResources",
            message::<UpdateContainerResourcesRequest>(body).map(|it| it.container_id),
        ),
        "ExecSync" => of("ExecSync", message::<ExecSyncRequest>(body).map(|it| it.container_id)),
        "StopPodSandbox" => of(
            "StopPodSandbox",
            message::<StopPodSandboxRequest>(body).map(|it| it.pod_sandbox_id),
        ),
        "RemovePodSandbox" => of(
            "RemovePodSandbox",
            message::<RemovePodSandboxRequest>(body).map(|it| it.pod_sandbox_id),
        ),
        _ => None,
    }
}

/// ID of the created object in an answer.
pub(super) fn made(call: &Call, answer: &[u8]) -> Option<String> {
    match call.method {
        "RunPodSandbox" => message::<RunPodSandboxResponse>(answer).map(|it| it.pod_sandbox_id),
        "CreateContainer" => message::<CreateContainerResponse>(answer).map(|it| it.container_id),
        _ => None,
    }
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

#[cfg(test)]
mod tests {
    use k8s_cri::v1::{PodSandboxConfig, PodSandboxMetadata};

    use super::*;

    fn framed(message: &impl Message) -> Vec<u8> {
        let bytes = message.encode_to_vec();
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [&[0], &length[..], &bytes].concat()
    }

    #[test]
    fn changing_calls_are_recorded_with_their_pod() {
        let metadata = PodSandboxMetadata {
            uid: "u1".to_owned(),
            ..Default::default()
        };
        let run = RunPodSandboxRequest {
            config: Some(PodSandboxConfig {
                metadata: Some(metadata),
                ..Default::default()
            }),
            ..Default::default()
        };
        let call = read("/runtime.v1.RuntimeService/RunPodSandbox", &framed(&run)).unwrap();
        assert_eq!(call.pod, Pod::Uid("u1".to_owned()));
        let answer = RunPodSandboxResponse {
            pod_sandbox_id: "s1".to_owned(),
        };
        assert_eq!(made(&call, &framed(&answer)).as_deref(), Some("s1"));
        let stop = StopContainerRequest {
            container_id: "c1".to_owned(),
            timeout: 3,
        };
        let call = read("/runtime.v1.RuntimeService/StopContainer", &framed(&stop)).unwrap();
        assert_eq!((call.method, call.pod), ("StopContainer", Pod::Of("c1".to_owned())));
        assert_eq!(read("/runtime.v1.RuntimeService/ListContainers", &[]), None);
        assert_eq!(read("/runtime.v1.ImageService/RemoveImage", &[]), None);
    }
}
