//! Which kinds are synced, and which finalizers have to stay while a kind is not.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    discovery::{FailedGroup, path_of},
    kinds::{KindId, Resource, Scope},
    names::qualified_name,
};
use crate::{
    api::{ApiError, LastReceived, escape},
    words::some_of,
};

/// For so long a watch that was opened after a failure may still deliver what was missed.
const CATCH_UP: Duration = Duration::from_secs(10);
/// For so long, the end of a foreground deletion waits for an aggregated API group whose server cannot be reached, or for a kind that the
/// API server cannot read. Dependents that appear later are deleted in the background.
pub const AGGREGATED_HOLD: Duration = Duration::from_secs(600);

/// Why a finalizer waits for a discovery.
const NO_DISCOVERY: &str = "no discovery has started since the finalizer could be removed";

/// After this time without a watch or a complete first list, the kind's APIService is looked up.
const LOOKUP_AFTER: Duration = Duration::from_secs(10);

/// Class of the answer of an API server that cannot read its store, or whose conversion webhook fails.
const INTERNAL_ERROR: &str = "500";

/// Why a kind with unrepresentable objects is not synced.
const UNREPRESENTABLE: &str = "the UID, name or namespace of an object cannot be represented";

/// The watched kinds, the last discovery, and everything that keeps the collector from being synced.
#[derive(Debug)]
pub struct SyncState {
    pub watched: BTreeMap<KindId, WatchedKind>,
    /// Why discovery was never answered, and since when; `None` once it was.
    discovery_error: Option<(String, Instant)>,
    /// Groups whose kinds discovery has never reported completely, and since when.
    unknown_groups: BTreeMap<String, (FailedGroup, Instant)>,
    /// Groups and versions of aggregated API servers, by their APIServices. Only failing ones are looked up.
    pub aggregated: BTreeSet<(String, String)>,
    /// Kinds with objects whose UID, namespace or name cannot be represented.
    pub unrepresentable: BTreeSet<KindId>,
    /// Start of the last discovery that reported every kind.
    discovered: Option<Instant>,
    /// A discovery is needed before the next regular one.
    pub needs_discovery: bool,
}

#[derive(Debug)]
pub struct WatchedKind {
    /// Its group, empty for the core group.
    pub group: String,
    pub resource: Resource,
    /// Start of its monitor.
    pub started: Instant,
    /// Its first list is complete.
    pub synced: bool,
    /// The highest resourceVersion that it has reported.
    pub progress: u64,
    /// Time of the last answer or event.
    pub last_event: Option<Instant>,
    /// The open watch; `None` between two.
    watch: Option<OpenWatch>,
    /// The last failure of list or watch.
    pub(super) failure: Option<WatchFailure>,
}

#[derive(Debug)]
struct OpenWatch {
    /// Of its connection.
    last_received: LastReceived,
    /// When it has delivered what was missed before it.
    complete_from: Instant,
}

/// Why a finalizer has to stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinalizerHold {
    /// Since the finalizer could be removed, no discovery has started, or no sign of life has come from a watch. The next
    /// discovery brings both.
    Unconfirmed { why: String },
    NotSynced {
        /// Which kinds, and why.
        why: String,
        /// Only aggregated APIs and kinds that the API server cannot read are the cause: the delay is limited by
        /// [`AGGREGATED_HOLD`].
        is_limited: bool,
    },
}

/// A finalizer whose removal needs all kinds to be synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GcFinalizer {
    /// `foregroundDeletion`. A dependent that is seen later is deleted in the background.
    Foreground,
    /// `orphan`. A dependent that is seen later may be deleted, though it should stay.
    Orphan,
}

/// A source of unknown objects.
struct UnknownSource {
    /// A kind, or kinds that are not known by name, and why.
    what: String,
    since: Instant,
    /// Foreground deletions wait for it no longer than [`AGGREGATED_HOLD`].
    is_limited: bool,
}

#[derive(Debug)]
pub struct WatchFailure {
    pub text: String,
    /// Its class, equal for all kinds that fail for the same reason.
    pub reason: String,
    /// Key of the object in the store that the API server cannot read.
    pub unreadable: Option<String>,
    /// A list was complete since.
    pub is_listed: bool,
    pub since: Instant,
}

// === impl SyncState ===

impl Default for SyncState {
    fn default() -> Self {
        Self {
            watched: BTreeMap::new(),
            discovery_error: Some(("discovery has not been answered yet".to_owned(), Instant::now())),
            unknown_groups: BTreeMap::new(),
            aggregated: BTreeSet::new(),
            unrepresentable: BTreeSet::new(),
            discovered: None,
            needs_discovery: false,
        }
    }
}

impl SyncState {
    /// Records that discovery failed. Kinds known before stay.
    pub fn discovery_failed(&mut self, why: String) {
        if let Some((known, _)) = &mut self.discovery_error {
            *known = why;
        }
    }

    /// Records an answer of discovery. `groups` never had all their kinds reported.
    pub fn set_unknown_groups<'a>(
        &mut self,
        groups: impl Iterator<Item = (&'a String, &'a FailedGroup)>,
        now: Instant,
    ) {
        self.discovery_error = None;
        let before = std::mem::take(&mut self.unknown_groups);
        let groups = groups.map(|(name, group)| {
            let since = before.get(name).map_or(now, |(_, since)| *since);
            (name.clone(), (group.clone(), since))
        });
        self.unknown_groups = groups.collect();
    }

    /// Records a discovery that started at `started` and reported every kind. New kinds are watched already.
    pub fn discovery_succeeded(&mut self, started: Instant) {
        self.discovered = Some(started);
    }

    /// Why a finalizer cannot be removed yet; `None` if it can be. `removable_since` is the time since when no known dependent
    /// prevents the removal. A discovery has to start after it: a kind added in between may have a dependent.
    pub fn finalizer_hold(
        &self,
        finalizer: GcFinalizer,
        removable_since: Option<Instant>,
        now: Instant,
    ) -> Option<FinalizerHold> {
        let is_delay = |it: &UnknownSource| it.is_limited && finalizer == GcFinalizer::Foreground;
        let is_expired = |it: &UnknownSource| is_delay(it) && now >= it.since + AGGREGATED_HOLD;
        let unknown_sources: Vec<UnknownSource> = self.unknown_sources(now).filter(|it| !is_expired(it)).collect();
        if !unknown_sources.is_empty() {
            return Some(FinalizerHold::NotSynced {
                is_limited: unknown_sources.iter().all(is_delay),
                why: format!("not synced: {}", describe(unknown_sources)?),
            });
        }
        let why = self.unconfirmed_reason(removable_since?, now)?;
        Some(FinalizerHold::Unconfirmed { why })
    }

    /// Why dependents from before `time` may be unknown, although every kind is synced. Kinds that are not are passed over.
    fn unconfirmed_reason(&self, time: Instant, now: Instant) -> Option<String> {
        if self.discovered.is_none_or(|started| started < time) {
            return Some(NO_DISCOVERY.to_owned());
        }
        let is_unconfirmed = |it: &&WatchedKind| it.unsynced_since(now).is_none() && !it.is_complete_until(time);
        let silent: Vec<String> = self
            .watched
            .values()
            .filter(is_unconfirmed)
            .map(WatchedKind::name)
            .collect();
        let silent = (!silent.is_empty()).then(|| some_of(silent))?;
        Some(format!(
            "the watch connection of {silent} has received nothing since the finalizer could be removed"
        ))
    }

    /// Which kinds are not synced, and why; `None` if all are.
    pub fn unsynced_reason(&self, now: Instant) -> Option<String> {
        describe(self.unknown_sources(now).collect())
    }

    /// Failing groups and versions without the core group. They may be aggregated.
    pub fn failing_groups(&self, now: Instant) -> BTreeSet<(String, String)> {
        let unknown = self.unknown_groups.iter().flat_map(|(group, (it, _))| {
            let versions = it.versions.iter();
            versions.map(|version| (group.clone(), version.clone()))
        });
        let is_late = |it: &&WatchedKind| {
            let started = (!it.synced).then_some(it.started);
            let since = it.failure(now).map(|failure| failure.since).or(started);
            since.is_some_and(|since| now >= since + LOOKUP_AFTER)
        };
        let kinds = self.watched.values().filter(is_late);
        let kinds = kinds.map(|it| (it.group.clone(), it.resource.version.clone()));
        unknown.chain(kinds).filter(|(group, _)| !group.is_empty()).collect()
    }

    fn unknown_sources(&self, now: Instant) -> impl Iterator<Item = UnknownSource> {
        let all_kinds = self.discovery_error.as_ref().map(|(why, since)| UnknownSource {
            what: why.clone(),
            since: *since,
            is_limited: false,
        });
        let groups = self.unknown_groups.iter().map(|(group, (it, since))| UnknownSource {
            what: format!("the kinds of {group}: {}", it.why),
            since: *since,
            is_limited: !it.versions.is_empty() && it.versions.iter().all(|version| self.is_aggregated(group, version)),
        });
        let kinds = self.watched.iter().filter_map(move |(id, it)| {
            let is_unrepresentable = self.unrepresentable.contains(id);
            let since = it.unsynced_since(now).or(is_unrepresentable.then_some(it.started))?;
            let name = it.name();
            Some(UnknownSource {
                what: match it.failure(now) {
                    Some(failure) => format!("{name} ({})", failure.summary()),
                    None if is_unrepresentable => format!("{name} ({UNREPRESENTABLE})"),
                    None => name,
                },
                since,
                is_limited: !is_unrepresentable
                    && (self.is_aggregated(&it.group, &it.resource.version) || it.cannot_be_read(now)),
            })
        });
        all_kinds.into_iter().chain(groups).chain(kinds)
    }

    /// Whether this version of a group is known to be aggregated.
    pub fn is_aggregated(&self, group: &str, version: &str) -> bool {
        self.aggregated.contains(&(group.to_owned(), version.to_owned()))
    }
}

/// Text about these sources; `None` if there are none.
fn describe(unknown_sources: Vec<UnknownSource>) -> Option<String> {
    (!unknown_sources.is_empty()).then(|| some_of(unknown_sources.into_iter().map(|it| it.what)))
}

// === impl WatchFailure ===

impl WatchFailure {
    /// Its cause in a few words. `gc status` has more, once for each kind.
    fn summary(&self) -> String {
        match (&self.unreadable, &*self.reason) {
            (Some(_), _) => "an object of it cannot be read".to_owned(),
            (None, code) if code.parse::<u16>().is_ok() => format!("answered with {code}"),
            (None, reason) => reason.to_owned(),
        }
    }
}

/// Key of the object in an API server's error that it cannot read an object of its store.
fn unreadable_key(error: &str) -> Option<String> {
    let starts = ["unable to transform key \"", "corrupt object, Code: 7, Key: "];
    let key = starts.iter().find_map(|start| error.split_once(start))?.1;
    let end = key.find(['"', ',', ' '])?;
    Some(key[..end].to_owned())
}

// === impl WatchedKind ===

impl WatchedKind {
    /// A kind that nothing is known of yet, except its highest resourceVersion.
    pub fn new(group: &str, resource: Resource, progress: u64) -> Self {
        Self {
            group: group.to_owned(),
            resource,
            started: Instant::now(),
            synced: false,
            progress,
            last_event: None,
            watch: None,
            failure: None,
        }
    }

    /// Its resource, such as `deployments.apps`.
    pub fn name(&self) -> String {
        qualified_name(&self.resource.plural, &self.group)
    }

    /// The failure of list or watch, until a watch has caught up.
    pub fn failure(&self, now: Instant) -> Option<&WatchFailure> {
        let has_caught_up = self.watch.as_ref().is_some_and(|watch| now >= watch.complete_from);
        self.failure.as_ref().filter(|_| !has_caught_up)
    }

    /// Since when it is not synced; `None` if it is.
    pub fn unsynced_since(&self, now: Instant) -> Option<Instant> {
        if self.synced {
            self.failure(now).map(|failure| failure.since)
        } else {
            Some(self.started)
        }
    }

    /// Whether the watch has delivered all events from before `time`. A connection delivers in order, so one that has received
    /// anything since then has received them. One that a load balancer has silently dropped receives nothing.
    fn is_complete_until(&self, time: Instant) -> bool {
        let watch = self.watch.as_ref();
        watch.is_some_and(|watch| watch.last_received.time() > time.max(watch.complete_from))
    }

    /// Records a failure; `true` if it is the first one.
    pub fn fail(&mut self, error: &ApiError, now: Instant) -> bool {
        let before = self.failure(now).map(|failure| failure.since);
        self.watch = None;
        let text = error.to_string();
        self.failure = Some(WatchFailure {
            unreadable: unreadable_key(&text),
            text,
            reason: error.short_reason().into_owned(),
            since: before.unwrap_or(now),
            is_listed: false,
        });
        before.is_none()
    }

    /// Records a complete list. A watch from its resourceVersion misses nothing.
    pub fn record_list(&mut self) {
        if let Some(failure) = &mut self.failure {
            failure.is_listed = true;
        }
    }

    /// Whether the API server answers that it cannot read the objects.
    fn cannot_be_read(&self, now: Instant) -> bool {
        let failure = self.failure(now);
        failure.is_some_and(|it| it.unreadable.is_some() || it.reason == INTERNAL_ERROR)
    }

    /// The object that the API server cannot read, and the remedies.
    pub fn unreadable(&self, now: Instant) -> Option<String> {
        let key = self.failure(now)?.unreadable.as_ref()?;
        let mut names = key.rsplit('/');
        let name = names.next()?;
        let namespace = names.next().filter(|_| self.resource.scope == Scope::Namespaced);
        let root = path_of(&self.group, &self.resource.version);
        let namespace = namespace.map_or_else(String::new, |namespace| format!("namespaces/{}/", escape(namespace)));
        Some(format!(
            "{}: the API server cannot read {key} in its store. Restore the key that encrypted it, or give the object up: \
             kubectl delete --raw '{root}/{namespace}{}/{}?ignoreStoreReadErrorWithClusterBreakingPotential=true' \
             (feature gate AllowUnsafeMalformedObjectDeletion, on since Kubernetes 1.37)",
            self.name(),
            self.resource.plural,
            escape(name)
        ))
    }

    /// Records that a watch is open; `true` if it follows a failure.
    pub fn open_watch(&mut self, last_received: LastReceived, now: Instant) -> bool {
        self.failure.take_if(|failure| failure.is_listed);
        let has_failed = self.failure.is_some();
        let catch_up = if has_failed { CATCH_UP } else { Duration::ZERO };
        self.watch = Some(OpenWatch {
            last_received,
            complete_from: now + catch_up,
        });
        has_failed
    }

    pub fn close_watch(&mut self, now: Instant) {
        if self.failure(now).is_none() {
            self.failure = None;
        }
        self.watch = None;
    }
}
