//! How requests reach the API server: how many at once, for how long, and with which credentials.

use std::{
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use kube::client::Body;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout},
};

use super::{
    ApiError,
    proven::{self, Proof},
};
use crate::config;

/// The API server ends mutating requests after 34 s and others after 60 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(65);
/// Writes under way at once. HTTP/1 needs a connection for each, with its handshake, and keeps it: a node full of pods
/// that end would make a hundred. Reads are few, and not counted: a look at the Node must not wait for writes.
const AT_ONCE: usize = 16;
/// Credentials that are refused are not read again faster than this.
const RENEW_AT_MOST_EVERY: Duration = Duration::from_secs(5);

/// A client with the credentials of the moment: they are read again when the server no longer takes them, and when their
/// files change.
pub(super) struct Connection {
    kubeconfig: PathBuf,
    node_path: String,
    proof: Option<Proof>,
    current: Mutex<Current>,
    places: Semaphore,
}

struct Current {
    kube: kube::Client,
    read: Instant,
    /// What the credentials were read from; not known yet of those that came with the settings.
    files: Option<Vec<Stamp>>,
}

/// A file, and by what a change of it shows.
#[derive(PartialEq)]
struct Stamp {
    path: PathBuf,
    seen: Option<(u64, u64, u64, i64, i64)>,
}

// === impl Connection ===

impl Connection {
    pub fn new(
        config: &kube::Config,
        kubeconfig: PathBuf,
        node_path: String,
        proof: Option<Proof>,
    ) -> Result<Self, kube::Error> {
        let current = Current {
            kube: proven::client(config, &node_path, proof.clone())?,
            read: Instant::now(),
            files: None,
        };
        Ok(Self {
            kubeconfig,
            node_path,
            proof,
            current: Mutex::new(current),
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
        Box::pin(self.bounded(verb, path, request))
    }

    async fn bounded(&self, verb: &'static str, path: &str, request: Request<Body>) -> Result<Bytes, ApiError> {
        let answer = async {
            let response = self.begun(verb, path, request).await?;
            let body = response.into_body().collect().await;
            body.map(http_body_util::Collected::to_bytes)
                .map_err(|error| ApiError::Unreachable {
                    verb,
                    path: path.to_owned(),
                    cause: chain(&error),
                })
        };
        let result = in_time(verb, path, answer).await;
        if let Err(ApiError::Unreachable { .. } | ApiError::Unproven { .. } | ApiError::Timeout { .. }) = &result {
            self.follow_files().await;
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
        in_time(verb, path, self.begun(verb, path, request)).await
    }

    async fn begun(&self, verb: &'static str, path: &str, request: Request<Body>) -> Result<Response<Body>, ApiError> {
        let client = self.current().kube.clone();
        let response = match client.send(request).await {
            Ok(response) => response,
            Err(error) => return Err(self.unsent(verb, path, &error).await),
        };
        let code = response.status();
        if code.is_success() {
            return Ok(response);
        }
        if code == StatusCode::UNAUTHORIZED {
            self.renew().await;
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

    /// Whatever the Node was answered says nothing about what the request is for.
    async fn unsent(&self, verb: &'static str, path: &str, error: &kube::Error) -> ApiError {
        let path = path.to_owned();
        match proven::unproven(error) {
            Some(ApiError::Held { cause, .. }) => ApiError::Held {
                verb,
                path,
                cause: cause.clone(),
            },
            Some(why) => {
                if why.code() == Some(StatusCode::UNAUTHORIZED.as_u16()) {
                    self.renew().await;
                }
                ApiError::Unproven {
                    verb,
                    path,
                    cause: why.to_string(),
                    retry_after: why.retry_after(),
                }
            }
            None => ApiError::Unreachable {
                verb,
                path,
                cause: chain(error),
            },
        }
    }

    /// A place among the writes that are under way.
    pub async fn place(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed: an error cannot come.
        self.places.acquire().await.ok()
    }

    /// Reads credentials again that were refused; somebody may have renewed them. The request is tried again by whoever
    /// asked.
    async fn renew(&self) {
        {
            let mut current = self.current();
            if current.read.elapsed() < RENEW_AT_MOST_EVERY {
                return;
            }
            current.read = Instant::now();
        }
        self.read_again("refused").await;
    }

    /// Reads the credentials again if a file changed that they come from: the old ones may be good for ever, at a server
    /// that has gone.
    pub async fn follow_files(&self) {
        let changed = match &self.current().files {
            None => true,
            Some(files) => files.iter().any(|file| Stamp::of(&file.path) != *file),
        };
        if changed {
            self.read_again("changed").await;
        }
    }

    async fn read_again(&self, because: &'static str) {
        // Before they are read: what changes meanwhile is seen the next time.
        let files = config::credential_files(&self.kubeconfig);
        let files = files.iter().map(|file| Stamp::of(file)).collect();
        let config = config::read_kubeconfig(&self.kubeconfig).await;
        let kube = config.and_then(|config| {
            proven::client(&config, &self.node_path, self.proof.clone()).map_err(|error| error.to_string())
        });
        match kube {
            Ok(kube) => {
                let mut current = self.current();
                // The first time only whether they changed since the start was not known.
                if current.files.replace(files).is_some() {
                    tracing::info!(because, "Credentials have been read again");
                }
                current.kube = kube;
            }
            Err(error) => tracing::error!(because, error, "Credentials cannot be read again"),
        }
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn in_time<T>(
    verb: &'static str,
    path: &str,
    answer: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    timeout(REQUEST_TIMEOUT, answer).await.unwrap_or_else(|_| {
        Err(ApiError::Timeout {
            verb,
            path: path.to_owned(),
            after: REQUEST_TIMEOUT,
        })
    })
}

// === impl Stamp ===

impl Stamp {
    fn of(path: &Path) -> Self {
        let seen = std::fs::metadata(path).ok();
        Self {
            path: path.to_owned(),
            seen: seen.map(|it| (it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec())),
        }
    }
}

/// An error with its causes on one line; each layer repeats less than one might hope.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
