//! The collector's state behind a lock, as the monitors and the engine share it. No method awaits anything.

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
    /// Wakes the engine: the queue has new items.
    pub wake: Notify,
    /// Wakes discovery before its time.
    pub discover: Notify,
    /// Why the collector has to restart without its state, once it has to.
    pub lost: watch::Sender<Option<String>>,
    events: Option<Events>,
    nap: Option<Duration>,
}

/// Invalid data of the API server.
#[derive(Debug, thiserror::Error)]
pub enum Nonsense {
    /// A resourceVersion has to be a number: they are compared.
    #[error("the resourceVersion {0:?} is no number")]
    Version(String),
}

// === impl Shared ===

impl Shared {
    /// A collector without any objects.
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

    /// Allows the engine's thread to sleep for this time under full load. The thread must have no other tasks.
    pub fn with_naps(self, nap: Duration) -> Self {
        Self { nap: Some(nap), ..self }
    }

    /// How long the engine's thread may sleep under full load.
    pub fn nap(&self) -> Option<Duration> {
        self.nap
    }

    /// Reports wrong owner references and delayed deletions as events.
    pub fn with_events(self, events: Events) -> Self {
        Self {
            events: Some(events),
            ..self
        }
    }

    /// Sets `--gc-aggregated-hold`.
    pub fn with_aggregated_hold(self, hold: Duration) -> Self {
        self.lock().sight.aggregated_hold = hold;
        self
    }

    /// The next request, if there is one. `false` says that more items may be ready now.
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
                "Owner reference names an object of another namespace"
            );
            if let Some(events) = &self.events {
                events.object(&dependent, Reason::OwnerRefInvalidNamespace, &message);
            }
        }
        for (object, message) in core.delayed.take() {
            tracing::warn!(uid = object.uid, message, "Foreground deletion delayed");
            if let Some(events) = &self.events {
                events.object(&object, Reason::ForegroundDeletionDelayed, &message);
            }
        }
        next
    }

    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes the engine if the queue has new items.
    pub fn with<T>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let done = act(&mut core);
        if core.note() {
            self.wake.notify_one();
        }
        done
    }

    /// Starts a list of a kind.
    pub fn begin_list(&self, kind: KindId) {
        self.with(|core| {
            if core.sight.watched.get(&kind).is_some_and(|it| it.synced) {
                core.doubt();
            }
            core.graph.begin_list(kind);
        });
    }

    /// Applies the objects that `read` decodes.
    pub fn list_piece<T>(&self, kind: KindId, read: impl FnOnce(&mut dyn FnMut(Observed)) -> T) -> T {
        self.with(|core| {
            let graph = &mut core.graph;
            read(&mut |object| graph.observe(kind, &object))
        })
    }

    /// Completes a list.
    ///
    /// # Errors
    ///
    /// The resourceVersion is no number.
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

    /// Applies watch events.
    ///
    /// # Errors
    ///
    /// A resourceVersion is no number.
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

    /// The highest resourceVersion that the watch of this core resource has reported.
    pub fn told_of(&self, plural: &str) -> u64 {
        let core = self.lock();
        let mut all = core.sight.watched.values();
        let found = all.find(|it| it.group.is_empty() && it.resource.plural == plural);
        found.map_or(0, |watched| watched.progress)
    }

    /// Checks the resourceVersion of a consistent list against `before`, the highest one known when the list was sent.
    pub fn store_is_at(&self, plural: &str, version: u64, before: u64) {
        if version < before {
            self.put_back(plural, version, before);
        }
    }

    /// Whether `version` is lower than the last one: the store was restored from a backup, and the graph may be wrong.
    fn went_back(&self, watched: &Watched, version: u64) -> bool {
        let goes_back = version < watched.progress;
        if goes_back {
            self.put_back(&watched.name(), version, watched.progress);
        }
        goes_back
    }

    fn put_back(&self, plural: &str, version: u64, before: u64) {
        let why =
            format!("the store was restored from a backup: {plural} show resourceVersion {version} after {before}");
        self.lost.send_replace(Some(why));
    }

    /// Records that a watch has started; `anew` if the one before it ended early.
    pub fn watching(&self, kind: KindId, anew: bool) {
        self.with(|core| {
            let watched = core.sight.watched.get_mut(&kind);
            let trouble = watched.and_then(|watched| {
                watched.trouble.take()?;
                Some(watched.name())
            });
            if let Some(resource) = &trouble {
                // [`super::watches`] logs all kinds together.
                tracing::debug!(resource, "Kind is watched again");
            }
            if anew || trouble.is_some() {
                core.doubt();
            }
        });
    }

    /// Records that a list or watch failed.
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
                tracing::debug!(resource = watched.name(), %error, "Kind cannot be watched; will retry");
                // GETs of its objects waited for its list; they are sent now.
                core.graph.ask_all(kind);
            }
        });
    }

    /// The last resourceVersion of a kind's watch, if there is one.
    pub fn version(&self, kind: KindId) -> Option<String> {
        let core = self.lock();
        let progress = core.sight.watched.get(&kind)?.progress;
        (progress > 0).then(|| progress.to_string())
    }
}

fn number(version: &str) -> Result<u64, Nonsense> {
    version.parse().map_err(|_| Nonsense::Version(version.to_owned()))
}
