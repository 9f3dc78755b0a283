//! Sends requests to the API server: credentials, timeouts, durations and refusals.

use std::{
    path::PathBuf,
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::{
    ApiError,
    connection_pool::{Answer, ConnectionPool, Evidence, JSON, RequestParts},
    credentials::Credentials,
    dial::Dial,
    error::{ErrorKind, read},
    escape::escape,
};
use crate::{
    histogram::{self, Histograms},
    model::failure::Reasoned as _,
    node::threads::Blocking,
};

/// The API server ends mutating requests after 34 s and others after 60 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(65);
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Durations of the requests of all clients by verb and result. A watch counts until its answer begins.
pub static REQUEST_DURATIONS: LazyLock<Histograms<2>> =
    LazyLock::new(|| Histograms::new_with_constructor(histogram::of_requests));

/// Sends requests with the current credentials.
pub(super) struct Requests {
    pub credentials: Credentials,
}

/// A write of an event.
#[derive(Debug, Clone)]
pub struct EventWrite {
    /// Namespace of the event.
    pub namespace: Arc<str>,
    /// Name of an event that happened again; `None` creates one.
    pub repeated: Option<Arc<str>>,
    /// The event, or a merge patch of it, in JSON.
    pub body: Bytes,
}

// === impl Requests ===

impl Requests {
    /// Sends with the identity in `config`, which was read from `kubeconfig`. Each connection has to show the `evidence` first.
    /// `dial`, if given, opens them; `blocking` reads files.
    pub fn new(
        config: &kube::Config,
        kubeconfig: PathBuf,
        evidence: Evidence,
        dial: Option<Dial>,
        blocking: Blocking,
    ) -> Result<Self, kube::Error> {
        let build = move |config: &kube::Config| ConnectionPool::new(config, evidence.clone(), dial.clone());
        Ok(Self {
            credentials: Credentials::new(config, kubeconfig, Arc::new(build), blocking)?,
        })
    }

    /// Sends, and returns a successful answer, or that nothing was modified, when it starts; its body has no timeout.
    pub async fn start(&self, lane: usize, parts: &RequestParts<'_>) -> Result<Answer, ApiError> {
        let answer = self.started(lane, parts);
        self.observe(parts.verb, parts.path, answer).await
    }

    /// Sends, and returns the body of the answer.
    pub async fn fetch(&self, lane: usize, parts: RequestParts<'_>) -> Result<Bytes, ApiError> {
        self.fetch_whole(lane, parts).await.map(Response::into_body)
    }

    /// Sends, and returns the whole answer.
    pub async fn fetch_whole(&self, lane: usize, parts: RequestParts<'_>) -> Result<Response<Bytes>, ApiError> {
        let (verb, path) = (parts.verb, parts.path);
        // Boxed, since the future takes a kilobyte.
        let answer = Box::pin(async move {
            let (head, body) = self.started(lane, &parts).await?.0.into_parts();
            Ok(Response::from_parts(head, read_body(verb, path, body).await?))
        });
        self.observe(verb, path, answer).await
    }

    /// Whether this identity may do something (SelfSubjectAccessReview).
    pub async fn is_allowed(&self, attributes: &Value) -> Result<bool, ApiError> {
        let review = json!({
            "kind": "SelfSubjectAccessReview",
            "apiVersion": "authorization.k8s.io/v1",
            "spec": { "resourceAttributes": attributes },
        });
        let parts = RequestParts {
            content_type: Some(JSON),
            body: review.to_string().into(),
            ..RequestParts::get("POST", REVIEWS, JSON)
        };
        let review: Value = read("POST", REVIEWS, &self.fetch(0, parts).await?)?;
        Ok(review["status"]["allowed"].as_bool().unwrap_or(false))
    }

    async fn started(&self, lane: usize, parts: &RequestParts<'_>) -> Result<Answer, ApiError> {
        let (verb, path) = (parts.verb, parts.path);
        let (response, last_received) = self.credentials.pool().send(lane, parts).await?;
        let code = response.status();
        if code.is_success() || code == StatusCode::NOT_MODIFIED {
            return Ok((response, last_received));
        }
        let (head, body) = response.into_parts();
        // Boxed, so that the rare case does not enlarge every request's future.
        let body = Box::pin(read_body(verb, path, body)).await.unwrap_or_default();
        Err(ApiError::from_answer(verb, path, &head, &body))
    }

    /// Waits for an answer, at most [`REQUEST_TIMEOUT`], and observes how long it took. Credentials that may be outdated are read again after it.
    async fn observe<T>(
        &self,
        verb: &'static str,
        path: &str,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let started = Instant::now();
        let result = with_timeout(REQUEST_TIMEOUT, verb, path, answer).await;
        let code = result.as_ref().map_or_else(ApiError::reason, |_| "2xx".into());
        REQUEST_DURATIONS
            .get_or_create(&[("verb", verb.into()), ("code", code)])
            .observe(started.elapsed().as_secs_f64());
        let Err(error) = &result else { return result };
        match &error.kind {
            ErrorKind::Refused { code: 401, .. } => Box::pin(self.credentials.reload_refused()).await,
            ErrorKind::UnverifiedServer(why) if why.code() == Some(401) => {
                Box::pin(self.credentials.reload_refused()).await;
            }
            ErrorKind::Unreachable { .. } | ErrorKind::UnverifiedServer(_) | ErrorKind::Timeout(_) => {
                Box::pin(self.credentials.reload_if_changed()).await;
            }
            ErrorKind::Refused { .. } | ErrorKind::Unreadable(_) | ErrorKind::Blocked(_) => {}
        }
        result
    }
}

async fn read_body(verb: &'static str, path: &str, body: Incoming) -> Result<Bytes, ApiError> {
    let body = body.collect().await;
    let body = body.map_err(|error| ApiError::unreachable(verb, path, &error))?;
    Ok(body.to_bytes())
}

/// Limits a request to `timeout_after`.
pub async fn with_timeout<T>(
    timeout_after: Duration,
    verb: &'static str,
    path: &str,
    answer: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let answer = timeout(timeout_after, answer).await;
    answer.unwrap_or_else(|_| Err(ApiError::new(verb, path, ErrorKind::Timeout(timeout_after))))
}

// === impl EventWrite ===

impl EventWrite {
    /// Verb, path, content type and body.
    pub(super) fn parts(self) -> (&'static str, String, &'static str, Bytes) {
        let events = format!("/api/v1/namespaces/{}/events", escape(&self.namespace));
        match &self.repeated {
            None => ("POST", events, JSON, self.body),
            Some(name) => {
                let path = format!("{events}/{}", escape(name));
                ("PATCH", path, "application/merge-patch+json", self.body)
            }
        }
    }
}
