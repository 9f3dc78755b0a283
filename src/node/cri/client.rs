//! The CRI client: one connection that reconnects by itself, and the read-only calls.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    path::Path,
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use futures::future::{FutureExt as _, try_join, try_join_all};
use k8s_cri::v1::{self, runtime_service_client::RuntimeServiceClient};
use tokio::time::{Instant, timeout};
use tonic::{Response, Status};
use tower::{BoxError, ServiceExt as _, util::BoxCloneSyncService};

use super::{
    convert,
    durations::CallDurations,
    endpoint::CriEndpoint,
    greeting,
    types::{Container, PodSandbox, RuntimePod, keys},
};
use crate::{
    node::{
        effects::Effects,
        grpc::{self, Call, CallFailure, GrpcError},
    },
    trace_context,
};

/// Timeout of a call without its own duration. Same as the kubelet's default: long enough for a loaded runtime to
/// tear down a sandbox's network.
pub(super) const REQUEST_DEADLINE: Duration = Duration::from_secs(120);

/// Limit of an answer's size, same as the kubelet's. Lists of a full node with long annotations exceed tonic's 4 MiB.
const LARGEST_MESSAGE: usize = 16 * 1024 * 1024;

/// The service that sends calls to a container runtime.
pub type CriService =
    BoxCloneSyncService<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, CriServiceError>;

/// The generated client, which a call takes by value.
pub(super) type Client = RuntimeServiceClient<CriService>;

/// The call did not reach the runtime, or its answer was lost. A type of its own: rustc does not prove that a future with a
/// conversion of [`BoxError`] into itself is `Send`.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct CriServiceError(#[from] BoxError);

/// Client of one container runtime. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Cri {
    client: Client,
    pub(super) effects: Effects,
    pub(super) durations: CallDurations,
    /// `None` for a service without one.
    socket: Option<Arc<Path>>,
}

// === impl Cri ===

impl Cri {
    /// A client that connects at its first call, and reconnects whenever the connection is lost. Must be called within a
    /// tokio runtime, which drives the connection.
    pub fn new(endpoint: &CriEndpoint, effects: Effects) -> Self {
        let socket = grpc::endpoint(&endpoint.path).expect("a socket's path is not parsed");
        let channel = socket.connect_lazy();
        let service = BoxCloneSyncService::new(channel.map_err(|error| CriServiceError(error.into())));
        Self {
            socket: Some(endpoint.path().into()),
            ..Self::with_service(service, effects)
        }
    }

    /// A client that sends its calls to `service`.
    pub fn with_service(service: CriService, effects: Effects) -> Self {
        let service = BoxCloneSyncService::new(service.map_request(add_trace_context));
        let client = RuntimeServiceClient::new(service).max_decoding_message_size(LARGEST_MESSAGE);
        Self {
            client,
            effects,
            durations: CallDurations::default(),
            socket: None,
        }
    }

    /// Counts its calls in `durations`.
    #[must_use]
    pub fn with_durations(self, durations: CallDurations) -> Self {
        Self { durations, ..self }
    }

    /// The same runtime, with these effects.
    #[must_use]
    pub fn with_effects(&self, effects: Effects) -> Self {
        Self {
            effects,
            ..self.clone()
        }
    }

    /// Name and versions of the runtime.
    ///
    /// # Errors
    /// When the call fails. [`CallFailure::Foreign`] also if the connection broke because of another protocol.
    pub async fn version(&self) -> Result<v1::VersionResponse, GrpcError> {
        let version = "v1".to_owned();
        let send = async |mut client: Client| client.version(v1::VersionRequest { version }).await;
        match (self.call("Version", "", REQUEST_DEADLINE, send).await, &self.socket) {
            (Err(error), Some(socket)) if error.is_unreachable() && greeting::is_foreign(socket).await => {
                let why = "the server speaks another protocol".to_owned();
                Err(error.call.failed(CallFailure::Foreign(why)))
            }
            (answer, _) => answer,
        }
    }

    /// The runtime's own conditions, such as `RuntimeReady` and `NetworkReady`.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn conditions(&self) -> Result<Vec<v1::RuntimeCondition>, GrpcError> {
        let request = v1::StatusRequest { verbose: false };
        let send = async |mut client: Client| client.status(request).await;
        let answer = self.call("Status", "", REQUEST_DEADLINE, send).await?;
        Ok(answer.status.unwrap_or_default().conditions)
    }

    /// Sandboxes and containers of a pod. A container removed after the list is left out. One whose status fails, or
    /// takes longer than `status_timeout`, has only the values from the list ([`Container::is_unread`]).
    ///
    /// # Errors
    /// When a list fails, or the runtime becomes unreachable.
    pub async fn pod(&self, uid: &str, status_timeout: Duration) -> Result<RuntimePod, GrpcError> {
        let (sandboxes, listed) = self.lists(uid).await?;
        let queries = listed.into_iter().map(|one| self.container(one, status_timeout));
        let containers = try_join_all(queries).await?;
        Ok(convert::pod(sandboxes, containers.into_iter().flatten()))
    }

    /// The pod as the two lists show it, without the status of each container: cheap, and enough to know what runs.
    /// Times, reason, message and files are missing. Every container that is not running has the exit code 137, since the
    /// real one is unknown.
    ///
    /// # Errors
    /// When either list fails.
    pub async fn pod_brief(&self, uid: &str) -> Result<RuntimePod, GrpcError> {
        let (sandboxes, listed) = self.lists(uid).await?;
        let containers = listed.into_iter().map(convert::listed_container);
        Ok(convert::pod(sandboxes, containers))
    }

    /// This listed container with its status; `None` if it was removed.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn with_status(
        &self,
        listed: &Container,
        status_timeout: Duration,
    ) -> Result<Option<Container>, GrpcError> {
        let answer = self.container_status(&listed.id, false, status_timeout).await?;
        let status = answer.and_then(|answer| answer.status);
        Ok(status.map(|status| convert::container(status, listed.sandbox_id.clone())))
    }

    /// PID of a container's first process, if the runtime knows the container and reports a PID.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn container_pid(&self, id: &str, status_timeout: Duration) -> Result<Option<i32>, GrpcError> {
        let answer = self.container_status(id, true, status_timeout).await?;
        Ok(answer.and_then(|answer| convert::pid(&answer.info)))
    }

    /// PID of a sandbox's process, if the runtime knows the sandbox and it has one.
    ///
    /// # Errors
    /// When the call fails. containerd asks the shim: while that hangs, there is no answer.
    pub async fn sandbox_pid(&self, id: &str, status_timeout: Duration) -> Result<Option<i32>, GrpcError> {
        let answer = self.sandbox_status(id, true, status_timeout).await?;
        Ok(answer.and_then(|answer| convert::pid(&answer.info)))
    }

    /// IPs of a sandbox, the primary first. Empty if the sandbox does not exist or uses the host network.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn pod_ips(&self, sandbox_id: &str) -> Result<Vec<String>, GrpcError> {
        let answer = self.sandbox_status(sandbox_id, false, REQUEST_DEADLINE).await?;
        Ok(answer.map(convert::pod_ips).unwrap_or_default())
    }

    /// Every sandbox of the node, newest first within a pod.
    ///
    /// # Errors
    /// When a call fails, or the list is larger than a message.
    pub async fn list_sandboxes(&self) -> Result<Vec<PodSandbox>, GrpcError> {
        Ok(convert::node_sandboxes(self.sandboxes("").await?))
    }

    /// All pods by UID, as the two lists show them: without the status of each container. See [`Self::pod_brief`].
    ///
    /// # Errors
    /// As [`Self::list_sandboxes`].
    pub async fn all_brief(&self) -> Result<BTreeMap<String, RuntimePod>, GrpcError> {
        let (sandboxes, containers) = try_join(self.sandboxes(""), self.containers("")).await?;
        let mut pods = BTreeMap::<String, (Vec<v1::PodSandbox>, Vec<v1::Container>)>::new();
        for sandbox in sandboxes {
            let in_metadata = || sandbox.metadata.as_ref().map(|metadata| &metadata.uid);
            if let Some(uid) = sandbox.labels.get(keys::POD_UID).or_else(in_metadata) {
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
    async fn sandboxes(&self, uid: &str) -> Result<Vec<v1::PodSandbox>, GrpcError> {
        let filter = Some(v1::PodSandboxFilter {
            label_selector: uid_label(uid),
            ..Default::default()
        });
        let request = v1::ListPodSandboxRequest { filter };
        let send = async |mut client: Client| client.list_pod_sandbox(request).await;
        Ok(self.call("ListPodSandbox", uid, REQUEST_DEADLINE, send).await?.items)
    }

    /// Containers of one pod, or of all pods if `uid` is empty.
    async fn containers(&self, uid: &str) -> Result<Vec<v1::Container>, GrpcError> {
        let filter = Some(v1::ContainerFilter {
            label_selector: uid_label(uid),
            ..Default::default()
        });
        let request = v1::ListContainersRequest { filter };
        let send = async |mut client: Client| client.list_containers(request).await;
        let answer = self.call("ListContainers", uid, REQUEST_DEADLINE, send).await?;
        Ok(answer.containers)
    }

    async fn lists(&self, uid: &str) -> Result<(Vec<v1::PodSandbox>, Vec<v1::Container>), GrpcError> {
        try_join(self.sandboxes(uid), self.containers(uid)).await
    }

    /// A container that may run counts as the list shows it if its status cannot be read.
    async fn container(&self, listed: v1::Container, status_timeout: Duration) -> Result<Option<Container>, GrpcError> {
        let answer = self.container_status(&listed.id, false, status_timeout).await;
        match answer.map(|answer| answer.map(|answer| answer.status)) {
            Ok(Some(Some(status))) => Ok(Some(convert::container(status, listed.pod_sandbox_id))),
            Ok(None) => Ok(None),
            Err(error) if error.is_unreachable() => Err(error),
            unread => {
                let error = unread.err().map(tracing::field::display);
                tracing::warn!(container = listed.id, error, "Container status cannot be read");
                Ok(Some(convert::listed_container(listed)))
            }
        }
    }

    async fn container_status(
        &self,
        id: &str,
        verbose: bool,
        status_timeout: Duration,
    ) -> Result<Option<v1::ContainerStatusResponse>, GrpcError> {
        let container_id = id.to_owned();
        let request = v1::ContainerStatusRequest { container_id, verbose };
        let send = async |mut client: Client| client.container_status(request).await;
        if_found(self.call("ContainerStatus", id, status_timeout, send).await)
    }

    async fn sandbox_status(
        &self,
        id: &str,
        verbose: bool,
        status_timeout: Duration,
    ) -> Result<Option<v1::PodSandboxStatusResponse>, GrpcError> {
        let pod_sandbox_id = id.to_owned();
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id,
            verbose,
        };
        let send = async |mut client: Client| client.pod_sandbox_status(request).await;
        if_found(self.call("PodSandboxStatus", id, status_timeout, send).await)
    }

    /// Runs one call with a timeout. The timeout is not sent to the runtime: on expiry the stream is reset, which cancels the
    /// call.
    ///
    /// The future is boxed: it takes kilobytes, which every caller would otherwise reserve all the time.
    pub(super) fn call<T, F>(
        &self,
        name: &'static str,
        id: &str,
        deadline: Duration,
        send: impl FnOnce(Client) -> F,
    ) -> Pin<Box<impl Future<Output = Result<T, GrpcError>>>>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let started = Instant::now();
        // tonic needs a separate client for each call in flight. Cloning one only increments reference counts.
        let whole = timeout(deadline, send(self.client.clone())).map(move |answer| {
            let call = || Call::to_runtime(name, id);
            let result = match answer {
                Ok(Ok(response)) => Ok(response.into_inner()),
                Ok(Err(status)) => Err(call().refused(&status)),
                Err(_) => Err(call().failed(CallFailure::Timeout(deadline))),
            };
            self.durations.observe(name, &result, started.elapsed());
            result
        });
        Box::pin(whole)
    }
}

fn uid_label(uid: &str) -> HashMap<String, String> {
    let label = (!uid.is_empty()).then(|| (keys::POD_UID.to_owned(), uid.to_owned()));
    label.into_iter().collect()
}

/// `None` if the runtime does not know what the call is about.
pub(super) fn if_found<T>(result: Result<T, GrpcError>) -> Result<Option<T>, GrpcError> {
    match result {
        Err(error) if error.is_not_found() => Ok(None),
        result => result.map(Some),
    }
}

/// Adds the trace context of the pod that the call is made for: spans of the runtime hang below the agent's.
fn add_trace_context(mut request: http::Request<tonic::body::Body>) -> http::Request<tonic::body::Body> {
    if let Some(traceparent) = trace_context::current().and_then(|context| context.traceparent()) {
        request.headers_mut().insert(trace_context::HEADER, traceparent);
    }
    request
}
