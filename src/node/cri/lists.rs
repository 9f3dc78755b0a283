//! Lists of the runtime, also those larger than one message: streamed, or else read in parts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::{
    TryFutureExt as _,
    future::{BoxFuture, try_join},
    stream::{self, StreamExt as _, TryStreamExt as _},
};
use http::uri::PathAndQuery;
use indexmap::IndexMap;
use k8s_cri::v1;
use prost::Message;
use tonic::{Request, Response, client::Grpc};
use tonic_prost::ProstCodec;

use super::{
    client::{Cri, LARGEST_MESSAGE, REQUEST_DEADLINE, uid_label},
    convert,
    types::{PodSandbox, RuntimePod, keys},
};
use crate::node::grpc::GrpcError;

/// States in the only order in which a sandbox changes, so that queries in this order miss none.
const SANDBOX_STATES: [v1::PodSandboxState; 2] =
    [v1::PodSandboxState::SandboxReady, v1::PodSandboxState::SandboxNotready];
/// The same for containers.
const CONTAINER_STATES: [v1::ContainerState; 4] = [
    v1::ContainerState::ContainerCreated,
    v1::ContainerState::ContainerRunning,
    v1::ContainerState::ContainerUnknown,
    v1::ContainerState::ContainerExited,
];
/// Number of per-pod lists requested at a time.
const MAX_CONCURRENT: usize = 8;

/// UIDs of pods known from the node or the journal. Used if the runtime's complete list is too large.
pub type PodUids = Arc<dyn Fn() -> BoxFuture<'static, BTreeSet<String>> + Send + Sync>;

// === impl Cri ===

impl Cri {
    /// Every sandbox of the node, newest first within a pod. If the complete list is too large in every form, only
    /// sandboxes of the pods in `known`.
    ///
    /// # Errors
    /// When a call fails.
    pub async fn list_sandboxes(&self, known: &PodUids) -> Result<Vec<PodSandbox>, GrpcError> {
        let listed = match self.sandboxes("").await {
            Err(error) if error.is_too_large() => {
                let uids = known().await;
                tracing::warn!(%error, pods = uids.len(), "Sandbox list exceeds the message size limit; listing only the pods that directories, cgroups and the journal name");
                let lists = stream::iter(uids).map(|uid| async move { self.sandboxes(&uid).await });
                lists.buffered(MAX_CONCURRENT).try_concat().await?
            }
            listed => listed?,
        };
        Ok(convert::node_sandboxes(listed))
    }

    /// UIDs of all pods with a sandbox or a container.
    ///
    /// # Errors
    /// When a call fails, or a list is too large.
    pub async fn pods(&self) -> Result<BTreeSet<String>, GrpcError> {
        let (sandboxes, containers) = try_join(self.sandboxes(""), self.containers("")).await?;
        let sandboxes = convert::node_sandboxes(sandboxes).into_iter().map(|it| it.pod_uid);
        let containers = containers.into_iter();
        let containers = containers.filter_map(|mut it| it.labels.remove(keys::POD_UID));
        Ok(sandboxes.chain(containers).collect())
    }

    /// All pods by UID, as the two lists show them: without the status of each container.
    ///
    /// # Errors
    /// When either list fails, or is too large.
    pub(super) async fn all_brief(&self) -> Result<BTreeMap<String, RuntimePod>, GrpcError> {
        let (sandboxes, containers) = try_join(self.sandboxes(""), self.containers("")).await?;
        let mut pods = BTreeMap::<String, (Vec<v1::PodSandbox>, Vec<v1::Container>)>::new();
        for sandbox in sandboxes {
            if let Some(uid) = sandbox.labels.get(keys::POD_UID) {
                pods.entry(uid.clone()).or_default().0.push(sandbox);
            }
        }
        for container in containers {
            if let Some(uid) = container.labels.get(keys::POD_UID) {
                pods.entry(uid.clone()).or_default().1.push(container);
            }
        }
        let pods = pods.into_iter().map(|(uid, (sandboxes, containers))| {
            let containers = containers.into_iter().map(convert::listed_container);
            (uid, convert::pod(sandboxes, containers))
        });
        Ok(pods.collect())
    }

    /// Sandboxes of one pod, or of all pods if `uid` is empty.
    pub(super) async fn sandboxes(&self, uid: &str) -> Result<Vec<v1::PodSandbox>, GrpcError> {
        match self.sandboxes_in(uid, None).await {
            // Boxed: it is rare, and takes more memory.
            Err(error) if error.is_too_large() => Box::pin(self.sandboxes_in_parts(uid)).await,
            listed => listed,
        }
    }

    async fn sandboxes_in_parts(&self, uid: &str) -> Result<Vec<v1::PodSandbox>, GrpcError> {
        let request = v1::ListPodSandboxRequest {
            filter: Some(sandbox_filter(uid, None)),
        };
        let parts = self.stream("StreamPodSandboxes", uid, request).await;
        match parts {
            Err(error) if error.is_unknown_call() => {}
            parts => {
                let parts: Vec<v1::ListPodSandboxResponse> = parts?;
                return Ok(parts.into_iter().flat_map(|part| part.items).collect());
            }
        }
        let mut all = IndexMap::new();
        for state in SANDBOX_STATES {
            let part = self.sandboxes_in(uid, Some(state)).await?;
            all.extend(part.into_iter().map(|it| (it.id.clone(), it)));
        }
        Ok(all.into_values().collect())
    }

    /// Containers of one pod, or of all pods if `uid` is empty.
    pub(super) async fn containers(&self, uid: &str) -> Result<Vec<v1::Container>, GrpcError> {
        match self.containers_in(uid, "", None).await {
            Err(error) if error.is_too_large() => Box::pin(self.containers_in_parts(uid)).await,
            listed => listed,
        }
    }

    async fn containers_in_parts(&self, uid: &str) -> Result<Vec<v1::Container>, GrpcError> {
        let request = v1::ListContainersRequest {
            filter: Some(container_filter(uid, "", None)),
        };
        let parts = self.stream("StreamContainers", uid, request).await;
        match parts {
            Err(error) if error.is_unknown_call() => {}
            parts => {
                let parts: Vec<v1::ListContainersResponse> = parts?;
                return Ok(parts.into_iter().flat_map(|part| part.containers).collect());
            }
        }
        let mut all = IndexMap::new();
        for state in CONTAINER_STATES {
            let part = match self.containers_in(uid, "", Some(state)).await {
                Err(error) if error.is_too_large() => self.containers_by_sandbox(uid, state).await?,
                part => part?,
            };
            all.extend(part.into_iter().map(|it| (it.id.clone(), it)));
        }
        Ok(all.into_values().collect())
    }

    async fn containers_by_sandbox(
        &self,
        uid: &str,
        state: v1::ContainerState,
    ) -> Result<Vec<v1::Container>, GrpcError> {
        let mut all = Vec::new();
        for sandbox in self.sandboxes(uid).await? {
            all.extend(self.containers_in(uid, &sandbox.id, Some(state)).await?);
        }
        Ok(all)
    }

    async fn sandboxes_in(
        &self,
        uid: &str,
        state: Option<v1::PodSandboxState>,
    ) -> Result<Vec<v1::PodSandbox>, GrpcError> {
        let request = v1::ListPodSandboxRequest {
            filter: Some(sandbox_filter(uid, state)),
        };
        let mut client = self.client();
        let call = client.list_pod_sandbox(request);
        Ok(self.call("ListPodSandbox", uid, REQUEST_DEADLINE, call).await?.items)
    }

    async fn containers_in(
        &self,
        uid: &str,
        sandbox: &str,
        state: Option<v1::ContainerState>,
    ) -> Result<Vec<v1::Container>, GrpcError> {
        let request = v1::ListContainersRequest {
            filter: Some(container_filter(uid, sandbox, state)),
        };
        let mut client = self.client();
        let call = client.list_containers(request);
        Ok(self
            .call("ListContainers", uid, REQUEST_DEADLINE, call)
            .await?
            .containers)
    }

    /// A streaming list of CRI 1.36. Its messages have the wire format of the list that it replaces.
    async fn stream<Req, Part>(&self, name: &'static str, uid: &str, request: Req) -> Result<Vec<Part>, GrpcError>
    where
        Req: Message + Send + Sync + 'static,
        Part: Message + Default + Send + 'static,
    {
        let mut grpc = Grpc::new(self.service.clone()).max_decoding_message_size(LARGEST_MESSAGE);
        let path = PathAndQuery::try_from(format!("/runtime.v1.RuntimeService/{name}"));
        let call = async {
            let unsent = |error: super::client::CriServiceError| tonic::Status::from_error(Box::new(error));
            grpc.ready().await.map_err(unsent)?;
            let path = path.map_err(|error| tonic::Status::internal(error.to_string()))?;
            let codec = ProstCodec::<Req, Part>::default();
            let parts = grpc.server_streaming(Request::new(request), path, codec).await?;
            parts.into_inner().try_collect::<Vec<Part>>().await
        };
        self.call(name, uid, REQUEST_DEADLINE, call.map_ok(Response::new)).await
    }
}

fn sandbox_filter(uid: &str, state: Option<v1::PodSandboxState>) -> v1::PodSandboxFilter {
    v1::PodSandboxFilter {
        label_selector: uid_label(uid),
        state: state.map(|state| v1::PodSandboxStateValue { state: state.into() }),
        ..Default::default()
    }
}

fn container_filter(uid: &str, sandbox: &str, state: Option<v1::ContainerState>) -> v1::ContainerFilter {
    v1::ContainerFilter {
        label_selector: uid_label(uid),
        pod_sandbox_id: sandbox.to_owned(),
        state: state.map(|state| v1::ContainerStateValue { state: state.into() }),
        ..Default::default()
    }
}
