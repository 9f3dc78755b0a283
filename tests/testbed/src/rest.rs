//! A small REST client for tests, demo and bench: JSON in and out, the answer as it came.
//!
//! A refusal is an [`Answer`] like any other; [`Answer::ok`] converts it to an error.

mod call;
mod pods;
mod watch;

use std::path::Path;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;

use crate::proto;

pub use self::{
    call::{Call, Patch},
    watch::{Event, EventType, Watch},
};

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The client could not be created: a bad URL or a bad certificate.
    #[error("cannot make a client for {url}: {reason}")]
    Setup {
        /// The server's address as given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No answer, or an incomplete one.
    #[error("{request}: no complete answer")]
    Transport {
        /// Method and path.
        request: String,
        /// The cause.
        #[source]
        source: reqwest::Error,
    },
    /// The answer claims to be JSON and is not.
    #[error("{request}: not JSON")]
    Json {
        /// Method and path.
        request: String,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The answer claims to be protobuf and is not.
    #[error("{request}: not protobuf")]
    Protobuf {
        /// Method and path.
        request: String,
        /// The cause.
        #[source]
        source: proto::Error,
    },
    /// The server answered with something else than 2xx.
    #[error("{request}: {} {}", .answer.status.as_u16(), .answer.message())]
    Refused {
        /// Method and path.
        request: String,
        answer: Box<Answer>,
    },
    /// A condition was not met in time.
    #[error("waited {seconds} s for {what}")]
    TimedOut {
        /// What was waited for.
        what: String,
        /// The time limit.
        seconds: u64,
    },
}

/// The client's result.
pub type Result<T> = std::result::Result<T, Error>;

/// One server's answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The HTTP headers.
    pub headers: HeaderMap,
    /// The body: JSON if the answer says so, else a string.
    pub body: Value,
    /// The raw body.
    pub bytes: Bytes,
    request: String,
}

/// A client of one server with one identity.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: reqwest::Url,
    token: Option<String>,
}

impl Answer {
    /// The body of a 2xx answer; anything else is an error.
    pub fn ok(self) -> Result<Value> {
        if self.status.is_success() {
            return Ok(self.body);
        }
        Err(Error::Refused {
            request: self.request.clone(),
            answer: Box::new(self),
        })
    }

    /// The status as a number.
    pub fn code(&self) -> u16 {
        self.status.as_u16()
    }

    /// The reason of a Status body, or nothing.
    pub fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or_default()
    }

    /// The message of a Status body, or a body that is text.
    pub fn message(&self) -> &str {
        self.body["message"].as_str().or(self.body.as_str()).unwrap_or_default()
    }

    /// One header as text, or nothing.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

impl Client {
    /// A client for the server at `url`. An empty token sends none; without a CA any certificate is accepted.
    pub fn new(url: &str, token: &str, ca_pem: Option<&str>) -> Result<Self> {
        Self::over(None, url, token, ca_pem)
    }

    /// As [`Client::new`], over a Unix socket if one is given.
    pub fn over(socket: Option<&Path>, url: &str, token: &str, ca_pem: Option<&str>) -> Result<Self> {
        let setup = |reason: String| Error::Setup {
            url: url.to_owned(),
            reason,
        };
        // reqwest takes the process' provider; another one may be installed already, which works as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let base = reqwest::Url::parse(url).map_err(|e| setup(e.to_string()))?;
        let builder = reqwest::Client::builder().no_proxy();
        let builder = match ca_pem {
            Some(pem) => {
                let ca = reqwest::Certificate::from_pem(pem.as_bytes()).map_err(|e| setup(e.to_string()))?;
                builder.tls_certs_only([ca])
            }
            None => builder.tls_danger_accept_invalid_certs(true),
        };
        let builder = match socket {
            Some(path) => builder.unix_socket(path),
            None => builder,
        };
        let http = builder.build().map_err(|e| setup(e.to_string()))?;
        Ok(Self {
            http,
            base,
            token: (!token.is_empty()).then(|| token.to_owned()),
        })
    }

    /// The same server with another identity.
    pub fn with_token(&self, token: &str) -> Self {
        Self {
            token: Some(token.to_owned()),
            ..self.clone()
        }
    }

    /// A request to be filled in and sent.
    pub fn call(&self, method: Method, path: &str) -> Call<'_> {
        Call::new(self, method, path)
    }

    pub async fn get(&self, path: &str) -> Result<Answer> {
        self.call(Method::GET, path).send().await
    }

    /// GET of a collection, with list options.
    pub async fn list(&self, path: &str, options: &[(&str, &str)]) -> Result<Answer> {
        self.call(Method::GET, path).options(options).send().await
    }

    /// POST to a collection.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Answer> {
        self.call(Method::POST, path).json(object).send().await
    }

    /// PUT of one object.
    pub async fn update(&self, path: &str, object: &Value) -> Result<Answer> {
        self.call(Method::PUT, path).json(object).send().await
    }

    pub async fn patch(&self, path: &str, kind: Patch, patch: &Value) -> Result<Answer> {
        self.call(Method::PATCH, path).patch(kind, patch).send().await
    }

    /// DELETE of one object or a collection, with DeleteOptions in the body.
    pub async fn delete(&self, path: &str, options: Option<&Value>) -> Result<Answer> {
        let call = self.call(Method::DELETE, path);
        match options {
            Some(options) => call.json(options).send().await,
            None => call.send().await,
        }
    }

    /// A watch of a collection. A server that refuses it is an error; one that sends ERROR events is not.
    pub async fn watch(&self, path: &str, options: &[(&str, &str)]) -> Result<Watch> {
        self.call(Method::GET, path)
            .options(options)
            .options(&[("watch", "true")])
            .stream()
            .await
    }
}
