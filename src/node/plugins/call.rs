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
    effects::{Effect, Effects},
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
    /// Sends a read-only call.
    pub(super) async fn read<M, A, F>(
        self,
        message: M,
        send: impl FnOnce(Channel, Request<M>) -> F,
    ) -> Result<A, GrpcError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.answer(message, send, None).await
    }

    /// Sends a call that changes something. Every such call goes through here.
    pub(super) async fn change<M, A, F>(
        self,
        message: M,
        effects: &Effects,
        send: impl FnOnce(Channel, Request<M>) -> F,
    ) -> Result<A, GrpcError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let Call { name, target, .. } = self.call.clone();
        if let Err(blocked) = effects.allow(&Effect::new(name, &target)) {
            return Err(GrpcError::Blocked {
                call: self.call,
                blocked,
            });
        }
        let answer = self.answer(message, send, Some(effects)).await;
        checkpoint::after(name, &target);
        answer
    }

    async fn answer<M, A, F>(
        self,
        message: M,
        send: impl FnOnce(Channel, Request<M>) -> F,
        effects: Option<&Effects>,
    ) -> Result<A, GrpcError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let Self { call, socket, deadline } = self;
        let reported_call = call.clone();
        // The future is boxed: it takes kilobytes, which every caller would otherwise reserve all the time.
        let whole = Box::pin(async move {
            let connecting = connect(socket);
            let connected = match effects {
                Some(effects) => match effects.run_checked(connecting).await {
                    Ok(connected) => connected,
                    Err(blocked) => return Err(GrpcError::Blocked { call, blocked }),
                },
                None => connecting.await,
            };
            let channel = connected.map_err(|error| GrpcError::unreachable(call.clone(), &error))?;
            let sent = send(channel, Request::new(message));
            let answer = match effects {
                // A kubelet that has started may call the driver for the same volume, so this call is canceled.
                Some(effects) => match effects.run_until_blocked(sent).await {
                    Ok(answer) => answer,
                    Err(blocked) => return Err(GrpcError::Blocked { call, blocked }),
                },
                None => sent.await,
            };
            answer
                .map(Response::into_inner)
                .map_err(|status| GrpcError::from_status(call, &status))
        });
        timeout(deadline, whole).await.unwrap_or(Err(GrpcError::Timeout {
            call: reported_call,
            after: deadline,
        }))
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
