//! HTTP for the handler: HTTP/1.1, and HTTP/2 with prior knowledge.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::unfold;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH, RETRY_AFTER,
    VARY,
};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};

use super::accept::Media;
use super::answer::Rendered;
use super::encode;
use super::error::ApiError;
use super::handler::{self, Call, Reply};
use super::shared::Shared;
use super::watch::Watch;

type Body = UnsyncBoxBody<Bytes, io::Error>;

const PLAIN: &str = "text/plain; charset=utf-8";

/// Serves one connection until it ends; how it ends does not matter.
pub async fn serve(shared: Arc<Shared>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let connection = shared.requests.opened();
    let service = service_fn(move |request| respond(Arc::clone(&shared), connection, request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().header_read_timeout(None);
    // As the real one: so many requests at once over one connection.
    builder.http2().max_concurrent_streams(100);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "Connection ended");
    }
}

async fn respond(shared: Arc<Shared>, connection: u64, request: Request<Incoming>) -> io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let header = |name: HeaderName| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
    };
    if head.headers.contains_key(ACCEPT_ENCODING) {
        shared.requests.may_compress();
    }
    let call = Call {
        connection,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        authorization: header(AUTHORIZATION),
        accept: header(ACCEPT).unwrap_or_default(),
        content_type: header(CONTENT_TYPE).unwrap_or_default(),
        method: head.method,
        body,
    };
    let refusals = Media::of_refusal(&call.accept);
    let known = header(IF_NONE_MATCH);
    match handler::handle(&shared, call).await {
        Reply::Done(answer) => Ok(done(answer.unless_known(known.as_deref()))),
        Reply::Refused(error) => Ok(refused(&error, refusals)),
        Reply::Watch(watch) => Ok(response(200, watch.form().media.stream_type(), stream(*watch))),
        // An error of the service closes the connection without an answer.
        Reply::Lost => Err(io::Error::other("lost by a fault")),
    }
}

fn done(answer: Rendered) -> Response<Body> {
    let mut response = response(answer.code, answer.content_type, full(answer.body));
    if let Some(etag) = answer.etag.and_then(|etag| HeaderValue::from_str(&etag).ok()) {
        response.headers_mut().insert(ETAG, etag);
        response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
    }
    if response.status() == StatusCode::NOT_MODIFIED {
        // There is no content that could have a type.
        response.headers_mut().remove(CONTENT_TYPE);
    }
    response
}

fn refused(error: &ApiError, media: Media) -> Response<Body> {
    let mut response = if error.is_plain() {
        response(error.code, PLAIN, full(format!("{}\n", error.message).into()))
    } else {
        let status = encode::status(media, &error.to_status());
        response(error.code, media.content_type(), full(status))
    };
    if let Some(seconds) = error.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn response(code: u16, media: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

fn full(body: Bytes) -> Body {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

fn stream(watch: Watch) -> Body {
    let events = unfold(watch, |mut watch| async move {
        let event = watch.next().await?;
        Some((event.map(Frame::data), watch))
    });
    StreamBody::new(events).boxed_unsync()
}
