//! Connections that prove where they lead: nothing goes over one before this agent's Node was seen through it. Whatever
//! stands behind an address may be exchanged for another cluster between two connections. Within one only a proxy could do that
//! which ends TLS itself; what it would get are the UIDs of another cluster's pods, which fit none of its own.

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
    client::legacy::{
        self,
        connect::{Connect, Connection},
    },
    rt::TokioExecutor,
};
use k8s_openapi::api::core::v1::Node;
use kube::client::{Body, ConfigExt as _};
use tower::{BoxError, Service, ServiceBuilder};

use super::{
    ApiError, USER_AGENT,
    answer::read,
    dial::{Dial, Dialer},
    error::Unproven,
    http2::{Http2, Sender, connector, open_in_time, prove_in_time, tcp},
};

/// A Node has some ten thousand bytes.
const LARGEST: usize = 8 << 20;
const VERB: &str = "GET";

/// Judges what a server shows as this agent's Node; an error is why nothing may be sent there.
pub type Proof = Arc<dyn Fn(Result<Node, ApiError>) -> BoxFuture<'static, Result<(), ApiError>> + Send + Sync>;

/// What it takes to ask for the Node.
struct Question {
    path: String,
    host: String,
    /// As the last request had them: how this agent shows who it is.
    headers: Mutex<HeaderMap>,
    proof: Proof,
}

/// Opens connections, and hands out those that proved themselves.
#[derive(Clone)]
struct Opener<C> {
    inner: C,
    question: Option<Arc<Question>>,
}

/// A client of which each connection proves itself by the Node at `path`; without a `proof` they are used as they are.
/// They are opened by `dial`, if there is one, and else over TCP. Over TLS it is one HTTP/2 connection, which is pinged,
/// where the server, or a proxy before it, speaks that.
pub(super) fn client(
    config: &kube::Config,
    path: &str,
    proof: Option<Proof>,
    dial: Option<Dial>,
) -> Result<kube::Client, kube::Error> {
    let question = proof.map(|proof| Arc::new(Question::new(&config.cluster_url, path, proof)));
    match dial {
        None => through(tcp(), config, question),
        Some(dial) => through(Dialer(dial), config, question),
    }
}

/// The same, where `transport` opens what TLS goes over.
fn through<C>(transport: C, config: &kube::Config, question: Option<Arc<Question>>) -> Result<kube::Client, kube::Error>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Unpin + Send + 'static,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    if config.cluster_url.scheme_str() != Some("https") {
        return over(http1(transport, question.clone()), config, question);
    }
    let http1 = http1(
        config.rustls_https_connector_with_connector(transport.clone())?,
        question.clone(),
    );
    let connector = connector(config)?.enable_all_versions().wrap_connector(transport);
    let either = Either {
        http2: Arc::new(Http2::new(connector, config.cluster_url.clone(), None)),
        http1,
        question: question.clone(),
        server: config.cluster_url.clone(),
        speaks_http1: Arc::default(),
    };
    over(either, config, question)
}

/// A connection for each request that is under way.
fn http1<C>(inner: C, question: Option<Arc<Question>>) -> legacy::Client<Opener<C>, Body>
where
    C: Clone + Send + Sync + 'static,
    Opener<C>: Connect + Clone,
{
    legacy::Client::builder(TokioExecutor::new()).build(Opener { inner, question })
}

fn over<S>(sender: S, config: &kube::Config, question: Option<Arc<Question>>) -> Result<kube::Client, kube::Error>
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
            if let Some(question) = &question {
                question.remember(request.headers());
            }
            request
        })
        .map_err(Into::<BoxError>::into)
        .service(sender);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}

/// One HTTP/2 connection, or HTTP/1 connections where the server does not speak HTTP/2.
struct Either<T> {
    http2: Arc<Http2<T, Body>>,
    http1: legacy::Client<Opener<HttpsConnector<T>>, Body>,
    question: Option<Arc<Question>>,
    server: Uri,
    /// The server, or a proxy before it, was seen not to speak HTTP/2.
    speaks_http1: Arc<AtomicBool>,
}

// === impl Opener ===

impl<C> Service<Uri> for Opener<C>
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
        let (opening, question) = (self.inner.call(uri), self.question.clone());
        Box::pin(async move {
            let connection = open_in_time(opening).await?;
            match question {
                Some(question) => prove_in_time(question.ask(connection)).await,
                None => Ok(connection),
            }
        })
    }
}

// === impl Either ===

impl<T: Clone> Clone for Either<T> {
    fn clone(&self) -> Self {
        Self {
            http2: Arc::clone(&self.http2),
            http1: self.http1.clone(),
            question: self.question.clone(),
            server: self.server.clone(),
            speaks_http1: Arc::clone(&self.speaks_http1),
        }
    }
}

impl<T> Service<Request<Body>> for Either<T>
where
    T: Service<Uri> + Clone + Send + Sync + 'static,
    T::Response: Connection + Read + Write + Unpin + Send + 'static,
    T::Error: Into<BoxError>,
    T::Future: Send + 'static,
{
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
                    match &this.question {
                        Some(question) => question.ask_over(sender, &this.server).await,
                        None => Ok(()),
                    }
                };
                if let Some(mut sender) = this.http2.sender(prove).await? {
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

// === impl Question ===

impl Question {
    fn new(server: &Uri, path: &str, proof: Proof) -> Self {
        Self {
            path: format!("{}{path}", server.path().trim_end_matches('/')),
            host: host(server),
            headers: Mutex::default(),
            proof,
        }
    }

    fn remember(&self, headers: &HeaderMap) {
        let mut last = self.headers.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_empty() || last.get(header::AUTHORIZATION) != headers.get(header::AUTHORIZATION) {
            last.clone_from(headers);
        }
    }

    /// Asks over `connection`, and gives it back as it was if the answer is good.
    async fn ask<T: Read + Write + Unpin + Send + 'static>(&self, connection: T) -> Result<T, BoxError> {
        let (mut sender, driver) = http1::handshake(connection).await?;
        let request = self.request()?;
        let asked = async move {
            let response = sender.send_request(request).await?;
            let (head, body) = response.into_parts();
            Ok::<_, BoxError>((head, Limited::new(body, LARGEST).collect().await?.to_bytes()))
        };
        // The sender is gone with its answer, and so the driver ends.
        let (answer, left) = tokio::join!(asked, driver.without_shutdown());
        let (head, body) = answer?;
        self.judge(&head, &body).await?;
        if !stays_open(head.version, &head.headers) {
            return Err("the server, or a proxy before it, keeps no connection open after an answer".into());
        }
        let left = left?;
        if left.read_buf.is_empty() {
            Ok(left.io)
        } else {
            Err("the server says more than it was asked".into())
        }
    }

    /// Asks over an HTTP/2 connection, which may be used if the answer is good.
    async fn ask_over(&self, mut sender: Sender<Body>, server: &Uri) -> Result<(), BoxError> {
        let mut parts = server.clone().into_parts();
        parts.path_and_query = Some(self.path.parse()?);
        let (mut head, _) = self.request()?.into_parts();
        head.uri = Uri::from_parts(parts)?;
        head.headers.remove(header::HOST);
        let response = sender.send_request(Request::from_parts(head, Body::empty())).await?;
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LARGEST).collect().await?.to_bytes();
        self.judge(&head, &body).await
    }

    async fn judge(&self, head: &response::Parts, body: &Bytes) -> Result<(), BoxError> {
        let node = if head.status.is_success() {
            read(VERB, &self.path, body)
        } else {
            let retry_after = retry_after(&head.headers);
            let code = head.status.as_u16();
            Err(ApiError::refused(VERB, &self.path, code, retry_after, body))
        };
        Ok((self.proof)(node).await.map_err(Unproven)?)
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

/// As the requests have it: a port that goes without saying is not said.
fn host(server: &Uri) -> String {
    let host = server.host().unwrap_or_default();
    let default = if server.scheme_str() == Some("http") { 80 } else { 443 };
    match server.port_u16().filter(|&port| port != default) {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn stays_open(version: Version, headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::CONNECTION).iter();
    let words: Vec<String> = values
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|word| word.trim().to_ascii_lowercase())
        .collect();
    let says = |wanted: &str| words.iter().any(|word| word == wanted);
    !says("close") && (version != Version::HTTP_10 || says("keep-alive"))
}

/// How long a server asks to be left alone. Not at all is no answer: whoever asks has pauses of his own.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_said_as_requests_say_it() {
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
    fn a_connection_that_ends_with_its_answer_is_known_however_that_is_written() {
        let answer = |version, lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::CONNECTION, header::HeaderValue::from_static(line));
            }
            stays_open(version, &headers)
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
