//! Sends requests to the API server: concurrency, timeouts and credentials.

use std::{path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::client::Body;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    ApiError,
    credentials::Credentials,
    dial::Dial,
    durations::{RequestDurations, RequestLabels},
    node_proof::{self, Proof},
};
use crate::{histogram::Snapshot, node::threads::Blocking};

/// Simultaneous writes. HTTP/1 needs a connection for each: a node full of terminating pods would open a hundred. Reads are
/// few and not limited, since a read of the Node must not wait for writes.
const MAX_WRITES: usize = 8;

/// A client with the current credentials.
pub(super) struct Connection {
    credentials: Credentials<kube::Client>,
    write_slots: Semaphore,
    durations: RequestDurations,
}

// === impl Connection ===

impl Connection {
    pub fn new(
        config: &kube::Config,
        kubeconfig: PathBuf,
        node_path: String,
        proof: Option<Proof>,
        dial: Option<Dial>,
        blocking: Blocking,
    ) -> Result<Self, kube::Error> {
        let make = move |config: &kube::Config| node_proof::client(config, &node_path, proof.clone(), dial.clone());
        Ok(Self {
            credentials: Credentials::new(config, kubeconfig, Arc::new(make), blocking)?,
            write_slots: Semaphore::new(MAX_WRITES),
            durations: RequestDurations::default(),
        })
    }

    /// Sends, and returns the whole answer. Boxed, since the future takes kilobytes.
    pub fn fetch<'a>(
        &'a self,
        verb: &'static str,
        path: &'a str,
        request: Request<Body>,
    ) -> BoxFuture<'a, Result<Bytes, ApiError>> {
        let answer = async move {
            let response = self.start(verb, path, request).await?;
            let body = response.into_body().collect().await;
            body.map(http_body_util::Collected::to_bytes)
                .map_err(|error| ApiError::unreachable(verb, path, &error))
        };
        Box::pin(self.with_limit(verb, path, answer))
    }

    /// Sends, and passes the answer to `take` as it arrives. An error of `take` ends the request.
    pub fn fetch_streamed<'a>(
        &'a self,
        verb: &'static str,
        path: &'a str,
        request: Request<Body>,
        take: &'a mut (dyn FnMut(Bytes) -> Result<(), ApiError> + Send),
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let answer = async move {
            let mut body = self.start(verb, path, request).await?.into_body();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| ApiError::unreachable(verb, path, &error))?;
                // Other frames are trailers.
                frame.into_data().map_or(Ok(()), &mut *take)?;
            }
            Ok(())
        };
        Box::pin(self.with_limit(verb, path, answer))
    }

    async fn with_limit<T>(
        &self,
        verb: &'static str,
        path: &str,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let result = self.durations.observe_request(verb, path, answer).await;
        if let Err(ApiError::Unreachable { .. } | ApiError::UnverifiedServer { .. } | ApiError::Timeout { .. }) =
            &result
        {
            self.credentials.reload_if_changed().await;
        }
        result
    }

    /// Sends, and returns a successful response when it starts; its body has no timeout.
    pub async fn fetch_start(
        &self,
        verb: &'static str,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let start = self.start(verb, path, request);
        self.durations.observe_request(verb, path, start).await
    }

    async fn start(&self, verb: &'static str, path: &str, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let client = self.credentials.sender();
        let response = match client.send(request).await {
            Ok(response) => response,
            Err(error) => {
                let error = ApiError::not_sent(verb, path, &error);
                if let ApiError::UnverifiedServer { code: Some(401), .. } = error {
                    self.credentials.reload_refused().await;
                }
                return Err(error);
            }
        };
        let code = response.status();
        if code.is_success() {
            return Ok(response);
        }
        if code == StatusCode::UNAUTHORIZED {
            self.credentials.reload_refused().await;
        }
        let retry_after = node_proof::retry_after(response.headers());
        let body = response
            .into_body()
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        Err(ApiError::refused(
            verb,
            path,
            code.as_u16(),
            retry_after,
            &body.unwrap_or_default(),
        ))
    }

    /// Waits for one of the [`MAX_WRITES`] slots.
    pub async fn write_slot(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed, so it cannot fail.
        self.write_slots.acquire().await.ok()
    }

    /// Durations of its requests.
    pub fn request_durations(&self) -> Snapshot<RequestLabels> {
        self.durations.snapshot()
    }

    /// When the credentials expire, if they show it.
    pub fn credentials_expiry(&self) -> Option<Timestamp> {
        self.credentials.expires_at()
    }

    /// Reads the credentials again if their files have changed.
    pub async fn reload_if_changed(&self) {
        self.credentials.reload_if_changed().await;
    }
}
