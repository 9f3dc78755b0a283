//! Responses on the admin socket.

use std::fmt::Display;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use percent_encoding::percent_decode_str;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{model::foreign, object_name::ObjectName};

const JSON: &str = "application/json";
/// Maximum length of the reason that a user gives, in bytes.
const MAX_REASON: usize = 1024;

/// A response, or why the request is refused.
pub type Answer = Result<Response<Full<Bytes>>, Refused>;

/// Why a request is refused.
#[derive(Debug)]
pub struct Refused(pub StatusCode, pub String);

pub fn json_answer(body: &impl Serialize) -> Answer {
    Ok(json_response(StatusCode::OK, body))
}

/// A response with this JSON, escaped, with indents for people.
pub fn json_response(code: StatusCode, body: &impl Serialize) -> Response<Full<Bytes>> {
    match serde_json::to_string_pretty(body) {
        Ok(body) => response(code, JSON, foreign::escape_json(body)),
        Err(cause) => error(StatusCode::INTERNAL_SERVER_ERROR, &cause.to_string()),
    }
}

pub fn agent_stopping() -> Refused {
    unavailable("the agent is stopping")
}

pub fn bad_request(why: impl Display) -> Refused {
    Refused(StatusCode::BAD_REQUEST, why.to_string())
}

pub fn not_found(why: impl Display) -> Refused {
    Refused(StatusCode::NOT_FOUND, why.to_string())
}

pub fn unavailable(why: impl Display) -> Refused {
    Refused(StatusCode::SERVICE_UNAVAILABLE, why.to_string())
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

/// The request in a body.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|cause| bad_request(format!("the body is no request: {cause}")))
}

/// The same where an empty body is the default.
pub fn parse_or_default<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, Refused> {
    match body {
        [] => Ok(T::default()),
        body => parse(body),
    }
}

/// The reason that a user gives. An empty one is none.
pub fn reason(reason: Option<String>) -> Result<Option<String>, Refused> {
    match reason.filter(|reason| !reason.is_empty()) {
        Some(reason) if reason.len() > MAX_REASON => {
            Err(bad_request(format!("reason is longer than {MAX_REASON} bytes")))
        }
        reason => Ok(reason),
    }
}

/// The name in the query `KEY=NAME`. `what`: what it names.
pub fn name(query: Option<&str>, key: &str, what: &str) -> Result<ObjectName, Refused> {
    let name = query.and_then(|query| query.strip_prefix(key)?.strip_prefix('='));
    let name = percent_decode_str(name.unwrap_or_default()).decode_utf8_lossy();
    name.parse()
        .map_err(|syntax| bad_request(format!("the {what} {syntax}")))
}
