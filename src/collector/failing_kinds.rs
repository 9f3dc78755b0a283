//! Logs kinds that cannot be watched. Kinds that fail for one reason at one time, such as a lost connection, share a
//! line.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    kinds::KindId,
    sync_state::{SyncState, WatchFailure, WatchedKind},
};
use crate::words::some_of;

/// Delay before a failure is logged, so that others can join it.
const LOG_DELAY: Duration = Duration::from_secs(2);

/// The kinds that are logged as failing.
#[derive(Debug, Default)]
pub struct FailingKinds(BTreeSet<KindId>);

/// A log line.
#[derive(Debug, PartialEq, Eq)]
pub enum LogLine {
    /// Kinds fail.
    Failing {
        /// Number of kinds.
        kinds: usize,
        /// Some of them.
        resources: String,
        /// The error of the first.
        error: String,
    },
    /// Kinds are watched again, or are no longer served.
    Recovered {
        /// Number of kinds.
        kinds: usize,
        /// Number of kinds that still fail.
        failing: usize,
        /// Some of them.
        resources: String,
    },
}

// === impl FailingKinds ===

impl FailingKinds {
    /// The lines to log now.
    pub fn update(&mut self, sync_state: &SyncState, now: Instant) -> Vec<LogLine> {
        let failing = |id: &KindId| sync_state.watched.get(id).is_some_and(|it| it.failure(now).is_some());
        let recovered: Vec<KindId> = self.0.iter().filter(|id| !failing(id)).copied().collect();
        self.0.retain(failing);
        let mut lines = self.new_failures(sync_state, now);
        if !recovered.is_empty() {
            let names = recovered
                .iter()
                .filter_map(|id| sync_state.watched.get(id))
                .map(WatchedKind::name);
            lines.push(LogLine::Recovered {
                kinds: recovered.len(),
                failing: self.0.len(),
                resources: some_of(names),
            });
        }
        lines
    }

    /// New failures, grouped by their reason.
    fn new_failures(&mut self, sync_state: &SyncState, now: Instant) -> Vec<LogLine> {
        let failures = sync_state
            .watched
            .iter()
            .filter_map(|(id, it)| Some((id, it, it.failure(now)?)));
        let new: Vec<_> = failures.filter(|(id, ..)| !self.0.contains(id)).collect();
        if !new.iter().any(|(.., failure)| now >= failure.since + LOG_DELAY) {
            return Vec::new();
        }
        let mut causes: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for &(id, watched, failure) in &new {
            self.0.insert(*id);
            causes.entry(&failure.reason).or_default().push((watched, failure));
        }
        let line = |failures: Vec<(&WatchedKind, &WatchFailure)>| LogLine::Failing {
            kinds: failures.len(),
            resources: some_of(failures.iter().map(|(watched, _)| watched.name())),
            error: failures
                .first()
                .map(|(_, failure)| failure.text.clone())
                .unwrap_or_default(),
        };
        causes.into_values().map(line).collect()
    }
}

// === impl LogLine ===

impl LogLine {
    /// Writes the line.
    pub fn log(self) {
        match self {
            Self::Failing {
                kinds: 1,
                resources: resource,
                error,
            } => tracing::warn!(resource, error, "Kind cannot be watched; will retry"),
            Self::Failing {
                kinds,
                resources,
                error,
            } => tracing::warn!(
                kinds,
                resources,
                error,
                "Kinds cannot be watched; will retry (error of the first)"
            ),
            Self::Recovered {
                kinds,
                failing,
                resources,
            } => tracing::info!(
                kinds,
                resources,
                failing,
                "Kinds are watched again, or no longer served"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::{
        graph::Graph,
        kinds::{Resource, Scope},
    };

    /// This many watched kinds.
    fn kinds(many: usize) -> (SyncState, Vec<KindId>) {
        let mut graph = Graph::default();
        let mut sync_state = SyncState::default();
        sync_state.set_unknown_groups(std::iter::empty(), Instant::now());
        let id = |number| {
            let id = graph.kinds.id("", &format!("Kind{number}")).unwrap();
            let resource = Resource {
                plural: format!("kinds{number}"),
                version: "v1".to_owned(),
                scope: Scope::Namespaced,
            };
            let mut watched = WatchedKind::new("", resource, 1);
            watched.synced = true;
            sync_state.watched.insert(id, watched);
            id
        };
        let ids = (0..many).map(id).collect();
        (sync_state, ids)
    }

    fn fails(sync_state: &mut SyncState, id: KindId, reason: &str, since: Instant) {
        sync_state.watched.get_mut(&id).unwrap().failure = Some(WatchFailure {
            text: format!("{reason} as reported"),
            reason: reason.to_owned(),
            unreadable: None,
            is_listed: false,
            since,
        });
    }

    #[tokio::test(start_paused = true)]
    async fn kinds_that_fail_together_share_a_log_line() {
        let now = Instant::now();
        let at = |millis| now + Duration::from_millis(millis);
        let (mut sync_state, ids) = kinds(57);
        let mut failing_kinds = FailingKinds::default();
        for (number, &id) in ids.iter().enumerate().skip(1) {
            fails(&mut sync_state, id, "unreachable", at(number as u64 * 20));
        }
        assert_eq!(failing_kinds.update(&sync_state, at(1500)), []);
        fails(&mut sync_state, ids[0], "403", at(1600));
        let failing = |kinds, resources: &str, error: &str| LogLine::Failing {
            kinds,
            resources: resources.to_owned(),
            error: error.to_owned(),
        };
        let expected = [
            failing(1, "kinds0", "403 as reported"),
            failing(56, "kinds1, kinds2, kinds3 and 53 more", "unreachable as reported"),
        ];
        assert_eq!(failing_kinds.update(&sync_state, at(2500)), expected);
        assert_eq!(failing_kinds.update(&sync_state, at(9000)), []);
        let unsynced = sync_state.unsynced_reason(at(60_000)).unwrap();
        assert!(
            unsynced.contains("57 kinds") && unsynced.contains("and 54 more"),
            "{unsynced}"
        );
        for id in &ids[1..] {
            sync_state.watched.get_mut(id).unwrap().failure = None;
        }
        let again = LogLine::Recovered {
            kinds: 56,
            failing: 1,
            resources: "kinds1, kinds2, kinds3 and 53 more".to_owned(),
        };
        assert_eq!(failing_kinds.update(&sync_state, at(10_000)), [again]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_failure_is_not_logged() {
        let now = Instant::now();
        let (mut sync_state, ids) = kinds(1);
        let mut failing_kinds = FailingKinds::default();
        fails(&mut sync_state, ids[0], "unreachable", now);
        assert_eq!(failing_kinds.update(&sync_state, now + Duration::from_secs(1)), []);
        sync_state.watched.get_mut(&ids[0]).unwrap().failure = None;
        assert_eq!(failing_kinds.update(&sync_state, now + Duration::from_secs(3)), []);
    }
}
