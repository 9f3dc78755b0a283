//! What those who watch and those who act share: the core behind a lock. Nothing here waits for anything but that.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    core::Core,
    graph::Observed,
    kinds::KindId,
    sight::{Trouble, Watched},
    wire::WatchEvent,
    work::Work,
};
use crate::{api::ApiError, collector::Unsynced, events::Events, model::event::Reason};

/// See the module's documentation.
#[derive(Debug)]
pub struct Shared {
    core: Mutex<Core>,
    /// Something may be to do.
    pub wake: Notify,
    /// The kinds that are served are to be discovered before it is time.
    pub discover: Notify,
    /// Why all that is known has to be forgotten, once it has.
    pub lost: watch::Sender<Option<String>>,
    events: Option<Events>,
    nap: Option<Duration>,
}

/// The server said something that makes no sense here.
#[derive(Debug, thiserror::Error)]
pub enum Nonsense {
    /// Versions have to be numbers, or nothing can be told of their order.
    #[error("the resourceVersion {0:?} is no number")]
    Version(String),
}

// === impl Shared ===

impl Shared {
    /// Nothing is known.
    pub fn new(unsynced: Unsynced) -> Self {
        Self {
            core: Mutex::new(Core::new(unsynced)),
            wake: Notify::new(),
            discover: Notify::new(),
            lost: watch::Sender::new(None),
            events: None,
            nap: None,
        }
    }

    /// The thread is the collector's own, and may sleep so long while many requests are under way.
    pub fn with_naps(self, nap: Duration) -> Self {
        Self { nap: Some(nap), ..self }
    }

    /// How long the thread may sleep while many requests are under way.
    pub fn nap(&self) -> Option<Duration> {
        self.nap
    }

    /// Tells of references to owners of other namespaces in events.
    pub fn with_events(self, events: Events) -> Self {
        Self {
            events: Some(events),
            ..self
        }
    }

    /// Foreground deletions wait so long for an aggregated group that cannot be reached.
    pub fn with_aggregated_hold(self, hold: Duration) -> Self {
        self.lock().sight.aggregated_hold = hold;
        self
    }

    /// The next thing that takes a request; `false` beside it: there may be more.
    pub fn next(&self, now: Instant) -> (Option<Work>, bool) {
        let mut core = self.lock();
        let next = core.next(now);
        if std::mem::take(&mut core.sight.needs_discovery) {
            self.discover.notify_one();
        }
        for (dependent, message) in core.misplaced.take() {
            tracing::warn!(
                uid = dependent.uid,
                message,
                "An owner reference names an object of another namespace"
            );
            if let Some(events) = &self.events {
                events.object(&dependent, Reason::OwnerRefInvalidNamespace, &message);
            }
        }
        for (object, message) in core.delayed.take() {
            tracing::warn!(uid = object.uid, message, "A foreground deletion is delayed");
            if let Some(events) = &self.events {
                events.object(&object, Reason::ForegroundDeletionDelayed, &message);
            }
        }
        next
    }

    /// All of it, for a moment.
    pub fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something to it, and wakes those who act if that leaves something to do.
    pub fn with<T>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let done = act(&mut core);
        if core.note() {
            self.wake.notify_one();
        }
        done
    }

    /// A list of a kind begins.
    pub fn begin_list(&self, kind: KindId) {
        self.with(|core| {
            if core.sight.watched.get(&kind).is_some_and(|it| it.synced) {
                core.doubt();
            }
            core.graph.begin_list(kind);
        });
    }

    /// Takes the objects that `read` tells of a list.
    pub fn list_piece<T>(&self, kind: KindId, read: impl FnOnce(&mut dyn FnMut(Observed)) -> T) -> T {
        self.with(|core| {
            let graph = &mut core.graph;
            read(&mut |object| graph.observe(kind, &object))
        })
    }

    /// The list is complete.
    pub fn end_list(&self, kind: KindId, version: &str) -> Result<(), Nonsense> {
        let number = number(version)?;
        self.with(|core| {
            let Some(watched) = core.sight.watched.get_mut(&kind) else {
                return;
            };
            if self.went_back(watched, number) {
                return;
            }
            watched.progress = number;
            watched.told = Some(Instant::now());
            watched.trouble = None;
            core.graph.end_list(kind, number);
            if !watched.synced {
                watched.synced = true;
                core.graph.ask_all(kind);
            }
        });
        Ok(())
    }

    /// Takes events of a watch.
    pub fn events(&self, kind: KindId, events: &[WatchEvent]) -> Result<(), Nonsense> {
        self.with(|core| {
            let Some(watched) = core.sight.watched.get_mut(&kind) else {
                return Ok(());
            };
            watched.told = Some(Instant::now());
            for event in events {
                let version = match event {
                    WatchEvent::Seen(object) | WatchEvent::Gone(object) => &object.version,
                    WatchEvent::Bookmark { version, .. } => version,
                    WatchEvent::Error(..) => continue,
                };
                let version = number(version)?;
                if self.went_back(watched, version) {
                    return Ok(());
                }
                watched.progress = version;
                match event {
                    WatchEvent::Seen(object) => core.graph.observe(kind, object),
                    WatchEvent::Gone(object) => core.graph.vanished(kind, &object.uid),
                    WatchEvent::Bookmark { .. } | WatchEvent::Error(..) => continue,
                }
                core.counts.events += 1;
            }
            Ok(())
        })
    }

    /// The highest version that was told of this resource of the core group.
    pub fn told_of(&self, plural: &str) -> u64 {
        let core = self.lock();
        let mut all = core.sight.watched.values();
        let found = all.find(|it| it.group.is_empty() && it.resource.plural == plural);
        found.map_or(0, |watched| watched.progress)
    }

    /// A consistent list of this resource shows the store at this version, where it was at `before` when it was asked.
    pub fn store_is_at(&self, plural: &str, version: u64, before: u64) {
        if version < before {
            self.put_back(plural, version, before);
        }
    }

    /// All that is known may be wrong where the store was put back to an older state.
    fn went_back(&self, watched: &Watched, version: u64) -> bool {
        let goes_back = version < watched.progress;
        if goes_back {
            self.put_back(&watched.name(), version, watched.progress);
        }
        goes_back
    }

    fn put_back(&self, plural: &str, version: u64, before: u64) {
        let why = format!(
            "the store is at version {version}, as {plural} tell, where it was at {before} before: it was put back"
        );
        self.lost.send_replace(Some(why));
    }

    /// The watch of a kind goes on; `anew` if the one before it ended before its time.
    pub fn watching(&self, kind: KindId, anew: bool) {
        self.with(|core| {
            let watched = core.sight.watched.get_mut(&kind);
            let trouble = watched.and_then(|watched| {
                watched.trouble.take()?;
                Some(watched.name())
            });
            if let Some(resource) = &trouble {
                // The log is told of all of them together.
                tracing::debug!(resource, "A kind is watched again");
            }
            if anew || trouble.is_some() {
                core.doubt();
            }
        });
    }

    /// The list or watch of a kind failed.
    pub fn troubled(&self, kind: KindId, error: &ApiError) {
        self.with(|core| {
            core.counts.failed("watch", error);
            let Some(watched) = core.sight.watched.get_mut(&kind) else {
                return;
            };
            let is_new = watched.trouble.is_none();
            let since = watched.trouble.take().map_or_else(Instant::now, |before| before.since);
            watched.trouble = Some(Trouble {
                text: error.to_string(),
                reason: error.in_a_word(),
                since,
            });
            if is_new {
                tracing::debug!(resource = watched.name(), %error, "A kind cannot be watched");
                // Its owners were waited for; now they are asked for one by one.
                core.graph.ask_all(kind);
            }
        });
    }

    /// How far the watch of a kind has come.
    pub fn version(&self, kind: KindId) -> Option<String> {
        let core = self.lock();
        let progress = core.sight.watched.get(&kind)?.progress;
        (progress > 0).then(|| progress.to_string())
    }
}

fn number(version: &str) -> Result<u64, Nonsense> {
    version.parse().map_err(|_| Nonsense::Version(version.to_owned()))
}
