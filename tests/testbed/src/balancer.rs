//! A load balancer before a server: it forwards bytes, and can drop its connections' state without telling anybody.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::{Context, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// What of HTTP a client may speak over TLS.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A balancer; it ends, and all its connections, when dropped.
#[derive(Debug)]
pub struct Balancer {
    address: SocketAddr,
    /// The certificate, as PEM, if it speaks TLS.
    certificate: Option<String>,
    dropped: watch::Sender<()>,
    _task: AbortOnDropHandle<()>,
}

// === impl Balancer ===

impl Balancer {
    /// Forwards bytes as they are to whatever listens at `server`.
    pub async fn start(server: SocketAddr) -> Result<Self> {
        Self::forwarding(server, None, None).await
    }

    /// The same, and ends the clients' TLS, which may be over HTTP/2.
    pub async fn start_with_tls(server: SocketAddr) -> Result<Self> {
        let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()])?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        Self::forwarding(server, Some(TlsAcceptor::from(Arc::new(config))), Some(cert.pem())).await
    }

    async fn forwarding(server: SocketAddr, tls: Option<TlsAcceptor>, certificate: Option<String>) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("listen")?;
        let address = listener.local_addr().context("see where it listens")?;
        let dropped = watch::Sender::new(());
        let told = dropped.clone();
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (tls, told) = (tls.clone(), told.subscribe());
                connections.spawn(async move {
                    match tls {
                        None => forward(client, server, told).await,
                        Some(tls) => {
                            if let Ok(client) = tls.accept(client).await {
                                forward(client, server, told).await;
                            }
                        }
                    }
                });
            }
        }));
        Ok(Self {
            address,
            certificate,
            dropped,
            _task: task,
        })
    }

    /// A kubeconfig for the server at `url`, made one that leads here.
    #[must_use]
    pub fn kubeconfig(&self, url: &str, kubeconfig: &str) -> String {
        let here = match &self.certificate {
            None => format!("server: http://{}", self.address),
            Some(pem) => format!(
                "server: https://{}\n    certificate-authority-data: {}",
                self.address,
                STANDARD.encode(pem)
            ),
        };
        kubeconfig.replace(&format!("server: {url}"), &here)
    }

    /// From now on nothing comes over the connections that are open, and nothing ends them; new ones are forwarded.
    pub fn drop_state(&self) {
        self.dropped.send_replace(());
    }
}

async fn forward(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    server: SocketAddr,
    mut dropped: watch::Receiver<()>,
) {
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => return,
        _ = dropped.changed() => {}
    }
    // The client may write as much as it likes, and the server hears no end.
    let mut swallowed = [0; 4096];
    while matches!(client.read(&mut swallowed).await, Ok(1..)) {}
}
