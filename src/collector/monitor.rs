//! List and watch of one kind.

use std::{
    hash::{BuildHasher as _, RandomState},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, sleep, timeout};

use super::{
    discovery::path_of,
    kinds::{KindId, Resource},
    shared::Shared,
    turns::{Turn, Turns},
    wire::{self, PageReader, WatchEvent, WatchReader},
};
use crate::api::{ApiError, Lane, MetadataClient, escape};

/// Objects per page.
const PAGE: usize = 500;
/// `timeoutSeconds` of a watch is a random time between half of this and this.
const LIFETIME: Duration = Duration::from_secs(600);
/// A watch without any event for this time has lost its connection: the API server sends a bookmark about once a
/// minute.
const SILENCE: Duration = Duration::from_secs(180);
/// Maximum time between two pieces of a page.
const PIECE: Duration = Duration::from_secs(60);
/// A list without a piece for this time releases its slot.
const QUIET: Duration = Duration::from_secs(2);
/// A watch that ended earlier counts as failed.
const SHORT: Duration = Duration::from_secs(1);
/// Backoff, first and maximum.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// See the module's documentation.
pub struct Monitor {
    /// Sends the requests.
    pub client: MetadataClient,
    /// The collector's state.
    pub shared: Arc<Shared>,
    /// The kind.
    pub kind: KindId,
    /// Number of this monitor; it selects the connection.
    pub number: usize,
    /// URL path of the kind's objects.
    pub path: String,
    /// The kind's group.
    pub group: Arc<str>,
    /// Slots for lists.
    pub turns: Arc<Turns>,
}

/// Why a list or watch ended early.
enum Ended {
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
        let (first, most) = BACKOFF;
        let (mut from, mut pause): (Option<String>, Duration) = (None, first);
        let (mut early, mut has_failed) = (false, false);
        loop {
            let begun = Instant::now();
            let step = match &from {
                None => {
                    let listed = self.list(has_failed).await;
                    has_failed = listed.is_err();
                    listed.map(Some)
                }
                Some(version) => self.watch(version, early).await.map(Some),
            };
            let (was_watched, lasted) = (from.is_some(), begun.elapsed());
            let is_short = was_watched && lasted < SHORT;
            early = was_watched && lasted < LIFETIME / 2;
            if was_watched && lasted >= pause.max(SHORT) {
                pause = first;
            }
            match step {
                Ok(version) => {
                    from = version;
                    if is_short {
                        // Otherwise a server or proxy that closes each watch at once would get requests without a
                        // pause.
                        sleep(self.jitter(pause)).await;
                        pause = (pause * 2).min(most);
                    } else if was_watched {
                        pause = first;
                    }
                }
                Err(Ended::Expired(why)) => {
                    tracing::info!(path = self.path, why, "Watch cannot continue; relisting");
                    from = None;
                    // Repeated expiry is a problem of the server.
                    sleep(self.jitter(pause)).await;
                    pause = (pause * 2).min(most);
                }
                Err(Ended::Failed(error)) => {
                    self.shared.troubled(self.kind, &error);
                    from = from.map(|from| self.shared.version(self.kind).unwrap_or(from));
                    sleep(self.jitter(error.retry_after().unwrap_or(pause))).await;
                    pause = (pause * 2).min(most);
                }
            }
        }
    }

    /// Lists all pages; returns the list's resourceVersion.
    async fn list(&self, has_failed: bool) -> Result<String, Ended> {
        let mut turn = self.turns.wait(&self.group, has_failed).await;
        self.shared.begin_list(self.kind);
        let mut token = String::new();
        loop {
            let path = format!("{}?limit={PAGE}&continue={}", self.path, escape(&token));
            let pieces = self.pieces("LIST", &path, wire::LIST);
            let mut pieces = self.in_turn(&mut turn, pieces).await?;
            let mut page = PageReader::new(pieces.is_protobuf);
            while let Some(piece) = self.in_turn(&mut turn, pieces.next(PIECE)).await? {
                let read = self.shared.list_piece(self.kind, |each| page.read(&piece, each));
                read.map_err(|error| pieces.unreadable(error))?;
            }
            let end = self.shared.list_piece(self.kind, |each| page.finish(each));
            let end = end.map_err(|error| pieces.unreadable(error))?;
            token = end.continue_token;
            if token.is_empty() {
                let ended = self.shared.end_list(self.kind, &end.version);
                ended.map_err(|error| pieces.unreadable(error))?;
                return Ok(end.version);
            }
        }
    }

    /// Waits for `more` of a list. A silent list releases its slot, and acquires a new one before it continues.
    async fn in_turn<T, E>(&self, turn: &mut Option<Turn>, more: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let mut more = pin!(more);
        if let Ok(more) = timeout(QUIET, &mut more).await {
            return more;
        }
        *turn = None;
        let more = more.await?;
        *turn = self.turns.wait(&self.group, false).await;
        Ok(more)
    }

    /// Watches from a resourceVersion on until the server ends the watch. Returns the last resourceVersion.
    async fn watch(&self, from: &str, early: bool) -> Result<String, Ended> {
        let lifetime = self.jitter(LIFETIME).as_secs();
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={lifetime}",
            self.path,
            escape(from),
        );
        let mut pieces = self.pieces("WATCH", &path, wire::WATCH).await?;
        self.shared.watching(self.kind, early);
        let mut watch = WatchReader::new(pieces.is_protobuf);
        while let Some(piece) = pieces.next(SILENCE).await? {
            let events = watch.read(&piece).map_err(|error| pieces.unreadable(error))?;
            let expired = events.iter().find_map(|event| match event {
                // The API server could not decode an object. Its deletion may go without an event, so only a list shows
                // it.
                WatchEvent::Error(410 | 500, message) => Some(Ended::Expired(message.clone())),
                WatchEvent::Error(code, message) => Some(Ended::Failed(pieces.unreadable(format!("{code} {message}")))),
                WatchEvent::Seen(_) | WatchEvent::Gone(_) | WatchEvent::Bookmark { .. } => None,
            });
            let told = self.shared.events(self.kind, &events);
            told.map_err(|error| pieces.unreadable(error))?;
            if let Some(expired) = expired {
                return Err(expired);
            }
        }
        Ok(self.shared.version(self.kind).unwrap_or_else(|| from.to_owned()))
    }

    async fn pieces(&self, verb: &'static str, path: &str, accept: &'static str) -> Result<crate::api::Pieces, Ended> {
        let pieces = self.client.pieces(Lane::Kind(self.number), verb, path, accept).await;
        pieces.map_err(|error| {
            if error.is_expired() {
                Ended::Expired(error.to_string())
            } else {
                Ended::Failed(error)
            }
        })
    }

    /// A random time between half of `whole` and `whole`.
    fn jitter(&self, whole: Duration) -> Duration {
        let half = whole / 2;
        let random = RandomState::new().hash_one(self.number);
        let most = u64::try_from(half.as_millis()).unwrap_or(u64::MAX);
        half + Duration::from_millis(random % (most + 1))
    }
}

// === impl Ended ===

impl From<ApiError> for Ended {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}
