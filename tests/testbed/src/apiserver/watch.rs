//! Watches: where one starts, and the stream of events that it is.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::accept::{Form, Shape};
use super::encode;
use super::error::ApiError;
use super::faults::Action;
use super::history::Change;
use super::kinds::Kind;
use super::list::parse_version;
use super::query::Query;
use super::requests::Asked;
use super::route::Target;
use super::selector::Selector;
use super::shared::Shared;
use super::store::Store;
use super::stored::Stored;

/// A watch without a timeout ends after this time and up to as much again.
const SHORTEST: Duration = Duration::from_secs(30 * 60);

/// How often a watch that wants bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// How long before its end a watch sends the last bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// What a watch asks for.
#[derive(Debug)]
pub struct WatchOptions {
    selector: Selector,
    /// The version after which it starts; without one, it starts with all that is there.
    after: Option<u64>,
    bookmarks: bool,
    timeout: Duration,
}

/// A running watch.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    asked: Asked,
    kind: &'static Kind,
    prefix: String,
    form: Form,
    options: WatchOptions,
    /// Number of resets of the table when this watch started: after another one, it ends.
    life: u64,
    /// The next event in the table's history.
    place: u64,
    /// Events up to this version are not sent.
    after: u64,
    events: VecDeque<Pending>,
    changes: watch::Receiver<()>,
    faults: watch::Receiver<()>,
    end: Instant,
    next_bookmark: Instant,
    over: bool,
}

/// Events to be sent.
#[derive(Debug)]
enum Pending {
    /// Of an object. It is encoded when its turn comes: what is there at first may be much.
    Object(Change, Arc<Stored>),
    /// Of something else.
    Encoded(Bytes),
}

impl WatchOptions {
    /// Reads the query of a watch.
    pub fn parse(query: &Query, selector: Selector) -> Result<Self, ApiError> {
        let version = match query.get("resourceVersion") {
            // A watch answers this with an error that has no reason, unlike a list.
            Some(text) => Some(parse_version(text).map_err(|error| ApiError::internal(error.message))?),
            None => None,
        };
        let timeout = query
            .number("timeoutSeconds")?
            .and_then(|seconds| u64::try_from(seconds).ok());
        Ok(WatchOptions {
            selector,
            after: version.filter(|version| *version != 0),
            bookmarks: query.flag("allowWatchBookmarks")?.unwrap_or_default(),
            timeout: timeout
                .filter(|seconds| *seconds > 0)
                .map_or_else(random_timeout, Duration::from_secs),
        })
    }
}

fn random_timeout() -> Duration {
    SHORTEST + SHORTEST * u32::from(Uuid::new_v4().as_bytes()[0]) / u32::from(u8::MAX)
}

impl Watch {
    /// Starts a watch. An invalid start is reported in the stream, as the API server does.
    pub fn start(shared: &Arc<Shared>, asked: Asked, target: &Target, form: Form, options: WatchOptions) -> Self {
        let now = Instant::now();
        let store = shared.store();
        let table = store.table(target.kind);
        let mut watch = Watch {
            shared: Arc::clone(shared),
            asked,
            kind: target.kind,
            prefix: target.prefix(),
            form,
            life: table.life(),
            place: table.end(),
            after: store.version(),
            events: VecDeque::new(),
            changes: table.changes(),
            faults: shared.faults.changes(),
            end: now + options.timeout,
            next_bookmark: now + BOOKMARK_EVERY,
            over: false,
            options,
        };
        match watch.options.after {
            None => watch.tell_everything(&store),
            Some(version) => match table.check(version) {
                Ok(()) => {
                    watch.place = table.place_after(version);
                    watch.after = version;
                }
                Err(gone) => {
                    let message = format!("too old resource version: {version} ({})", gone.floor);
                    watch.fail(&ApiError::expired(message));
                }
            },
        }
        drop(store);
        if form.shape == Shape::MetadataList {
            // No event can report this: the stream ends before the first one.
            watch.events.clear();
            watch.over = true;
        }
        watch
    }

    /// How the events are written.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The next event; none at the end, an error where the connection breaks.
    pub async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(fault) = self.shared.faults.for_watch(&self.asked) {
                match fault {
                    Action::StallWatch => std::future::pending().await,
                    Action::PauseWatch { millis } => {
                        sleep(Duration::from_millis(millis)).await;
                        continue;
                    }
                    Action::FailWatch => {
                        self.fail(&ApiError::storage_read());
                        continue;
                    }
                    _ => return Some(Err(io::Error::other("cut by a fault"))),
                }
            }
            match self.events.pop_front() {
                Some(Pending::Object(change, object)) => {
                    return Some(Ok(encode::event(self.form, self.kind, change, &object)));
                }
                Some(Pending::Encoded(event)) => return Some(Ok(event)),
                None => {}
            }
            if self.over {
                return None;
            }
            self.collect();
            if self.events.is_empty() && !self.over {
                self.wait().await;
            }
        }
    }

    async fn wait(&mut self) {
        let last = self.end - LAST_BOOKMARK;
        tokio::select! {
            biased;
            // Something was written; the history has it. The sender lives as long as the store.
            _ = self.changes.changed() => {}
            // A fault may be meant for this watch.
            _ = self.faults.changed() => {}
            () = sleep_until(self.end) => self.over = true,
            () = sleep_until(self.next_bookmark), if self.options.bookmarks => {
                let now = Instant::now();
                let regular = now + BOOKMARK_EVERY;
                self.next_bookmark = if now < last { regular.min(last) } else { self.end + LAST_BOOKMARK };
                self.tell_bookmark();
            }
        }
    }

    /// Takes what has happened since the last time. A reader so slow that history was dropped is cut off.
    fn collect(&mut self) {
        let store = self.shared.store();
        let table = store.table(self.kind);
        let Some(events) = table.since(self.place) else {
            self.over = true;
            return;
        };
        let seen = events
            .filter(|event| event.version > self.after)
            .filter(|event| event.is_seen_by(&self.prefix, &self.options.selector));
        self.events
            .extend(seen.map(|event| Pending::Object(event.change, Arc::clone(&event.object))));
        self.place = table.end();
        // Events before the reset are sent first.
        self.over |= table.life() != self.life;
    }

    fn tell_everything(&mut self, store: &Store) {
        let objects = store.table(self.kind).range(&self.prefix, "");
        let selected = objects.filter(|object| self.options.selector.matches(object));
        self.events
            .extend(selected.map(|object| Pending::Object(Change::Added, Arc::clone(object))));
        if self.options.bookmarks {
            self.tell_of(encode::bookmark(self.form, self.kind, store.version(), true));
        }
    }

    /// Says how far the world is, if it is farther than where the watch began.
    fn tell_bookmark(&mut self) {
        self.collect();
        let version = self.shared.store().version();
        if version > self.after {
            self.tell_of(encode::bookmark(self.form, self.kind, version, false));
        }
    }

    fn fail(&mut self, error: &ApiError) {
        self.tell_of(encode::failure(self.form, error));
        self.over = true;
    }

    fn tell_of(&mut self, event: Bytes) {
        self.events.push_back(Pending::Encoded(event));
    }
}
