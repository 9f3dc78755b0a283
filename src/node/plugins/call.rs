//! One call on a connection of its own, bounded as a whole. The bound is ours alone and not sent along: giving up resets the
//! stream, which tells the driver.

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

/// How a call is told and where it goes.
pub(super) struct Way<'a> {
    pub(super) call: Call,
    pub(super) socket: &'a Path,
    pub(super) deadline: Duration,
}

// === impl Way ===

impl Way<'_> {
    /// A call that only looks.
    pub(super) async fn look<M, A, F>(
        self,
        message: M,
        send: impl FnOnce(Channel, Request<M>) -> F,
    ) -> Result<A, GrpcError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        self.answer(message, send, None).await
    }

    /// A call that changes something: the one way to it. `None` in a dry run.
    pub(super) async fn change<M, A, F>(
        self,
        message: M,
        effects: &Effects,
        send: impl FnOnce(Channel, Request<M>) -> F,
    ) -> Result<Option<A>, GrpcError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let Call { name, target, .. } = self.call.clone();
        match effects.allow(&Effect::new(name, &target)) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(held) => return Err(GrpcError::Blocked { call: self.call, held }),
        }
        let answer = self.answer(message, send, Some(effects)).await;
        checkpoint::after(name, &target);
        answer.map(Some)
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
        let told = call.clone();
        // A call takes kilobytes while it goes on, and its place in whoever makes it would take them all the time.
        let whole = Box::pin(async move {
            let connecting = connect(socket);
            let connected = match effects {
                Some(effects) => match effects.run_checked(connecting).await {
                    Ok(connected) => connected,
                    Err(held) => return Err(GrpcError::Blocked { call, held }),
                },
                None => connecting.await,
            };
            let channel = connected.map_err(|error| GrpcError::unreachable(call.clone(), &error))?;
            let sent = send(channel, Request::new(message));
            let answer = match effects {
                // A kubelet that has come may ask the driver for the same volume: ours is taken back.
                Some(effects) => match effects.run_until_blocked(sent).await {
                    Ok(answer) => answer,
                    Err(held) => return Err(GrpcError::Blocked { call, held }),
                },
                None => sent.await,
            };
            answer
                .map(Response::into_inner)
                .map_err(|status| GrpcError::from_status(call, &status))
        });
        timeout(deadline, whole).await.unwrap_or(Err(GrpcError::Timeout {
            call: told,
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
    // The authority is sent and means nothing; a path in its place would be refused by drivers written in Go.
    Endpoint::from_static("http://localhost")
        .connect_with_connector(connector)
        .await
}
