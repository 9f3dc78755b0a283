//! Connections to the API server below TLS: over TCP, or in memory.

use std::{io, sync::Arc, time::Duration};

use http::Uri;
use hyper_util::{
    client::legacy::connect::{Connected, Connection, HttpConnector},
    rt::TokioIo,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tower::{BoxError, ServiceExt as _, service_fn, util::BoxCloneSyncService};

/// Limit of a connect with DNS and TLS, without the proof. All addresses of a name share half of it.
pub(super) const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// Both directions of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

/// Opens a connection in memory to the API server at this URL.
pub type Dial = Arc<dyn Fn(&Uri) -> io::Result<Box<dyn Duplex>> + Send + Sync>;

/// Opens connections.
pub(super) type Transport = BoxCloneSyncService<Uri, TokioIo<Box<dyn Duplex>>, BoxError>;

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Opens connections over TCP, or by `dial` if there is one.
pub(super) fn transport(dial: Option<Dial>) -> Transport {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(OPEN_TIMEOUT / 2));
    BoxCloneSyncService::new(service_fn(move |server: Uri| {
        let (tcp, dial) = (tcp.clone(), dial.clone());
        async move {
            Ok::<_, BoxError>(TokioIo::new(match dial {
                Some(dial) => dial(&server)?,
                None => Box::new(tcp.oneshot(server).await?.into_inner()),
            }))
        }
    }))
}

impl Connection for Box<dyn Duplex> {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
