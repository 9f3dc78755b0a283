//! Servers of this process, reached in memory by their address.
//!
//! Bytes in a TCP socket do not stop a paused clock from advancing: a busy kernel may deliver them late, and timeouts
//! expire first. Bytes in memory are delivered before it advances.

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        LazyLock, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
};

use http::Uri;
use tokio::{io::DuplexStream, sync::mpsc};

/// Buffer size in each direction of a connection.
const PIPE: usize = 256 * 1024;
/// Reserved for documentation (RFC 5737), so no other server has it.
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

static SERVERS: LazyLock<Mutex<HashMap<SocketAddr, Connector>>> = LazyLock::new(Mutex::default);
/// Above the default ports of HTTP, which URLs may omit.
static LAST_PORT: AtomicU16 = AtomicU16::new(1023);

/// A server's end of new connections.
pub type Incoming = mpsc::UnboundedReceiver<DuplexStream>;

/// Opens connections to a server.
#[derive(Debug, Clone)]
pub struct Connector(mpsc::UnboundedSender<DuplexStream>);

/// An address that leads to a server until this is dropped.
#[derive(Debug)]
pub struct Route {
    address: SocketAddr,
    connector: Connector,
}

/// Creates a listener without an address.
pub fn listen() -> (Connector, Incoming) {
    let (connector, incoming) = mpsc::unbounded_channel();
    (Connector(connector), incoming)
}

/// Opens a connection to the server at this URL.
pub fn connect(url: &Uri) -> io::Result<DuplexStream> {
    let address = url.authority().and_then(|authority| authority.as_str().parse().ok());
    let server = address.and_then(|address: SocketAddr| servers().get(&address).cloned());
    server
        .map(|server| server.connect())
        .ok_or(io::ErrorKind::ConnectionRefused.into())
}

fn servers() -> MutexGuard<'static, HashMap<SocketAddr, Connector>> {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connector {
    /// Opens a connection. The client sees it closed if the server accepts no more.
    pub fn connect(&self) -> DuplexStream {
        let (theirs, ours) = tokio::io::duplex(PIPE);
        let _ = self.0.send(theirs);
        ours
    }
}

impl Route {
    /// A new address.
    pub fn new(connector: Connector) -> Self {
        let port = LAST_PORT.fetch_add(1, Ordering::Relaxed) + 1;
        Self::at((HOST, port).into(), connector)
    }

    /// An address that no other server of this process has.
    pub fn at(address: SocketAddr, connector: Connector) -> Self {
        servers().insert(address, connector.clone());
        Self { address, connector }
    }

    /// Host and port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        let mut servers = servers();
        // It may lead to a later server.
        if servers
            .get(&self.address)
            .is_some_and(|now| now.0.same_channel(&self.connector.0))
        {
            servers.remove(&self.address);
        }
    }
}
