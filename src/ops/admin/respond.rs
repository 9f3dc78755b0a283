//! Responses on the admin socket.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;
use serde_json::json;

use crate::model::foreign;

const JSON: &str = "application/json";
pub const STOPPING: &str = "the agent is stopping";

pub fn json_answer(body: &impl Serialize) -> Response<Full<Bytes>> {
    json_response(StatusCode::OK, body)
}

/// A response with this JSON, escaped.
pub fn json_response(code: StatusCode, body: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_string(body) {
        Ok(body) => response(code, JSON, foreign::escape_json(body)),
        Err(cause) => error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()),
    }
}

pub fn pods_disabled() -> Response<Full<Bytes>> {
    error(
        StatusCode::NOT_FOUND,
        "this agent takes no pods down: it runs with --mode never",
    )
}

pub fn agent_stopping() -> Response<Full<Bytes>> {
    error(StatusCode::SERVICE_UNAVAILABLE, STOPPING)
}

pub fn error(code: StatusCode, message: &str) -> Response<Full<Bytes>> {
    json_response(code, &json!({ "error": message }))
}

/// A response with a body of this content type.
pub fn response(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = code;
    let content_type = HeaderValue::from_static(content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    response
}
