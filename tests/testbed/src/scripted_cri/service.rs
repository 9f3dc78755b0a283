//! The gRPC service: decodes each call, has the stage execute it, and encodes the result.

use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, stream::BoxStream};
use k8s_cri::v1;
use k8s_cri::v1::runtime_service_server::RuntimeService;
use tonic::{Request, Response, Status};

use super::call::{Kind, Seen};
use super::stage::{Outcome, Read, Stage};
use super::world::{Manners, World};

/// The runtime service of the scripted CRI.
#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) stage: Arc<Stage>,
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

/// Calls that are answered, each by one expression. Written out as the trait has them once its own macro is through,
/// which cannot look into this one.
macro_rules! answer {
    ($($name:ident($service:ident, $request:ident: $Request:ident) -> $Response:ident $body:block)*) => { $(
        fn $name<'s, 'a>(&'s self, request: Request<v1::$Request>) -> Answer<'a, v1::$Response>
        where
            's: 'a,
            Self: 'a,
        {
            let $service = self;
            if let Some(context) = request.metadata().get("traceparent").and_then(|it| it.to_str().ok()) {
                let call = (stringify!($name), context.to_owned());
                self.stage.traced.lock().unwrap_or_else(PoisonError::into_inner).push(call);
            }
            let $request = request.into_inner();
            Box::pin(async move { $body.map(Response::new) })
        }
    )* };
}

/// Calls that no client should make.
macro_rules! refuse {
    ($($name:ident: $Request:ident -> $Response:ident;)*) => { $(
        fn $name<'s, 'a>(&'s self, _: Request<v1::$Request>) -> Answer<'a, v1::$Response>
        where
            's: 'a,
            Self: 'a,
        {
            Box::pin(async move { Err(self.stage.refuse(stringify!($name))) })
        }
    )* };
}

impl Service {
    async fn on_container(
        &self,
        kind: Kind,
        id: String,
        timeout: Option<i64>,
        command: Vec<String>,
    ) -> Result<Outcome, Status> {
        let known = self
            .stage
            .now()
            .world
            .containers
            .get(&id)
            .map(|c| (c.name.clone(), c.pod_uid.clone()));
        let (name, pod_uid) = known.unwrap_or_else(|| (id.clone(), String::new()));
        let timeout = timeout.map(|seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
        self.stage
            .play(Seen {
                kind,
                id,
                name,
                pod_uid,
                timeout,
                command,
            })
            .await
    }

    async fn on_sandbox(&self, kind: Kind, id: String) -> Result<Outcome, Status> {
        let known = self
            .stage
            .now()
            .world
            .sandboxes
            .get(&id)
            .map(|s| (s.pod_name.clone(), s.pod_uid.clone()));
        let (name, pod_uid) = known.unwrap_or_else(|| (id.clone(), String::new()));
        self.stage
            .play(Seen {
                kind,
                id,
                name,
                pod_uid,
                timeout: None,
                command: Vec::new(),
            })
            .await
    }
}

impl RuntimeService for Service {
    answer! {
        version(service, _request: VersionRequest) -> VersionResponse {
            service.stage.look(Read::Version, "Version", "", |world| {
                let (runtime_name, runtime_version) = world.runtime.clone();
                let version = "0.1.0".to_owned();
                Ok(v1::VersionResponse { version, runtime_name, runtime_version, runtime_api_version: "v1".to_owned() })
            }).await
        }
        status(service, _request: StatusRequest) -> StatusResponse {
            service.stage.look(Read::Status, "Status", "", |_| {
                let ready = |r#type: &str| v1::RuntimeCondition {
                    r#type: r#type.to_owned(), status: true, ..Default::default()
                };
                let status = v1::RuntimeStatus { conditions: vec![ready("RuntimeReady"), ready("NetworkReady")] };
                Ok(v1::StatusResponse { status: Some(status), ..Default::default() })
            }).await
        }
        runtime_config(service, _request: RuntimeConfigRequest) -> RuntimeConfigResponse {
            service.stage.look(Read::RuntimeConfig, "RuntimeConfig", "", |world| {
                let systemd = world.systemd_cgroups.ok_or_else(|| Status::unimplemented("unknown method"))?;
                let driver = if systemd { v1::CgroupDriver::Systemd } else { v1::CgroupDriver::Cgroupfs };
                let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver: driver.into() });
                Ok(v1::RuntimeConfigResponse { linux })
            }).await
        }
        list_pod_sandbox(service, request: ListPodSandboxRequest) -> ListPodSandboxResponse {
            service.stage.look(Read::ListPodSandbox, "ListPodSandbox", "", |world| {
                world.fits(v1::ListPodSandboxResponse { items: world.list_sandboxes(request.filter.as_ref()) })
            }).await
        }
        pod_sandbox_status(service, request: PodSandboxStatusRequest) -> PodSandboxStatusResponse {
            let id = &request.pod_sandbox_id;
            service.stage.look(Read::PodSandboxStatus, "PodSandboxStatus", id, |world| {
                world.sandbox_status(id, request.verbose)
            }).await
        }
        list_containers(service, request: ListContainersRequest) -> ListContainersResponse {
            service.stage.look(Read::ListContainers, "ListContainers", "", |world| {
                world.fits(v1::ListContainersResponse { containers: world.list_containers(request.filter.as_ref()) })
            }).await
        }
        container_status(service, request: ContainerStatusRequest) -> ContainerStatusResponse {
            let id = &request.container_id;
            service.stage.look(Read::ContainerStatus, "ContainerStatus", id, |world| {
                world.container_status(id, request.verbose).ok_or_else(|| Status::not_found(format!("no container {id}")))
            }).await
        }
        exec_sync(service, request: ExecSyncRequest) -> ExecSyncResponse {
            let v1::ExecSyncRequest { container_id, cmd, timeout } = request;
            let outcome = service.on_container(Kind::ExecSync, container_id, Some(timeout), cmd).await;
            outcome.map(|Outcome { exit_code, stdout, stderr }| v1::ExecSyncResponse { exit_code, stdout, stderr })
        }
        stop_container(service, request: StopContainerRequest) -> StopContainerResponse {
            let v1::StopContainerRequest { container_id, timeout } = request;
            let outcome = service.on_container(Kind::StopContainer, container_id, Some(timeout), Vec::new()).await;
            outcome.map(|_| v1::StopContainerResponse {})
        }
        remove_container(service, request: RemoveContainerRequest) -> RemoveContainerResponse {
            let outcome = service.on_container(Kind::RemoveContainer, request.container_id, None, Vec::new()).await;
            outcome.map(|_| v1::RemoveContainerResponse {})
        }
        stop_pod_sandbox(service, request: StopPodSandboxRequest) -> StopPodSandboxResponse {
            let outcome = service.on_sandbox(Kind::StopPodSandbox, request.pod_sandbox_id).await;
            outcome.map(|_| v1::StopPodSandboxResponse {})
        }
        remove_pod_sandbox(service, request: RemovePodSandboxRequest) -> RemovePodSandboxResponse {
            let outcome = service.on_sandbox(Kind::RemovePodSandbox, request.pod_sandbox_id).await;
            outcome.map(|_| v1::RemovePodSandboxResponse {})
        }
    }

    refuse! {
        run_pod_sandbox: RunPodSandboxRequest -> RunPodSandboxResponse;
        create_container: CreateContainerRequest -> CreateContainerResponse;
        start_container: StartContainerRequest -> StartContainerResponse;
        update_container_resources: UpdateContainerResourcesRequest -> UpdateContainerResourcesResponse;
        reopen_container_log: ReopenContainerLogRequest -> ReopenContainerLogResponse;
        exec: ExecRequest -> ExecResponse;
        attach: AttachRequest -> AttachResponse;
        port_forward: PortForwardRequest -> PortForwardResponse;
        container_stats: ContainerStatsRequest -> ContainerStatsResponse;
        list_container_stats: ListContainerStatsRequest -> ListContainerStatsResponse;
        pod_sandbox_stats: PodSandboxStatsRequest -> PodSandboxStatsResponse;
        list_pod_sandbox_stats: ListPodSandboxStatsRequest -> ListPodSandboxStatsResponse;
        update_runtime_config: UpdateRuntimeConfigRequest -> UpdateRuntimeConfigResponse;
        checkpoint_container: CheckpointContainerRequest -> CheckpointContainerResponse;
        list_metric_descriptors: ListMetricDescriptorsRequest -> ListMetricDescriptorsResponse;
        list_pod_sandbox_metrics: ListPodSandboxMetricsRequest -> ListPodSandboxMetricsResponse;
    }

    type GetContainerEventsStream = BoxStream<'static, Result<v1::ContainerEventResponse, Status>>;

    fn get_container_events<'s, 'a>(
        &'s self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<'a, Self::GetContainerEventsStream>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(async move {
            let sends = |world: &World| match (world.sends_events, world.manners) {
                (true, _) => Ok(true),
                // Events are disabled.
                (false, Manners::CriO) => Ok(false),
                (false, Manners::Containerd) => Err(Status::unimplemented("unknown method")),
            };
            let look = self
                .stage
                .look(Read::GetContainerEvents, "GetContainerEvents", "", sends);
            if !look.await? {
                return Ok(Response::new(futures::stream::empty().boxed()));
            }
            let stage = Arc::clone(&self.stage);
            // Each change is an event; its content is not read.
            let events = futures::stream::unfold(stage, |stage| async move {
                stage.changed.notified().await;
                Some((Ok(v1::ContainerEventResponse::default()), stage))
            });
            Ok(Response::new(events.boxed()))
        })
    }
}
