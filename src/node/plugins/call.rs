//! One call on its own connection, with one timeout for both. The timeout is not sent to the driver: on expiry the stream
//! is reset, which cancels the call.

use std::{path::Path, time::Duration};

use hyper_util::rt::TokioIo;
use tokio::{net::UnixStream, time::timeout};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint},
};

use crate::node::{
    checkpoint,
    effects::Effects,
    grpc::{Call, GrpcError},
};

/// A call, the driver's socket and the timeout.
pub(super) struct CallRequest<'a> {
    pub(super) call: Call,
    pub(super) socket: &'a Path,
    pub(super) deadline: Duration,
}

// === impl CallRequest ===

impl CallRequest<'_> {
    /// Sends a call. One that changes something has `effects`: it passes the gate, and is canceled when that shuts, since a kubelet
    /// that has started may call the driver for the same volume.
    pub(super) async fn send<M, A, F>(
        self,
        message: M,
        effects: Option<&Effects>,
        send: impl FnOnce(Channel, Request<M>) -> F,
    ) -> Result<A, GrpcError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let Self { call, socket, deadline } = self;
        let blocked = |blocked| GrpcError::Blocked {
            call: call.clone(),
            blocked,
        };
        if let Some(effects) = effects {
            let allowed = effects.allow(call.name, &call.target);
            allowed.map_err(blocked)?;
        }
        // The future is boxed: it takes kilobytes, which every caller would otherwise reserve all the time.
        let whole = Box::pin(async {
            let channel = connect(socket).await;
            let channel = channel.map_err(|error| GrpcError::unreachable(call.clone(), &error))?;
            let answer = match effects {
                Some(effects) => {
                    effects.check().map_err(blocked)?;
                    let sent = send(channel, Request::new(message));
                    effects.run_until_blocked(sent).await.map_err(blocked)?
                }
                None => send(channel, Request::new(message)).await,
            };
            answer
                .map(Response::into_inner)
                .map_err(|status| GrpcError::from_status(call.clone(), &status))
        });
        let answer = timeout(deadline, whole).await.unwrap_or_else(|_| {
            Err(GrpcError::Timeout {
                call: call.clone(),
                after: deadline,
            })
        });
        if effects.is_some() {
            checkpoint::after(call.name, &call.target);
        }
        answer
    }
}

async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The authority is sent but ignored. Drivers written in Go would refuse a path here.
    Endpoint::from_static("http://localhost")
        .connect_with_connector(connector)
        .await
}
