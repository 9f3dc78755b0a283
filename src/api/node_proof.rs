//! Connections that show this agent's Node before any other request. Between two connections an address may change to another
//! cluster. Within one, only a proxy that terminates TLS could do that, and the UIDs of its pods would not match.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response, Uri, Version, header, response};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::{
    body::Incoming,
    client::conn::http1,
    rt::{Read, Write},
};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{self, connect::Connect},
    rt::TokioExecutor,
};
use k8s_openapi::api::core::v1::Node;
use kube::client::{Body, ConfigExt as _};
use tower::{BoxError, Service, ServiceBuilder};

use super::{
    ApiError, USER_AGENT,
    answer::read,
    dial::{Dial, Transport},
    error::ProofError,
    http2::{Http2, Open, Sender, connector, open_in_time, prove_in_time},
};

/// Limit of the answer in bytes. A Node has some ten thousand.
const MAX_ANSWER: usize = 8 << 20;
const VERB: &str = "GET";

/// Checks the server's answer to a GET of this agent's Node. An error forbids requests over the connection.
pub type Proof = Arc<dyn Fn(Result<Node, ApiError>) -> BoxFuture<'static, Result<(), ApiError>> + Send + Sync>;

/// Request for the Node over a new connection.
struct NodeCheck {
    path: String,
    host: String,
    /// Headers of the last request, with the authentication.
    headers: Mutex<HeaderMap>,
    proof: Proof,
}

/// Opens connections and returns those that pass the check.
#[derive(Clone)]
struct ProvingConnector<C> {
    inner: C,
    node_check: Option<Arc<NodeCheck>>,
}

/// A client whose connections have to show the Node at `path`, if there is a `proof`. `dial`, if given, opens
/// them. Over TLS it uses one HTTP/2 connection with pings if the server supports it.
pub(super) fn client(
    config: &kube::Config,
    path: &str,
    proof: Option<Proof>,
    dial: Option<Dial>,
) -> Result<kube::Client, kube::Error> {
    let node_check = proof.map(|proof| Arc::new(NodeCheck::new(&config.cluster_url, path, proof)));
    let transport = Transport::new(dial);
    if config.cluster_url.scheme_str() != Some("https") {
        return client_with(http1(transport, node_check.clone()), config, node_check);
    }
    let http1 = http1(
        config.rustls_https_connector_with_connector(transport.clone())?,
        node_check.clone(),
    );
    let connector = connector(config)?.enable_all_versions().wrap_connector(transport);
    let either = Http2OrHttp1 {
        http2: Arc::new(Http2::new(connector, config.cluster_url.clone(), None)),
        http1,
        node_check: node_check.clone(),
        server: config.cluster_url.clone(),
        speaks_http1: Arc::default(),
    };
    client_with(either, config, node_check)
}

/// An HTTP/1 client: one connection for each request in flight.
fn http1<C>(inner: C, node_check: Option<Arc<NodeCheck>>) -> legacy::Client<ProvingConnector<C>, Body>
where
    C: Clone + Send + Sync + 'static,
    ProvingConnector<C>: Connect + Clone,
{
    legacy::Client::builder(TokioExecutor::new()).build(ProvingConnector { inner, node_check })
}

fn client_with<S>(
    sender: S,
    config: &kube::Config,
    node_check: Option<Arc<NodeCheck>>,
) -> Result<kube::Client, kube::Error>
where
    S: Service<Request<Body>, Response = Response<Incoming>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + 'static,
    S::Future: Send + 'static,
{
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_request(move |mut request: Request<Body>| {
            request.headers_mut().insert(header::USER_AGENT, USER_AGENT);
            if let Some(node_check) = &node_check {
                node_check.remember_headers(request.headers());
            }
            request
        })
        .map_err(Into::<BoxError>::into)
        .service(sender);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}

/// One HTTP/2 connection, or HTTP/1 connections where the server does not speak HTTP/2.
#[derive(Clone)]
struct Http2OrHttp1 {
    http2: Arc<Http2<Body>>,
    http1: legacy::Client<ProvingConnector<HttpsConnector<Transport>>, Body>,
    node_check: Option<Arc<NodeCheck>>,
    server: Uri,
    /// The server, or a proxy before it, does not support HTTP/2.
    speaks_http1: Arc<AtomicBool>,
}

// === impl ProvingConnector ===

impl<C> Service<Uri> for ProvingConnector<C>
where
    C: Service<Uri>,
    C::Response: Read + Write + Unpin + Send + 'static,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<C::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (opening, node_check) = (self.inner.call(uri), self.node_check.clone());
        Box::pin(async move {
            let connection = open_in_time(opening).await?;
            match node_check {
                Some(node_check) => prove_in_time(node_check.check_http1(connection)).await,
                None => Ok(connection),
            }
        })
    }
}

// === impl Http2OrHttp1 ===

impl Service<Request<Body>> for Http2OrHttp1 {
    type Response = Response<Incoming>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            if !this.speaks_http1.load(Ordering::Relaxed) {
                let prove = |sender| async {
                    match &this.node_check {
                        Some(node_check) => node_check.check_http2(sender, &this.server).await,
                        None => Ok(()),
                    }
                };
                if let Some(Open { mut sender, .. }) = this.http2.open(prove).await? {
                    return Ok(sender.send_request(request).await?);
                }
                tracing::warn!(
                    "The API server, or a proxy before it, does not speak HTTP/2: dead connections are noticed late"
                );
                this.speaks_http1.store(true, Ordering::Relaxed);
            }
            Ok(this.http1.request(request).await?)
        })
    }
}

// === impl NodeCheck ===

impl NodeCheck {
    fn new(server: &Uri, path: &str, proof: Proof) -> Self {
        Self {
            path: format!("{}{path}", server.path().trim_end_matches('/')),
            host: host(server),
            headers: Mutex::default(),
            proof,
        }
    }

    fn remember_headers(&self, headers: &HeaderMap) {
        let mut last = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_empty() || last.get(header::AUTHORIZATION) != headers.get(header::AUTHORIZATION) {
            last.clone_from(headers);
        }
    }

    /// Requests the Node over `connection` and returns it for other requests if the answer passes.
    async fn check_http1<T: Read + Write + Unpin + Send + 'static>(&self, connection: T) -> Result<T, BoxError> {
        let (mut sender, driver) = http1::handshake(connection).await?;
        let request = self.request()?;
        let checked = async move {
            let response = sender.send_request(request).await?;
            let (head, body) = response.into_parts();
            Ok::<_, BoxError>((head, Limited::new(body, MAX_ANSWER).collect().await?.to_bytes()))
        };
        // The driver ends, since the sender is dropped with its answer.
        let (answer, unused) = tokio::join!(checked, driver.without_shutdown());
        let (head, body) = answer?;
        self.check_answer(&head, &body).await?;
        if !is_kept_alive(head.version, &head.headers) {
            return Err("the server, or a proxy before it, keeps no connection open after an answer".into());
        }
        let unused = unused?;
        if unused.read_buf.is_empty() {
            Ok(unused.io)
        } else {
            Err("the server says more than it was asked".into())
        }
    }

    /// Requests the Node over an HTTP/2 connection.
    async fn check_http2(&self, mut sender: Sender<Body>, server: &Uri) -> Result<(), BoxError> {
        let mut parts = server.clone().into_parts();
        parts.path_and_query = Some(self.path.parse()?);
        let (mut head, _) = self.request()?.into_parts();
        head.uri = Uri::from_parts(parts)?;
        head.headers.remove(header::HOST);
        let response = sender.send_request(Request::from_parts(head, Body::empty())).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, MAX_ANSWER).collect().await?.to_bytes();
        self.check_answer(&head, &body).await
    }

    async fn check_answer(&self, head: &response::Parts, body: &Bytes) -> Result<(), BoxError> {
        let node = if head.status.is_success() {
            read(VERB, &self.path, body)
        } else {
            let retry_after = retry_after(&head.headers);
            let code = head.status.as_u16();
            Err(ApiError::refused(VERB, &self.path, code, retry_after, body))
        };
        Ok((self.proof)(node).await.map_err(ProofError)?)
    }

    fn request(&self) -> Result<Request<Empty<Bytes>>, http::Error> {
        let mut request = Request::get(&self.path).body(Empty::new())?;
        let headers = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        request.headers_mut().clone_from(&headers);
        drop(headers);
        request.headers_mut().remove(header::CONTENT_TYPE);
        request.headers_mut().remove(header::CONTENT_LENGTH);
        request.headers_mut().insert(header::HOST, self.host.parse()?);
        request
            .headers_mut()
            .insert(header::ACCEPT, header::HeaderValue::from_static("application/json"));
        Ok(request)
    }
}

/// The Host header, without the scheme's default port.
fn host(server: &Uri) -> String {
    let host = server.host().unwrap_or_default();
    let default = if server.scheme_str() == Some("http") { 80 } else { 443 };
    match server.port_u16().filter(|&port| port != default) {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn is_kept_alive(version: Version, headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).iter();
    let words: Vec<String> = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|word| word.trim().to_ascii_lowercase())
        .collect();
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    !has("close") && (version != Version::HTTP_10 || has("keep-alive"))
}

/// The `Retry-After` header in seconds. Zero is ignored: callers have their own backoff.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_header_omits_the_default_port() {
        for (server, expected) in [
            ("https://api.example.com:443/prefix", "api.example.com"),
            ("https://api.example.com:6443", "api.example.com:6443"),
            ("http://10.0.0.1:80", "10.0.0.1"),
            ("http://10.0.0.1:443", "10.0.0.1:443"),
            ("https://user:secret@[fd00::1]:6443", "[fd00::1]:6443"),
        ] {
            assert_eq!(host(&server.parse().unwrap()), expected, "{server}");
        }
    }

    #[test]
    fn connection_header_is_read_in_any_spelling() {
        let answer = |version, lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::CONNECTION, header::HeaderValue::from_static(line));
            }
            is_kept_alive(version, &headers)
        };
        assert!(answer(Version::HTTP_11, &[]));
        assert!(answer(Version::HTTP_11, &["keep-alive"]));
        assert!(answer(Version::HTTP_10, &["Keep-Alive"]));
        assert!(!answer(Version::HTTP_10, &[]));
        for lines in [&["Close"][..], &["keep-alive, close"], &["keep-alive", "close"]] {
            assert!(!answer(Version::HTTP_11, lines), "{lines:?}");
        }
    }
}
