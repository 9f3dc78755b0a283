//! The CRI client: one connection that heals itself, and the calls that only look.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use futures::future::{try_join, try_join_all};
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use k8s_cri::v1;
use k8s_cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::Endpoint;
use tonic::{Response, Status};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, ServiceExt as _};

use super::convert;
use super::endpoint::CriEndpoint;
use super::greeting;
use super::info;
use super::types::{CgroupDriver, Container, RuntimePod, RuntimeVersion, keys};
use crate::node::{
    effects::Effects,
    grpc::{Call, GrpcError},
};

/// How long an answer is waited for where the call itself has no time to spend: the kubelet's default too, long enough
/// for a runtime under load to take down a sandbox's network.
pub(super) const REQUEST_DEADLINE: Duration = Duration::from_secs(120);

/// Largest answer taken in, the kubelet's limit: lists of a full node with long annotations pass tonic's own 4 MiB.
pub(super) const LARGEST_MESSAGE: usize = 16 * 1024 * 1024;

/// What the runtime tells of its containers, without saying what.
pub type ContainerEvents = BoxStream<'static, Result<(), GrpcError>>;

/// What takes calls to a container runtime.
pub type CriService =
    BoxCloneSyncService<http::Request<tonic::body::Body>, http::Response<tonic::body::Body>, CriServiceError>;

/// A call did not come to the runtime, or its answer not back.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct CriServiceError(#[from] BoxError);

/// Client of one container runtime; clones share the connection.
#[derive(Debug, Clone)]
pub struct Cri {
    client: RuntimeServiceClient<CriService>,
    /// For calls that the client does not know.
    pub(super) service: CriService,
    pub(super) effects: Effects,
}

// === impl Cri ===

impl Cri {
    /// A client that connects at its first call, and again whenever the connection is gone. Must be called within a
    /// tokio runtime, which drives the connection.
    pub fn new(endpoint: &CriEndpoint, effects: Effects) -> Self {
        let path = endpoint.path().to_path_buf();
        let connector = tower::service_fn(move |_| {
            let path = path.clone();
            async move {
                tokio::net::UnixStream::connect(path)
                    .await
                    .map(hyper_util::rt::TokioIo::new)
            }
        });
        // The authority is sent and means nothing; a path in its place would be refused by runtimes written in Go.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector);
        Self::with_service(
            BoxCloneSyncService::new(channel.map_err(|error| CriServiceError(error.into()))),
            effects,
        )
    }

    /// A client of whatever takes its calls.
    pub fn with_service(service: CriService, effects: Effects) -> Self {
        let client = RuntimeServiceClient::new(service.clone()).max_decoding_message_size(LARGEST_MESSAGE);
        Self {
            client,
            service,
            effects,
        }
    }

    /// Who the runtime is.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn version(&self) -> Result<RuntimeVersion, GrpcError> {
        let request = v1::VersionRequest {
            version: "v1".to_owned(),
        };
        let answer = within("Version", "", REQUEST_DEADLINE, self.client().version(request)).await?;
        Ok(convert::version(answer))
    }

    /// Who the runtime is, and whether it is one at all.
    ///
    /// # Errors
    /// When the call fails; [`GrpcError::Foreign`] also where the connection broke because of that.
    pub async fn identify(&self, endpoint: &CriEndpoint) -> Result<RuntimeVersion, GrpcError> {
        match self.version().await {
            Err(error) if error.is_unreachable() && greeting::is_foreign(endpoint.path()).await => {
                Err(GrpcError::Foreign {
                    call: error.call().clone(),
                    cause: "it greets in another protocol".to_owned(),
                })
            }
            answer => answer,
        }
    }

    /// The cgroup driver that the runtime is set to; `None` from runtimes too old to say.
    ///
    /// # Errors
    /// When the call fails in another way than being unknown to the runtime.
    pub async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>, GrpcError> {
        let request = v1::RuntimeConfigRequest {};
        match within(
            "RuntimeConfig",
            "",
            REQUEST_DEADLINE,
            self.client().runtime_config(request),
        )
        .await
        {
            Ok(answer) => Ok(convert::cgroup_driver(&answer)),
            Err(error) if error.is_unknown_call() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All that the runtime knows of a pod. A container that is gone between the list and the look at it is left out; one
    /// whose status fails, or is not there after `patience`, is as the list shows it ([`Container::is_unread`]).
    ///
    /// # Errors
    /// When a list fails, or the runtime goes away meanwhile.
    pub async fn pod(&self, uid: &str, patience: Duration) -> Result<RuntimePod, GrpcError> {
        let (sandboxes, listed) = self.lists_of(uid).await?;
        let looks = listed.into_iter().map(|container| self.container(container, patience));
        let containers = try_join_all(looks).await?;
        Ok(convert::pod(sandboxes, containers.into_iter().flatten()))
    }

    /// The pod as the two lists show it, without a look at each container: the cheap way to know what runs. Start, end,
    /// reason, message and files are missing, and every container that is not running has the exit code 137, because
    /// nobody asked for the real one.
    ///
    /// # Errors
    /// When either list fails.
    pub async fn pod_brief(&self, uid: &str) -> Result<RuntimePod, GrpcError> {
        let (sandboxes, listed) = self.lists_of(uid).await?;
        Ok(convert::pod(
            sandboxes,
            listed.into_iter().map(convert::listed_container),
        ))
    }

    /// The first process of a container, if the runtime knows the container and names one.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn container_pid(&self, id: &str, patience: Duration) -> Result<Option<i32>, GrpcError> {
        let answer = self.container_status(id, true, patience).await?;
        Ok(answer.and_then(|answer| info::process(&answer)))
    }

    /// IPs of a sandbox, the primary first; none if it is gone or on the host's network.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn pod_ips(&self, sandbox_id: &str) -> Result<Vec<String>, GrpcError> {
        let answer = self.sandbox_status(sandbox_id, false).await?;
        Ok(answer.map(convert::pod_ips).unwrap_or_default())
    }

    /// The cgroup under which a sandbox was put, if the sandbox exists and the runtime tells.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn cgroup_parent(&self, sandbox_id: &str) -> Result<Option<String>, GrpcError> {
        let answer = self.sandbox_status(sandbox_id, true).await?;
        Ok(answer.and_then(|answer| info::cgroup_parent(&answer)))
    }

    /// Whatever happens to containers, each time without saying what: for those who then look themselves. A runtime that
    /// tells nothing says so by its first answer.
    pub fn container_events(&self) -> ContainerEvents {
        let mut client = self.client();
        // A runtime may answer only once it has something to tell, so that the answer is part of the stream.
        let opened = async move { client.get_container_events(v1::GetEventsRequest {}).await };
        let events = stream::once(opened).map_ok(Response::into_inner).try_flatten();
        events
            .map(|event| {
                let failed = |status| GrpcError::from_status(Call::to_runtime("GetContainerEvents", ""), &status);
                event.map(drop).map_err(failed)
            })
            .boxed()
    }

    async fn lists_of(&self, uid: &str) -> Result<(Vec<v1::PodSandbox>, Vec<v1::Container>), GrpcError> {
        try_join(self.sandboxes(uid), self.containers(uid)).await
    }

    /// One that is not known to have ended counts as the list shows it, whatever is wrong with its status.
    async fn container(&self, listed: v1::Container, patience: Duration) -> Result<Option<Container>, GrpcError> {
        match self.container_status(&listed.id, false, patience).await {
            Ok(Some(v1::ContainerStatusResponse {
                status: Some(status), ..
            })) => Ok(Some(convert::container(status, listed.pod_sandbox_id))),
            Ok(Some(_)) => {
                tracing::warn!(container = listed.id, "ContainerStatus has no status");
                Ok(Some(convert::listed_container(listed)))
            }
            Ok(None) => Ok(None),
            Err(error) if error.is_unreachable() => Err(error),
            Err(error) => {
                tracing::warn!(%error, "Container status cannot be read");
                Ok(Some(convert::listed_container(listed)))
            }
        }
    }

    async fn container_status(
        &self,
        id: &str,
        verbose: bool,
        patience: Duration,
    ) -> Result<Option<v1::ContainerStatusResponse>, GrpcError> {
        let request = v1::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose,
        };
        let mut client = self.client();
        match within("ContainerStatus", id, patience, client.container_status(request)).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn sandbox_status(&self, id: &str, verbose: bool) -> Result<Option<v1::PodSandboxStatusResponse>, GrpcError> {
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose,
        };
        match within(
            "PodSandboxStatus",
            id,
            REQUEST_DEADLINE,
            self.client().pod_sandbox_status(request),
        )
        .await
        {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// tonic wants a client of its own for each call in flight; cloning one is a handful of reference counts.
    pub(super) fn client(&self) -> RuntimeServiceClient<CriService> {
        self.client.clone()
    }
}

/// One call, bounded. The bound is ours alone and not sent along: giving up resets the stream, which tells the runtime.
///
/// A call takes kilobytes while it goes on, and its place in whoever makes it would take them all the time.
pub(super) fn within<T>(
    name: &'static str,
    id: &str,
    deadline: Duration,
    rpc: impl Future<Output = Result<Response<T>, Status>>,
) -> impl Future<Output = Result<T, GrpcError>> {
    let rpc = Box::pin(rpc);
    async move {
        match tokio::time::timeout(deadline, rpc).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(GrpcError::from_status(Call::to_runtime(name, id), &status)),
            Err(_) => Err(GrpcError::Timeout {
                call: Call::to_runtime(name, id),
                after: deadline,
            }),
        }
    }
}

pub(super) fn by_uid(uid: &str) -> HashMap<String, String> {
    if uid.is_empty() {
        HashMap::new()
    } else {
        HashMap::from([(keys::POD_UID.to_owned(), uid.to_owned())])
    }
}
