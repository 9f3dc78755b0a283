//! The streaming lists of CRI 1.36, which the crate with its messages does not have yet. On the wire they are those of the
//! lists that they stand for.

use std::{convert::Infallible, sync::Arc};

use futures::stream::{self, BoxStream, StreamExt as _};
use k8s_cri::v1;
use tonic::{Request, Response, Status, server::Grpc, service::Routes};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::stage::{Read, Stage};

/// So few are sent at once.
const A_FEW: usize = 2;

type Parts<T> = Result<Response<BoxStream<'static, Result<T, Status>>>, Status>;

/// The same routes, with the lists that stream.
pub(super) fn with_streams(mut routes: Routes, stage: &Arc<Stage>) -> Routes {
    let sandboxes = Arc::clone(stage);
    let sandboxes = service_fn(move |call| {
        let stage = Arc::clone(&sandboxes);
        async move {
            let list = service_fn(move |asked: Request<v1::ListPodSandboxRequest>| {
                let stage = Arc::clone(&stage);
                async move { stream_sandboxes(&stage, asked.into_inner()).await }
            });
            let codec = ProstCodec::<v1::ListPodSandboxResponse, v1::ListPodSandboxRequest>::default();
            Ok::<_, Infallible>(Grpc::new(codec).server_streaming(list, call).await)
        }
    });
    let containers = Arc::clone(stage);
    let containers = service_fn(move |call| {
        let stage = Arc::clone(&containers);
        async move {
            let list = service_fn(move |asked: Request<v1::ListContainersRequest>| {
                let stage = Arc::clone(&stage);
                async move { stream_containers(&stage, asked.into_inner()).await }
            });
            let codec = ProstCodec::<v1::ListContainersResponse, v1::ListContainersRequest>::default();
            Ok::<_, Infallible>(Grpc::new(codec).server_streaming(list, call).await)
        }
    });
    let router = routes.axum_router_mut();
    *router = std::mem::take(router)
        .route_service("/runtime.v1.RuntimeService/StreamPodSandboxes", sandboxes)
        .route_service("/runtime.v1.RuntimeService/StreamContainers", containers);
    routes
}

async fn stream_sandboxes(stage: &Stage, asked: v1::ListPodSandboxRequest) -> Parts<v1::ListPodSandboxResponse> {
    let look = stage.look(Read::ListPodSandbox, "StreamPodSandboxes", "", |world| {
        world.streams()?;
        Ok(world.list_sandboxes(asked.filter.as_ref()))
    });
    let parts: Vec<_> = look
        .await?
        .chunks(A_FEW)
        .map(|part| Ok(v1::ListPodSandboxResponse { items: part.to_vec() }))
        .collect();
    Ok(Response::new(stream::iter(parts).boxed()))
}

async fn stream_containers(stage: &Stage, asked: v1::ListContainersRequest) -> Parts<v1::ListContainersResponse> {
    let look = stage.look(Read::ListContainers, "StreamContainers", "", |world| {
        world.streams()?;
        Ok(world.list_containers(asked.filter.as_ref()))
    });
    let parts: Vec<_> = look
        .await?
        .chunks(A_FEW)
        .map(|part| {
            Ok(v1::ListContainersResponse {
                containers: part.to_vec(),
            })
        })
        .collect();
    Ok(Response::new(stream::iter(parts).boxed()))
}
