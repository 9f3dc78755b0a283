//! Which kinds are synced, and which finalizers have to stay while a kind is not.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    kinds::{KindId, Resource},
    names::qualified_name,
};
use crate::words::{format_count, some_of};

/// Policy for a kind that may have dependents and cannot be listed: `--gc-unsynced`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsynced {
    /// Finalizers stay until it can be listed.
    Hold,
    /// Finalizers are removed after some minutes without it.
    Proceed,
}

/// After this time without a working watch, a kind counts as not synced.
const STALE_AFTER: Duration = Duration::from_secs(30);
/// Default of `--gc-aggregated-hold`.
pub const AGGREGATED_HOLD: Duration = Duration::from_secs(600);
/// Minimum time that finalizers stay while a kind is not synced, also with [`Unsynced::Proceed`].
const MIN_WAIT: Duration = Duration::from_secs(300);

/// Why a finalizer waits for a discovery.
pub const NO_DISCOVERY: &str = "no discovery has started since the finalizer could be removed";

/// After this time without a watch or a complete first list, the kind's APIService is looked up.
const LOOKUP_AFTER: Duration = Duration::from_secs(10);

/// Why a kind with unrepresentable objects is not synced.
const UNREPRESENTABLE: &str = "the UID, name or namespace of an object cannot be represented";

/// The watched kinds, the last discovery, and everything that keeps the collector from being synced.
#[derive(Debug)]
pub struct SyncState {
    /// The kinds that are watched.
    pub watched: BTreeMap<KindId, WatchedKind>,
    /// Why discovery was never answered, and since when; `None` once it was.
    discovery_error: Option<(String, Instant)>,
    /// Groups whose kinds discovery has never reported completely.
    unknown_groups: BTreeMap<String, UnknownGroup>,
    /// Groups and versions of aggregated API servers, by their APIServices. Only failing ones are looked up.
    pub aggregated: BTreeSet<(String, String)>,
    /// Kinds with objects whose UID, namespace or name cannot be represented.
    pub unrepresentable: BTreeSet<KindId>,
    unsynced: Unsynced,
    /// `--gc-aggregated-hold`.
    pub aggregated_hold: Duration,
    /// Start of the last discovery that reported every kind.
    discovered: Option<Instant>,
    /// A discovery is needed before the next regular one.
    pub needs_discovery: bool,
}

/// Watch status of a kind.
#[derive(Debug)]
pub struct WatchedKind {
    /// Its group, empty for the core group.
    pub group: String,
    /// Where it is served.
    pub resource: Resource,
    /// Start of its monitor.
    pub started: Instant,
    /// Its first list is complete.
    pub synced: bool,
    /// The highest resourceVersion that it has reported.
    pub progress: u64,
    /// Time of the last answer or event.
    pub last_event: Option<Instant>,
    /// The failure, while list or watch fails.
    pub failure: Option<WatchFailure>,
}

/// Why a finalizer has to stay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinalizerHold {
    /// No discovery has started since the finalizer could be removed.
    NeedsDiscovery,
    /// A kind is not synced.
    NotSynced {
        /// Which kinds, and why.
        why: String,
        /// Only aggregated APIs are the cause: the delay is limited by `--gc-aggregated-hold`.
        is_aggregated: bool,
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
struct UnknownSource<'a> {
    source: Source<'a>,
    since: Instant,
    is_aggregated: bool,
}

enum Source<'a> {
    /// All kinds.
    AllKinds(&'a str),
    /// A group whose kinds are unknown.
    Group(&'a str, &'a UnknownGroup),
    /// A kind.
    Kind(KindId, &'a WatchedKind),
}

/// A group whose kinds are unknown.
#[derive(Debug)]
struct UnknownGroup {
    why: String,
    versions: Vec<String>,
    since: Instant,
}

/// Failure of a list or watch.
#[derive(Debug)]
pub struct WatchFailure {
    /// The last error.
    pub text: String,
    /// Its class, equal for all kinds that fail for the same reason.
    pub reason: String,
    /// Time of the first failure.
    pub since: Instant,
}

// === impl SyncState ===

impl SyncState {
    /// Nothing is synced yet.
    pub fn new(unsynced: Unsynced) -> Self {
        Self {
            watched: BTreeMap::new(),
            discovery_error: Some(("discovery has not been answered yet".to_owned(), Instant::now())),
            unknown_groups: BTreeMap::new(),
            aggregated: BTreeSet::new(),
            unrepresentable: BTreeSet::new(),
            unsynced,
            aggregated_hold: AGGREGATED_HOLD,
            discovered: None,
            needs_discovery: false,
        }
    }

    /// Records that discovery failed. Kinds known before stay.
    pub fn discovery_failed(&mut self, why: String) {
        if let Some((known, _)) = &mut self.discovery_error {
            *known = why;
        }
    }

    /// Records an answer of discovery. `groups` never had all their kinds reported: name, versions and reason of each.
    pub fn set_unknown_groups<'a>(
        &mut self,
        groups: impl Iterator<Item = (&'a str, Vec<String>, String)>,
        now: Instant,
    ) {
        self.discovery_error = None;
        let mut before = std::mem::take(&mut self.unknown_groups);
        for (group, versions, why) in groups {
            let since = before.remove(group).map_or(now, |known| known.since);
            self.unknown_groups
                .insert(group.to_owned(), UnknownGroup { why, versions, since });
        }
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
        let proceeds = |since: Instant| self.unsynced == Unsynced::Proceed && now >= since + MIN_WAIT;
        let is_late = |removable_since: Instant| {
            self.discovered.is_none_or(|started| started < removable_since) && !proceeds(removable_since)
        };
        if removable_since.is_some_and(is_late) {
            return Some(FinalizerHold::NeedsDiscovery);
        }
        let is_delay = |it: &UnknownSource<'_>| it.is_aggregated && finalizer == GcFinalizer::Foreground;
        let is_expired = |it: &UnknownSource<'_>| is_delay(it) && now >= it.since + self.aggregated_hold;
        let unknown_sources: Vec<UnknownSource<'_>> = self.unknown_sources(now).filter(|it| !is_expired(it)).collect();
        // The removal waits for each of them, so the latest start counts.
        let last = unknown_sources.iter().map(|it| it.since).max()?;
        if proceeds(last) {
            return None;
        }
        Some(FinalizerHold::NotSynced {
            is_aggregated: unknown_sources.iter().all(is_delay),
            why: self.describe(&unknown_sources)?,
        })
    }

    /// Whether every kind is synced.
    pub fn is_synced(&self, now: Instant) -> bool {
        self.unknown_sources(now).next().is_none()
    }

    /// Which kinds are not synced, and why; `None` if all are.
    pub fn unsynced_reason(&self, now: Instant) -> Option<String> {
        let unknown_sources: Vec<UnknownSource<'_>> = self.unknown_sources(now).collect();
        self.describe(&unknown_sources)
    }

    /// Failing groups and versions without the core group. They may be aggregated.
    pub fn failing_groups(&self, now: Instant) -> BTreeSet<(String, String)> {
        let unknown = self.unknown_groups.iter().flat_map(|(group, it)| {
            let versions = it.versions.iter();
            versions.map(|version| (group.clone(), version.clone()))
        });
        let is_late = |it: &&WatchedKind| {
            let started = (!it.synced).then_some(it.started);
            let since = it.failure.as_ref().map(|failure| failure.since).or(started);
            since.is_some_and(|since| now >= since + LOOKUP_AFTER)
        };
        let kinds = self.watched.values().filter(is_late);
        let kinds = kinds.map(|it| (it.group.clone(), it.resource.version.clone()));
        unknown.chain(kinds).filter(|(group, _)| !group.is_empty()).collect()
    }

    /// All sources of unknown objects.
    fn unknown_sources(&self, now: Instant) -> impl Iterator<Item = UnknownSource<'_>> {
        let all_kinds = self.discovery_error.as_ref().map(|(why, since)| UnknownSource {
            source: Source::AllKinds(why),
            since: *since,
            is_aggregated: false,
        });
        let groups = self.unknown_groups.iter().map(|(group, it)| UnknownSource {
            source: Source::Group(group, it),
            since: it.since,
            is_aggregated: !it.versions.is_empty()
                && it.versions.iter().all(|version| self.is_aggregated(group, version)),
        });
        let kinds = self.watched.iter().filter_map(move |(&id, it)| {
            let unrepresentable = self.unrepresentable.contains(&id).then_some(it.started);
            Some(UnknownSource {
                source: Source::Kind(id, it),
                since: it.unsynced_since(now).or(unrepresentable)?,
                is_aggregated: unrepresentable.is_none() && self.is_aggregated(&it.group, &it.resource.version),
            })
        });
        all_kinds.into_iter().chain(groups).chain(kinds)
    }

    /// Whether this version of a group is known to be aggregated.
    pub fn is_aggregated(&self, group: &str, version: &str) -> bool {
        self.aggregated.contains(&(group.to_owned(), version.to_owned()))
    }

    fn describe(&self, unknown_sources: &[UnknownSource<'_>]) -> Option<String> {
        let (mut kinds, mut others) = (Vec::new(), Vec::new());
        for it in unknown_sources {
            match it.source {
                Source::AllKinds(why) => others.push(why.to_owned()),
                Source::Group(group, UnknownGroup { why, .. }) => {
                    others.push(format!("the kinds of {group} are unknown: {why}"));
                }
                Source::Kind(id, watched) => kinds.push(match &watched.failure {
                    Some(failure) => format!("{} ({})", watched.name(), failure.text),
                    None if self.unrepresentable.contains(&id) => format!("{} ({UNREPRESENTABLE})", watched.name()),
                    None => watched.name(),
                }),
            }
        }
        if kinds.is_empty() {
            return others.into_iter().next();
        }
        let many = format_count(kinds.len() as u64, "kind");
        Some(format!("{many} not synced: {}", some_of(kinds)))
    }
}

// === impl WatchedKind ===

impl WatchedKind {
    /// Its resource, such as `deployments.apps`.
    pub fn name(&self) -> String {
        qualified_name(&self.resource.plural, &self.group)
    }

    /// Since when it is not synced; `None` if it is.
    fn unsynced_since(&self, now: Instant) -> Option<Instant> {
        if !self.synced {
            return Some(self.started);
        }
        let since = self.failure.as_ref()?.since;
        (now >= since + STALE_AFTER).then_some(since)
    }
}
