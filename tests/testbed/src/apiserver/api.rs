//! The server as tests use it, behind a trait.

use futures::future::{BoxFuture, ready};

use super::{MemApiServer, SOCKET};
use crate::api::{Access, ApiServer};

impl ApiServer for MemApiServer {
    /// Over the Unix socket: a paused clock does not advance during the requests of the testbed's client.
    fn access(&self, user: &str) -> Access {
        Access {
            url: self.url(),
            ca: None,
            socket: self.sockets.as_ref().map(|it| it.dir.path().join(SOCKET)),
            user: user.to_owned(),
            token: user.to_owned(),
        }
    }

    fn forget_history(&self) -> BoxFuture<'_, anyhow::Result<()>> {
        self.compact();
        Box::pin(ready(Ok(())))
    }
}
