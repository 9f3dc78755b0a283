//! One call on its own connection, with one timeout for both. The timeout is not sent to the driver: on expiry the stream
//! is reset, which cancels the call.

use std::{path::Path, time::Duration};

use tokio::time::timeout;
use tonic::{Response, Status, transport::Channel};

use crate::node::{
    checkpoint,
    effects::Effects,
    grpc::{self, Call, CallFailure, GrpcError},
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
    pub(super) async fn send<A, F>(
        self,
        effects: Option<&Effects>,
        send: impl FnOnce(Channel) -> F,
    ) -> Result<A, GrpcError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let Self { call, socket, deadline } = self;
        let failed = |failure| call.clone().failed(failure);
        let blocked = |why| failed(CallFailure::Blocked(why));
        if let Some(effects) = effects {
            let allowed = effects.allow(call.name, &call.target);
            allowed.map_err(blocked)?;
        }
        let socket = socket.to_str().ok_or_else(|| failed(CallFailure::PathNotUtf8))?;
        // The future is boxed: it takes kilobytes, which every caller would otherwise reserve all the time.
        let whole = Box::pin(async {
            let channel = async { grpc::endpoint(socket)?.connect().await }.await;
            let channel = channel.map_err(|error| call.clone().unreachable(&error))?;
            let answer = match effects {
                Some(effects) => {
                    effects.check().map_err(blocked)?;
                    let sent = send(channel);
                    effects.run_until_blocked(sent).await.map_err(blocked)?
                }
                None => send(channel).await,
            };
            answer
                .map(Response::into_inner)
                .map_err(|status| call.clone().refused(&status))
        });
        let answer = timeout(deadline, whole).await;
        let answer = answer.unwrap_or_else(|_| Err(failed(CallFailure::Timeout(deadline))));
        if effects.is_some() {
            checkpoint::after(call.name, &call.target);
        }
        answer
    }
}
