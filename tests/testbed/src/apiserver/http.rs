//! HTTP/1.1 around the handler.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream::unfold;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WARNING};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::answer::Answer;
use super::error::ApiError;
use super::handler::{self, Call, Reply};
use super::shared::Shared;
use super::watch::Watch;

type Body = UnsyncBoxBody<Bytes, io::Error>;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Serves one connection until it ends; how it ends is the client's affair.
pub async fn serve(shared: Arc<Shared>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let connection = shared.requests.opened();
    let service = service_fn(move |request| respond(Arc::clone(&shared), connection, request));
    let served = http1::Builder::new()
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service);
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
    match handler::handle(&shared, call).await {
        Reply::Done(answer) => Ok(done(answer)),
        Reply::Refused(error) => Ok(refused(&error)),
        Reply::Watch(watch) => Ok(response(200, JSON, stream(*watch))),
        // An error of the service closes the connection with nothing sent.
        Reply::Lost => Err(io::Error::other("lost by a fault")),
    }
}

fn done(answer: Answer) -> Response<Body> {
    let mut response = response(answer.code, JSON, full(answer.body));
    for warning in &answer.warnings {
        if let Ok(value) = format!("299 - {warning:?}").parse() {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

fn refused(error: &ApiError) -> Response<Body> {
    let media = if error.is_plain() { PLAIN } else { JSON };
    let mut response = response(error.code, media, full(handler::refusal(error)));
    if let Some(seconds) = error.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, seconds.into());
    }
    response
}

fn response(code: u16, media: HeaderValue, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, media);
    response
}

fn full(body: Bytes) -> Body {
    Full::new(body).map_err(|never| match never {}).boxed_unsync()
}

fn stream(watch: Watch) -> Body {
    let lines = unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((line.map(Frame::data), watch))
    });
    StreamBody::new(lines).boxed_unsync()
}
