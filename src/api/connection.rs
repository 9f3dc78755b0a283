//! How requests reach the API server: how many at once, for how long, and with which credentials.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use kube::client::Body;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::{
    ApiError,
    answer::in_time,
    credentials::Credentials,
    dial::Dial,
    proven::{self, Proof},
};
use crate::node::threads::Blocking;

/// The API server ends mutating requests after 34 s and others after 60 s.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(65);
/// Writes under way at once. HTTP/1 needs a connection for each, with its handshake, and keeps it: a node full of pods
/// that end would make a hundred. Reads are few, and not counted: a look at the Node must not wait for writes.
const AT_ONCE: usize = 8;

/// A client with the credentials of the moment.
pub(super) struct Connection {
    credentials: Credentials<kube::Client>,
    places: Semaphore,
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
        let make = move |config: &kube::Config| proven::client(config, &node_path, proof.clone(), dial.clone());
        Ok(Self {
            credentials: Credentials::new(config, kubeconfig, Arc::new(make), blocking)?,
            places: Semaphore::new(AT_ONCE),
        })
    }

    /// Sends, and returns the whole answer. Boxed, since a request takes kilobytes while it goes on.
    pub fn collected<'a>(
        &'a self,
        verb: &'static str,
        path: &'a str,
        request: Request<Body>,
    ) -> BoxFuture<'a, Result<Bytes, ApiError>> {
        let answer = async move {
            let response = self.begun(verb, path, request).await?;
            let body = response.into_body().collect().await;
            body.map(http_body_util::Collected::to_bytes)
                .map_err(|error| ApiError::unreachable(verb, path, &error))
        };
        Box::pin(self.bounded(verb, path, answer))
    }

    /// Sends, and gives the answer to `take` as it arrives, which may refuse the rest.
    pub fn streamed<'a>(
        &'a self,
        verb: &'static str,
        path: &'a str,
        request: Request<Body>,
        take: &'a mut (dyn FnMut(Bytes) -> Result<(), ApiError> + Send),
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        let answer = async move {
            let mut body = self.begun(verb, path, request).await?.into_body();
            while let Some(frame) = body.frame().await {
                let frame = frame.map_err(|error| ApiError::unreachable(verb, path, &error))?;
                // What is no data are trailers.
                frame.into_data().map_or(Ok(()), &mut *take)?;
            }
            Ok(())
        };
        Box::pin(self.bounded(verb, path, answer))
    }

    async fn bounded<T>(
        &self,
        verb: &'static str,
        path: &str,
        answer: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        let result = in_time(REQUEST_TIMEOUT, verb, path, answer).await;
        if let Err(ApiError::Unreachable { .. } | ApiError::Unproven { .. } | ApiError::Timeout { .. }) = &result {
            self.credentials.follow_files().await;
        }
        result
    }

    /// Sends, and turns every answer that is no success into an error. A success may go on for long.
    pub async fn answered(
        &self,
        verb: &'static str,
        path: &str,
        request: Request<Body>,
    ) -> Result<Response<Body>, ApiError> {
        in_time(REQUEST_TIMEOUT, verb, path, self.begun(verb, path, request)).await
    }

    async fn begun(&self, verb: &'static str, path: &str, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let client = self.credentials.sender();
        let response = match client.send(request).await {
            Ok(response) => response,
            Err(error) => {
                let error = ApiError::not_sent(verb, path, &error);
                if let ApiError::Unproven { code: Some(401), .. } = error {
                    self.credentials.renew().await;
                }
                return Err(error);
            }
        };
        let code = response.status();
        if code.is_success() {
            return Ok(response);
        }
        if code == StatusCode::UNAUTHORIZED {
            self.credentials.renew().await;
        }
        let retry_after = proven::retry_after(response.headers());
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

    /// A place among the writes that are under way.
    pub async fn place(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed: an error cannot come.
        self.places.acquire().await.ok()
    }

    /// When the credentials end, where they tell.
    pub fn credentials_end(&self) -> Option<Timestamp> {
        self.credentials.end()
    }

    /// Follows a change of the files that the credentials come from.
    pub async fn follow_files(&self) {
        self.credentials.follow_files().await;
    }
}
