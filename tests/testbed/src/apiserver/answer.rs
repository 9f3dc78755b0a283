//! Answers: first their content, then their encoding in the client's form.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::accept::{DISCOVERY, Form, Media};
use super::encode;
use super::error::ApiError;
use super::kinds::Kind;
use super::list::Page;
use super::object;
use super::stored::Stored;

/// A request that was done.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status code.
    pub code: u16,
    what: What,
}

#[derive(Debug)]
enum What {
    Object(&'static Kind, Arc<Stored>),
    List(&'static Kind, Page),
    Status(Value),
    Json(Bytes),
    Discovery(Bytes),
}

/// An encoded answer.
#[derive(Debug)]
pub struct Rendered {
    /// HTTP status code.
    pub code: u16,
    pub content_type: &'static str,
    pub body: Bytes,
    /// ETag of the body, for clients that have it already.
    pub etag: Option<String>,
}

impl Media {
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Protobuf => "application/vnd.kubernetes.protobuf",
        }
    }

    /// The Content-Type of a watch.
    #[must_use]
    pub fn stream_type(self) -> &'static str {
        match self {
            Media::Json => "application/json",
            Media::Protobuf => "application/vnd.kubernetes.protobuf;stream=watch",
        }
    }
}

impl Answer {
    fn new(code: u16, what: What) -> Self {
        Answer { code, what }
    }

    /// Any JSON, in whatever form the client would like it.
    pub fn json(code: u16, body: &Value) -> Self {
        Answer::new(code, What::Json(body.to_string().into()))
    }

    /// A bare text, as old as the first health checks.
    pub fn ok() -> Self {
        Answer::new(200, What::Json(Bytes::from_static(b"ok")))
    }

    /// All that is served, at once.
    pub fn discovery(body: &Value) -> Self {
        Answer::new(200, What::Discovery(body.to_string().into()))
    }

    pub fn object(code: u16, kind: &'static Kind, object: &Arc<Stored>) -> Self {
        Answer::new(code, What::Object(kind, Arc::clone(object)))
    }

    pub fn list(kind: &'static Kind, page: Page) -> Self {
        Answer::new(200, What::List(kind, page))
    }

    /// That an object was removed: for some kinds the object, for the others a `Status`.
    pub fn removed(kind: &'static Kind, last: &Arc<Stored>) -> Self {
        if kind.answers_object {
            return Answer::object(200, kind, last);
        }
        let value = last.value();
        let mut details = json!({ "name": object::name(&value), "kind": kind.resource, "uid": object::uid(&value) });
        if !kind.group.is_empty() {
            details["group"] = kind.group.into();
        }
        let status =
            json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details });
        Answer::new(200, What::Status(status))
    }

    /// Success of a request without an object.
    pub fn success(code: u16) -> Self {
        let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code });
        Answer::new(code, What::Status(status))
    }

    /// Encodes the answer in `form`.
    pub fn render(self, form: Form) -> Result<Rendered, ApiError> {
        let content_type = form.media.content_type();
        let (content_type, body) = match &self.what {
            What::Object(kind, object) => (content_type, encode::object(form, kind, object)?),
            What::List(kind, page) => (content_type, encode::list(form, kind, page)?),
            What::Status(status) => (content_type, encode::status(form.media, status)),
            What::Json(body) => (Media::Json.content_type(), body.clone()),
            What::Discovery(body) => (DISCOVERY, body.clone()),
        };
        let etag = matches!(self.what, What::Discovery(_)).then(|| etag(&body));
        Ok(Rendered {
            code: self.code,
            content_type,
            body,
            etag,
        })
    }
}

fn etag(body: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA512, body);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    format!("\"{hex}\"")
}

impl Rendered {
    /// The answer to a client that has the body with the ETag `known`.
    #[must_use]
    pub fn unless_known(mut self, known: Option<&str>) -> Self {
        if self.etag.is_some() && self.etag.as_deref() == known {
            self.code = 304;
            self.body = Bytes::new();
        }
        self
    }
}
