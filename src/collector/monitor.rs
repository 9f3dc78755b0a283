//! List and watch of one kind.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use super::{
    discovery::path_of,
    kinds::{KindId, Resource},
    shared::Shared,
    wire::{self, PageReader, WatchEvent, WatchReader},
};
use crate::api::{AnswerStream, ApiError, ErrorKind, Lane, MetadataClient, escape};

const PAGE_SIZE: usize = 500;
/// `timeoutSeconds` of a watch is a random time between half of this and this.
const LIFETIME: Duration = Duration::from_secs(600);
/// A watch without any event for this time is opened again: the API server sends a bookmark about once a minute. It counts as
/// alive until then, since its connection answers pings.
const EVENT_TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum time between two chunks of a page.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_SLOT_WAIT: Duration = Duration::from_secs(2);
/// How long a page of a list may be refused for overload before the list fails.
const PAGE_PATIENCE: Duration = Duration::from_secs(30);
/// A watch that ended earlier counts as failed.
const MIN_WATCH: Duration = Duration::from_secs(1);
/// After this time a watch that is refused is replaced by a list.
const RELIST_AFTER: Duration = Duration::from_secs(60);
/// Backoff, first and maximum.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Keeps the objects of one kind current in the graph.
pub struct Monitor {
    pub client: MetadataClient,
    pub shared: Arc<Shared>,
    pub kind: KindId,
    /// Number of this monitor; it selects the connection.
    pub number: usize,
    /// URL path of the kind's objects.
    pub path: String,
    /// Slots for pages of lists.
    pub pages: Arc<Semaphore>,
}

/// Why a list or watch ended early.
enum StreamEnd {
    /// The resourceVersion is expired, or the server cannot continue from it: a relist is needed.
    Expired(String),
    /// A failure. The watch may continue at its last resourceVersion.
    Failed(ApiError),
}

/// URL path of all objects of a resource.
pub fn collection(group: &str, resource: &Resource) -> String {
    format!("{}/{}", path_of(group, &resource.version), resource.plural)
}

// === impl Monitor ===

impl Monitor {
    /// Runs until it is dropped.
    pub async fn run(self) {
        let (first, max) = BACKOFF;
        let (mut needs_list, mut is_early, mut pause) = (true, false, first);
        loop {
            let started = Instant::now();
            let was_watched = !needs_list;
            let step = match was_watched {
                false => self.list().await,
                true => self.watch(is_early).await,
            };
            let lasted = started.elapsed();
            let is_short = was_watched && lasted < MIN_WATCH;
            is_early = was_watched && lasted < LIFETIME / 2;
            if was_watched && lasted >= pause.max(MIN_WATCH) {
                pause = first;
            }
            if was_watched {
                self.shared.watch_ended(self.kind);
            }
            let backoff = match step {
                Ok(()) => {
                    needs_list = false;
                    // Otherwise a server or proxy that closes each watch at once would get requests without a pause.
                    is_short.then_some(pause)
                }
                Err(StreamEnd::Expired(why)) => {
                    tracing::info!(path = self.path, why, "Watch cannot continue; relisting");
                    needs_list = true;
                    // Repeated expiry is a problem of the server.
                    Some(pause)
                }
                Err(StreamEnd::Failed(error)) => {
                    let failing_for = self.shared.watch_failed(self.kind, &error);
                    // While the API server cannot read an object, it refuses watches for overload. A list has the cause.
                    needs_list |= error.code().is_some() && failing_for >= RELIST_AFTER;
                    Some(error.retry_after().unwrap_or(pause))
                }
            };
            if let Some(backoff) = backoff {
                sleep(self.jitter(backoff)).await;
                pause = (pause * 2).min(max);
            } else if was_watched {
                pause = first;
            }
        }
    }

    /// Lists all pages.
    async fn list(&self) -> Result<(), StreamEnd> {
        self.shared.begin_list(self.kind);
        let mut token = String::new();
        loop {
            // Not for long: those that have a slot may hang.
            let _slot = timeout(MAX_SLOT_WAIT, self.pages.acquire()).await;
            let mut chunks = self.page(&token).await?;
            let mut page = PageReader::new(chunks.is_protobuf);
            while let Some(chunk) = chunks.next(CHUNK_TIMEOUT).await? {
                let read = self.shared.apply_list(self.kind, |each| page.read(&chunk, each));
                read.map_err(|error| chunks.unreadable(error))?;
            }
            let end = self.shared.apply_list(self.kind, |each| page.finish(each));
            let end = end.map_err(|error| chunks.unreadable(error))?;
            token = end.continue_token;
            if token.is_empty() {
                self.shared.end_list(self.kind, end.version);
                return Ok(());
            }
        }
    }

    /// Requests a page. A server that is overloaded gets the same request again after the pause that it asks for: a list that
    /// restarts would request all earlier pages again, and a list that fails has each unknown owner requested.
    async fn page(&self, token: &str) -> Result<AnswerStream, StreamEnd> {
        let path = format!("{}?limit={PAGE_SIZE}&continue={}", self.path, escape(token));
        let (lane, give_up) = (Lane::Kind(self.number), Instant::now() + PAGE_PATIENCE);
        loop {
            match self.client.stream(lane, "LIST", &path, wire::LIST).await {
                Err(error)
                    if let Some(pause) = error.retry_after()
                        && Instant::now() + pause < give_up =>
                {
                    tracing::debug!(kind = self.path, %error, ?pause, "Page of a list was refused; it is requested again");
                    sleep(pause).await;
                }
                answer => return Ok(answer?),
            }
        }
    }

    /// Watches from the last resourceVersion on until the server ends the watch.
    async fn watch(&self, is_early: bool) -> Result<(), StreamEnd> {
        let from = self.shared.last_version(self.kind);
        let lifetime = self.jitter(LIFETIME).as_secs();
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={from}&timeoutSeconds={lifetime}",
            self.path
        );
        let chunks = self.client.stream(Lane::Kind(self.number), "WATCH", &path, wire::WATCH);
        let mut chunks = chunks.await?;
        self.shared
            .watch_started(self.kind, is_early, chunks.last_received.clone());
        let mut watch = WatchReader::new(chunks.is_protobuf);
        loop {
            let chunk = match chunks.next(EVENT_TIMEOUT).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(error) if matches!(error.kind, ErrorKind::Timeout(_)) => break,
                Err(error) => return Err(error.into()),
            };
            let events = watch.read(&chunk).map_err(|error| chunks.unreadable(error))?;
            let expired = events.iter().find_map(|event| match event {
                // The API server could not decode an object. Its deletion may go without an event, so only a list shows
                // it.
                WatchEvent::Error(410 | 500, message) => Some(StreamEnd::Expired(message.clone())),
                WatchEvent::Error(code, message) => {
                    Some(StreamEnd::Failed(chunks.unreadable(format!("{code} {message}"))))
                }
                WatchEvent::Applied(_) | WatchEvent::Deleted(_) | WatchEvent::Bookmark { .. } => None,
            });
            self.shared.events(self.kind, &events);
            if let Some(expired) = expired {
                return Err(expired);
            }
        }
        Ok(())
    }

    /// A random time between half of `whole` and `whole`.
    fn jitter(&self, whole: Duration) -> Duration {
        let half = whole / 2;
        let random = RandomState::new().hash_one(self.number);
        let max = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
        half + Duration::from_millis(random % (max + 1))
    }
}

// === impl StreamEnd ===

impl From<ApiError> for StreamEnd {
    fn from(error: ApiError) -> Self {
        match error.code() {
            Some(410) => Self::Expired(error.to_string()),
            _ => Self::Failed(error),
        }
    }
}
