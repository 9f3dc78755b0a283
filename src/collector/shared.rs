//! The collector's state behind a lock, as the monitors and the engine share it. No method awaits anything.

use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    core::{Core, NextRequest},
    graph::Observed,
    kinds::KindId,
    outage::Outage,
    sync_state::WatchedKind,
    wire::WatchEvent,
};
use crate::{
    api::{ApiError, LastReceived},
    events::Events,
};

/// The locked state, with the notifications of its tasks.
#[derive(Debug, Default)]
pub struct Shared {
    core: Mutex<Core>,
    /// Wakes the engine: the queue has new items.
    pub wake: Notify,
    /// Wakes discovery before its time.
    pub discovery_needed: Notify,
    /// Why the collector has to restart without its state, once it has to.
    pub restart_reason: watch::Sender<Option<String>>,
    events: Option<Events>,
}

// === impl Shared ===

impl Shared {
    /// Reports wrong owner references and delayed deletions as events.
    pub fn with_events(self, events: Events) -> Self {
        Self {
            events: Some(events),
            ..self
        }
    }

    /// The next request, if an item is ready that needs one.
    pub fn next_request(&self, now: Instant) -> NextRequest {
        let mut core = self.lock();
        let next = core.next_request(now);
        if std::mem::take(&mut core.sync_state.needs_discovery) {
            self.discovery_needed.notify_one();
        }
        for (object, reason, message) in std::mem::take(&mut core.object_events.pending) {
            tracing::warn!(
                uid = object.uid,
                %reason,
                message,
                "Object needs attention"
            );
            if let Some(events) = &self.events {
                events.record(&object, reason, &message);
            }
        }
        next
    }

    /// Locks the state.
    pub fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Changes the state, and wakes the engine if the queue has new items.
    pub fn with<T>(&self, act: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.lock();
        let done = act(&mut core);
        if core.enqueue_items() {
            self.wake.notify_one();
        }
        done
    }

    /// Starts a list of a kind.
    pub fn begin_list(&self, kind: KindId) {
        self.with(|core| {
            if core.sync_state.watched.get(&kind).is_some_and(|it| it.synced) {
                core.recheck_absent();
            }
            core.graph.begin_list(kind);
        });
    }

    /// Applies the objects that `read` decodes.
    pub fn apply_list<T>(&self, kind: KindId, read: impl FnOnce(&mut dyn FnMut(Observed)) -> T) -> T {
        self.with(|core| {
            let graph = &mut core.graph;
            read(&mut |object| graph.observe(kind, &object))
        })
    }

    /// Completes a list.
    pub fn end_list(&self, kind: KindId, version: u64) {
        self.with(|core| {
            let Some(watched) = core.sync_state.watched.get_mut(&kind) else {
                return;
            };
            if self.is_restore(watched, version) {
                return;
            }
            watched.progress = version;
            watched.last_event = Some(Instant::now());
            if let Some(failure) = &mut watched.failure {
                // A watch from this resourceVersion misses nothing.
                failure.is_listed = true;
            }
            if core.graph.end_list(kind, version) {
                let why = "a list shows an earlier state of an object than the graph has";
                let why = format!("the store was restored from a backup: {why}, of {}", watched.name());
                self.restart_reason.send_replace(Some(why));
            }
            if !watched.synced {
                watched.synced = true;
                core.graph.enqueue_unknown(kind);
            }
        });
    }

    /// Applies watch events.
    pub fn events(&self, kind: KindId, events: &[WatchEvent]) {
        self.with(|core| {
            self.record_answer(core);
            let Some(watched) = core.sync_state.watched.get_mut(&kind) else {
                return;
            };
            watched.last_event = Some(Instant::now());
            for event in events {
                let version = match event {
                    WatchEvent::Applied(object) | WatchEvent::Deleted(object) => object.version,
                    WatchEvent::Bookmark { version } => *version,
                    WatchEvent::Error(..) => continue,
                };
                if self.is_restore(watched, version) {
                    return;
                }
                watched.progress = version;
                match event {
                    WatchEvent::Applied(object) => core.graph.observe(kind, object),
                    WatchEvent::Deleted(object) => core.graph.apply_deletion(kind, &object.uid),
                    WatchEvent::Bookmark { .. } | WatchEvent::Error(..) => continue,
                }
                core.counts.events += 1;
            }
        });
    }

    /// Whether `version` is lower than the last one: the store was restored from a backup, and the graph may be wrong.
    fn is_restore(&self, watched: &WatchedKind, version: u64) -> bool {
        let is_older = version < watched.progress;
        if is_older {
            let (name, before) = (watched.name(), watched.progress);
            let why =
                format!("the store was restored from a backup: {name} show resourceVersion {version} after {before}");
            self.restart_reason.send_replace(Some(why));
        }
        is_older
    }

    /// Records that a watch is open; `is_early` if the one before it ended early.
    pub fn watch_started(&self, kind: KindId, is_early: bool, last_received: LastReceived) {
        self.with(|core| {
            self.record_answer(core);
            let Some(watched) = core.sync_state.watched.get_mut(&kind) else {
                return;
            };
            let has_failed = watched.open_watch(last_received, Instant::now());
            if has_failed {
                // [`super::failing_kinds`] logs all kinds together.
                tracing::debug!(resource = watched.name(), "Kind is watched again");
            }
            if is_early || has_failed {
                core.recheck_absent();
            }
        });
    }

    /// Records that a watch is no longer open.
    pub fn watch_ended(&self, kind: KindId) {
        self.with(|core| {
            if let Some(watched) = core.sync_state.watched.get_mut(&kind) {
                watched.close_watch(Instant::now());
            }
        });
    }

    /// Records that a list or watch failed. Returns for how long it has.
    pub fn watch_failed(&self, kind: KindId, error: &ApiError) -> Duration {
        self.with(|core| {
            core.counts.failed("watch", error);
            let Some(watched) = core.sync_state.watched.get_mut(&kind) else {
                return Duration::ZERO;
            };
            let now = Instant::now();
            if watched.fail(error, now) {
                tracing::debug!(resource = watched.name(), %error, "Kind cannot be watched; will retry");
                // GETs of its objects waited for its list; they are sent now.
                core.graph.enqueue_unknown(kind);
            }
            let since = watched.failure(now).map_or(now, |failure| failure.since);
            now.saturating_duration_since(since)
        })
    }

    /// Ends a pause of the engine: the API server answers.
    fn record_answer(&self, core: &mut Core) {
        if core.queue.outage.is_present() {
            core.queue.outage = Outage::default();
            self.wake.notify_one();
        }
    }

    /// The last resourceVersion that a kind has reported; 0 without one.
    pub fn last_version(&self, kind: KindId) -> u64 {
        let core = self.lock();
        core.sync_state.watched.get(&kind).map_or(0, |watched| watched.progress)
    }
}
