//! A load balancer in front of a server: it forwards bytes, and can drop the state of its connections silently.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use anyhow::Result;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, copy_bidirectional};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::network::{self, Connector, Incoming, Route};

/// HTTP versions that a client may use over TLS.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A load balancer; dropping it closes all its connections.
#[derive(Debug)]
pub struct Balancer {
    route: Route,
    /// Its certificate as PEM, if it speaks TLS.
    certificate: Option<String>,
    /// Number of the first connection whose state is dropped.
    dropped: watch::Sender<usize>,
    opened: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl Balancer {
    /// Forwards bytes to this server.
    pub fn start(server: Connector) -> Self {
        let (own, incoming) = network::listen();
        Self::serve(Route::new(own), incoming, server, None)
    }

    /// Ends the clients' TLS, which may be over HTTP/2, and forwards to this server.
    pub fn with_tls(server: Connector) -> Result<Self> {
        let (own, incoming) = network::listen();
        let route = Route::new(own);
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec![route.address().ip().to_string()])?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let tls = TlsAcceptor::from(Arc::new(config));
        Ok(Self {
            certificate: Some(cert.pem()),
            ..Self::serve(route, incoming, server, Some(tls))
        })
    }

    fn serve(route: Route, mut incoming: Incoming, server: Connector, tls: Option<TlsAcceptor>) -> Self {
        let dropped = watch::Sender::new(usize::MAX);
        let state = dropped.clone();
        let opened = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&opened);
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Some(client) = incoming.recv().await {
                let (tls, server, mut dropped) = (tls.clone(), server.connect(), state.subscribe());
                let number = counted.fetch_add(1, Ordering::SeqCst);
                dropped.mark_unchanged();
                connections.spawn(async move {
                    let is_dropped =
                        async move { while dropped.changed().await.is_ok() && number < *dropped.borrow() {} };
                    match tls {
                        None => forward(client, server, is_dropped).await,
                        Some(tls) => {
                            if let Ok(client) = tls.accept(client).await {
                                forward(client, server, is_dropped).await;
                            }
                        }
                    }
                });
            }
        }));
        Self {
            route,
            certificate: None,
            dropped,
            opened,
            _task: task,
        }
    }

    /// A kubeconfig, changed to use the balancer.
    pub fn kubeconfig(&self, kubeconfig: &str) -> String {
        let address = self.route.address();
        let (scheme, authority) = match &self.certificate {
            None => ("http", None),
            Some(pem) => ("https", Some(STANDARD.encode(pem))),
        };
        let lines = kubeconfig.lines().map(|line| match line.trim_start().split_once(": ") {
            Some(("server", _)) => format!("    server: {scheme}://{address}\n"),
            Some(("certificate-authority-data", other)) => {
                format!(
                    "    certificate-authority-data: {}\n",
                    authority.as_deref().unwrap_or(other)
                )
            }
            _ => format!("{line}\n"),
        });
        lines.collect()
    }

    /// Drops all further bytes of open connections without closing them. New ones are forwarded.
    pub fn drop_state(&self) {
        self.dropped.send_replace(0);
    }

    /// Drops all further bytes of the connection that was opened last.
    pub fn drop_newest(&self) {
        self.dropped
            .send_replace(self.opened.load(Ordering::SeqCst).saturating_sub(1));
    }
}

async fn forward(
    mut client: impl AsyncRead + AsyncWrite + Unpin,
    mut server: impl AsyncRead + AsyncWrite + Unpin,
    is_dropped: impl Future<Output = ()>,
) {
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => return,
        () = is_dropped => {}
    }
    // The client may write, and the server does not see a close.
    let mut swallowed = [0; 4096];
    while matches!(client.read(&mut swallowed).await, Ok(1..)) {}
}
