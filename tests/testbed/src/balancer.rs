//! A load balancer in front of a server: it forwards bytes, and can drop the state of its connections silently.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, DuplexStream, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// HTTP versions that a client may use over TLS.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Buffer size in each direction of a connection in memory.
const PIPE: usize = 256 * 1024;

/// A load balancer; dropping it closes all its connections.
#[derive(Debug)]
pub struct Balancer {
    /// Its URL, for a kubeconfig.
    server: String,
    dropped: watch::Sender<()>,
    /// Takes connections in memory, if it listens on no socket.
    pipes: Option<mpsc::UnboundedSender<DuplexStream>>,
    _task: AbortOnDropHandle<()>,
}

// === impl Balancer ===

impl Balancer {
    /// Forwards bytes to the server at `server`.
    pub async fn start(server: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listen")?;
        let address = listener.local_addr().context("see where it listens")?;
        let dropped = watch::Sender::new(());
        let state = dropped.clone();
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let dropped = state.subscribe();
                connections.spawn(async move {
                    if let Ok(server) = TcpStream::connect(server).await {
                        forward(client, server, dropped).await;
                    }
                });
            }
        }));
        Ok(Self {
            server: format!("server: http://{address}"),
            dropped,
            pipes: None,
            _task: task,
        })
    }

    /// Ends the clients' TLS, which may be over HTTP/2, and forwards to the server that `connect` leads to. There is no
    /// socket in between: see [`Balancer::connector`].
    pub fn in_memory_with_tls(connect: impl Fn() -> DuplexStream + Send + 'static) -> Result<Self> {
        let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let tls = TlsAcceptor::from(Arc::new(config));
        let (pipes, mut incoming) = mpsc::unbounded_channel();
        let dropped = watch::Sender::new(());
        let state = dropped.clone();
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Some(client) = incoming.recv().await {
                let (tls, server, dropped) = (tls.clone(), connect(), state.subscribe());
                connections.spawn(async move {
                    if let Ok(client) = tls.accept(client).await {
                        forward(client, server, dropped).await;
                    }
                });
            }
        }));
        let authority = STANDARD.encode(cert.pem());
        Ok(Self {
            server: format!("server: https://127.0.0.1:6443\n    certificate-authority-data: {authority}"),
            dropped,
            pipes: Some(pipes),
            _task: task,
        })
    }

    /// Opens connections to a balancer in memory. Bytes in a socket do not stop a paused clock from advancing: a busy kernel
    /// may deliver them late, and the client's timeouts expire first. Bytes in memory are delivered before it advances.
    ///
    /// # Panics
    /// If the balancer listens on a socket.
    pub fn connector(&self) -> impl Fn() -> DuplexStream + Send + Sync + use<> {
        let pipes = self.pipes.clone().expect("a balancer in memory");
        move || {
            let (ours, theirs) = tokio::io::duplex(PIPE);
            // A dropped balancer closes its end, which the client sees.
            let _ = pipes.send(ours);
            theirs
        }
    }

    /// A kubeconfig for the server at `url`, changed to use the balancer.
    #[must_use]
    pub fn kubeconfig(&self, url: &str, kubeconfig: &str) -> String {
        kubeconfig.replace(&format!("server: {url}"), &self.server)
    }

    /// Drops all further bytes of open connections without closing them. New ones are forwarded.
    pub fn drop_state(&self) {
        self.dropped.send_replace(());
    }
}

async fn forward(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut server: impl AsyncRead + AsyncWrite + Unpin,
    mut dropped: watch::Receiver<()>,
) {
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => return,
        _ = dropped.changed() => {}
    }
    // The client may write, and the server does not see a close.
    let mut swallowed = [0; 4096];
    while matches!(client.read(&mut swallowed).await, Ok(1..)) {}
}
