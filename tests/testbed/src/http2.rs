//! A cheap client: HTTP/2 over a few persistent connections, bytes in and out.
//!
//! [`crate::rest`] parses answers; this client is for measurements.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::api::Access;

/// JSON.
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Protobuf, or JSON if the server lacks protobuf for a type.
pub const PROTOBUF: HeaderValue = HeaderValue::from_static("application/vnd.kubernetes.protobuf,application/json");
/// A list of metadata in protobuf.
pub const METADATA_LIST: HeaderValue =
    HeaderValue::from_static("application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");

/// Connections to one server under one identity; closed when this is dropped.
#[derive(Debug)]
pub struct Http2 {
    connections: Vec<SendRequest<Full<Bytes>>>,
    next: AtomicUsize,
    scheme: Scheme,
    authority: Authority,
    authorization: HeaderValue,
    _drivers: JoinSet<()>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The whole body.
    pub body: Bytes,
}

// === impl Http2 ===

impl Http2 {
    /// Opens this many connections.
    pub async fn connect(access: &Access, connections: usize) -> Result<Self> {
        ensure!(connections > 0, "no connections, no client");
        let url: Uri = access.url.parse().with_context(|| format!("read {}", access.url))?;
        let parts = url.into_parts();
        let scheme = parts.scheme.context("a URL without a scheme")?;
        let authority = parts.authority.context("a URL without a host")?;
        let mut authorization = HeaderValue::try_from(format!("Bearer {}", access.token)).context("read the token")?;
        authorization.set_sensitive(true);
        let tls = access.ca.as_deref().map(tls).transpose()?;
        let mut drivers = JoinSet::new();
        let mut senders = Vec::new();
        for _ in 0..connections {
            let stream = TcpStream::connect(authority.as_str())
                .await
                .with_context(|| format!("connect to {authority}"))?;
            stream.set_nodelay(true).context("set the socket up")?;
            senders.push(match &tls {
                None => open(stream, &mut drivers).await?,
                Some(tls) => {
                    let host = ServerName::try_from(authority.host().to_owned()).context("read the host")?;
                    let stream = tls.connect(host, stream).await.context("shake hands over TLS")?;
                    open(stream, &mut drivers).await?
                }
            });
        }
        Ok(Self {
            connections: senders,
            next: AtomicUsize::new(0),
            scheme,
            authority,
            authorization,
            _drivers: drivers,
        })
    }

    /// GET.
    pub async fn get(&self, path: &str, accept: HeaderValue) -> Result<Answer> {
        self.send(Method::GET, path, accept, Bytes::new()).await
    }

    /// Sends a request with a JSON body, or none, and reads the whole answer. Connections are used in turn.
    pub async fn send(&self, method: Method, path: &str, accept: HeaderValue, body: Bytes) -> Result<Answer> {
        let path = PathAndQuery::try_from(path).with_context(|| format!("read the path {path}"))?;
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()?;
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(ACCEPT, accept)
            .header(AUTHORIZATION, self.authorization.clone());
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, JSON);
        }
        let request = request.body(Full::new(body))?;
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let mut connection = self.connections[turn].clone();
        let response = connection.send_request(request).await.context("no answer")?;
        let status = response.status();
        let body = response.into_body().collect().await.context("no complete answer")?;
        Ok(Answer {
            status,
            body: body.to_bytes(),
        })
    }
}

// === impl Answer ===

impl Answer {
    /// The body of a 2xx answer; anything else is an error.
    pub fn ok(self) -> Result<Bytes> {
        ensure!(
            self.status.is_success(),
            "{}: {}",
            self.status,
            String::from_utf8_lossy(&self.body)
        );
        Ok(self.body)
    }
}

fn tls(ca: &str) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).context("read the CA")?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn open(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    drivers: &mut JoinSet<()>,
) -> Result<SendRequest<Full<Bytes>>> {
    let (sender, driver) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .context("begin HTTP/2")?;
    drivers.spawn(async move {
        // Requests in flight get the connection's error.
        let _ = driver.await;
    });
    Ok(sender)
}
