//! Which kinds are synced, and which finalizers have to stay while a kind is not.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    decide::Finalizer,
    discovery::{Discovered, path_of, unreported},
    kinds::{KindId, Resource, Scope},
    names::qualified_name,
};
use crate::{
    api::{ApiError, LastReceived, escape},
    model::failure::Reasoned as _,
    words::some_of,
};

/// For so long a watch that was opened after a failure may still deliver what was missed.
const CATCH_UP: Duration = Duration::from_secs(10);
/// For so long, the end of a foreground deletion waits for an aggregated API group whose server cannot be reached, or for a kind that the
/// API server cannot read. Dependents that appear later are deleted in the background.
pub const AGGREGATED_HOLD: Duration = Duration::from_secs(600);

/// After this time without a watch or a complete first list, the kind's APIService is looked up.
const LOOKUP_AFTER: Duration = Duration::from_secs(10);

/// Class of the answer of an API server that cannot read its store, or whose conversion webhook fails.
const INTERNAL_ERROR: &str = "500";

/// Why a kind with unrepresentable objects is not synced.
const UNREPRESENTABLE: &str = "the UID, name or namespace of an object cannot be represented";

/// The watched kinds, the last discovery, and everything that keeps the collector from being synced.
#[derive(Debug, Default)]
pub struct SyncState {
    pub watched: BTreeMap<KindId, WatchedKind>,
    /// Discovery was answered.
    has_discovered: bool,
    /// The last error of discovery. Kinds known before it stay.
    pub discovery_error: Option<String>,
    /// Groups that were once reported completely.
    known_groups: BTreeSet<String>,
    /// Versions of the other groups that were not reported, and since when.
    unknown_groups: BTreeMap<String, (Vec<String>, Instant)>,
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

/// A source of unknown objects.
struct UnknownSource {
    /// A kind, or kinds that are not known by name, and why.
    what: String,
    /// Since when it is one, if foreground deletions wait for it no longer than [`AGGREGATED_HOLD`].
    limited_since: Option<Instant>,
}

#[derive(Debug)]
pub struct WatchFailure {
    pub text: String,
    /// Its class, equal for all kinds that fail for the same reason.
    pub reason: String,
    /// A list was complete since.
    pub is_listed: bool,
    pub since: Instant,
}

// === impl SyncState ===

impl SyncState {
    /// Records an answer of discovery.
    pub fn record_discovery(&mut self, found: &Discovered, now: Instant) {
        self.has_discovered = true;
        let reported = found.served.iter().map(|served| &served.group);
        let known = reported.filter(|group| !found.failed.contains_key(*group)).cloned();
        self.known_groups.extend(known);
        let before = std::mem::take(&mut self.unknown_groups);
        let unknown = found
            .failed
            .iter()
            .filter(|(group, _)| !self.known_groups.contains(*group));
        let unknown = unknown.map(|(group, versions)| {
            let since = before.get(group).map_or(now, |(_, since)| *since);
            (group.clone(), (versions.clone(), since))
        });
        self.unknown_groups = unknown.collect();
    }

    /// Records that a discovery that started at `started` is applied: new kinds are watched. If a known built-in group failed, the
    /// kinds that it has got since are unknown, and the discovery does not count. It will be reported again soon.
    pub fn discovery_applied(&mut self, found: &Discovered, started: Instant) {
        let mut known = found
            .failed
            .iter()
            .filter(|(group, _)| self.known_groups.contains(*group));
        if known.all(|(group, versions)| self.are_aggregated(group, versions)) {
            self.discovered = Some(started);
        }
    }

    /// Why a finalizer cannot be removed yet; `None` if it can be. `removable_since` is the time since when no known dependent
    /// prevents the removal. A discovery has to start after it: a kind added in between may have a dependent.
    pub fn finalizer_hold(
        &self,
        finalizer: Finalizer,
        removable_since: Option<Instant>,
        now: Instant,
    ) -> Option<FinalizerHold> {
        let limited_since = |it: &UnknownSource| it.limited_since.filter(|_| finalizer == Finalizer::Foreground);
        let is_expired = |it: &UnknownSource| limited_since(it).is_some_and(|since| now >= since + AGGREGATED_HOLD);
        let unknown_sources: Vec<UnknownSource> = self.unknown_sources(now).filter(|it| !is_expired(it)).collect();
        if !unknown_sources.is_empty() {
            return Some(FinalizerHold::NotSynced {
                is_limited: unknown_sources.iter().all(|it| limited_since(it).is_some()),
                why: format!("not synced: {}", describe(unknown_sources)?),
            });
        }
        let why = self.unconfirmed_reason(removable_since?, now)?;
        Some(FinalizerHold::Unconfirmed { why })
    }

    /// Why dependents from before `time` may be unknown, although every kind is synced. Kinds that are not are passed over.
    fn unconfirmed_reason(&self, time: Instant, now: Instant) -> Option<String> {
        if self.discovered.is_none_or(|started| started < time) {
            return Some("no discovery has started since the finalizer could be removed".to_owned());
        }
        let is_unconfirmed = |it: &&WatchedKind| it.unsynced_since(now).is_none() && !it.is_complete_until(time);
        let silent = self.watched.values().filter(is_unconfirmed).map(WatchedKind::name);
        let silent: Vec<String> = silent.collect();
        let silent = (!silent.is_empty()).then(|| some_of(silent))?;
        Some(format!(
            "the watch connection of {silent} has received nothing since the finalizer could be removed"
        ))
    }

    /// Which kinds are not synced, and why; `None` if all are.
    pub fn unsynced_reason(&self, now: Instant) -> Option<String> {
        describe(self.unknown_sources(now).collect())
    }

    /// Groups and versions of failing kinds, without the core group. They may be aggregated.
    pub fn failing_groups(&self, now: Instant) -> BTreeSet<(String, String)> {
        let is_late = |it: &&WatchedKind| it.unsynced_since(now).is_some_and(|since| now >= since + LOOKUP_AFTER);
        let kinds = self.watched.values().filter(is_late).filter(|it| !it.group.is_empty());
        kinds
            .map(|it| (it.group.clone(), it.resource.version.clone()))
            .collect()
    }

    fn unknown_sources(&self, now: Instant) -> impl Iterator<Item = UnknownSource> {
        let all_kinds = (!self.has_discovered).then(|| {
            let not_answered = "discovery has not been answered yet";
            let what = self.discovery_error.as_deref().unwrap_or(not_answered).to_owned();
            UnknownSource {
                what,
                limited_since: None,
            }
        });
        let groups = self
            .unknown_groups
            .iter()
            .map(|(group, (versions, since))| UnknownSource {
                what: format!("the kinds of {group}: {}", unreported(versions)),
                limited_since: self.are_aggregated(group, versions).then_some(*since),
            });
        let kinds = self.watched.iter().filter_map(move |(id, it)| {
            let is_unrepresentable = self.unrepresentable.contains(id);
            let since = it.unsynced_since(now).or(is_unrepresentable.then_some(it.started))?;
            let name = it.name();
            let is_limited = || self.is_aggregated(&it.group, &it.resource.version) || it.cannot_be_read(now);
            Some(UnknownSource {
                what: match it.failure(now) {
                    Some(failure) => format!("{name} ({})", failure.summary()),
                    None if is_unrepresentable => format!("{name} ({UNREPRESENTABLE})"),
                    None => name,
                },
                limited_since: (!is_unrepresentable && is_limited()).then_some(since),
            })
        });
        all_kinds.into_iter().chain(groups).chain(kinds)
    }

    /// Whether this version of a group is known to be aggregated.
    fn is_aggregated(&self, group: &str, version: &str) -> bool {
        self.aggregated.contains(&(group.to_owned(), version.to_owned()))
    }

    fn are_aggregated(&self, group: &str, versions: &[String]) -> bool {
        versions.iter().all(|version| self.is_aggregated(group, version))
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
        match (self.unreadable(), &*self.reason) {
            (Some(_), _) => "an object of it cannot be read".to_owned(),
            (None, code) if code.parse::<u16>().is_ok() => format!("answered with {code}"),
            (None, reason) => reason.to_owned(),
        }
    }

    /// Key of the object in the store that the API server cannot read, if its error names one.
    fn unreadable(&self) -> Option<&str> {
        let starts = ["unable to transform key \"", "corrupt object, Code: 7, Key: "];
        let key = starts.iter().find_map(|start| self.text.split_once(start))?.1;
        let end = key.find(['"', ',', ' '])?;
        Some(&key[..end])
    }
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
        self.failure = Some(WatchFailure {
            text: error.to_string(),
            reason: error.reason().into_owned(),
            since: before.unwrap_or(now),
            is_listed: false,
        });
        before.is_none()
    }

    /// Whether the API server answers that it cannot read the objects.
    fn cannot_be_read(&self, now: Instant) -> bool {
        let failure = self.failure(now);
        failure.is_some_and(|it| it.unreadable().is_some() || it.reason == INTERNAL_ERROR)
    }

    /// The object that the API server cannot read, and the remedies.
    pub fn unreadable(&self, now: Instant) -> Option<String> {
        let key = self.failure(now)?.unreadable()?;
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
