//! Logs the collector's progress: when all kinds are synced, and which kinds cannot be watched.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{kinds::KindId, shared::Shared, sync_state::SyncState};
use crate::words::some_of;

/// Interval between two updates.
const INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a failure is logged, so that others can join it: kinds that fail for one reason, such as a lost connection, share a
/// line.
const LOG_DELAY: Duration = Duration::from_secs(2);

/// Runs until it is dropped.
pub async fn log_progress(shared: Arc<Shared>) {
    let started = Instant::now();
    let mut failing = BTreeSet::new();
    let mut synced = false;
    loop {
        sleep(INTERVAL).await;
        let now = Instant::now();
        let mut core = shared.lock();
        core.forget_finished_deletions();
        let is_newly_synced = !synced && core.sync_state.unsynced_reason(now).is_none();
        let (kinds, (linked, isolated)) = (core.sync_state.watched.len(), core.graph.len());
        let had_failed = !failing.is_empty();
        let new_failures = update_failing(&mut failing, &core.sync_state, now);
        drop(core);
        if let Some((names, error)) = new_failures {
            let (kinds, resources) = (names.len(), some_of(names));
            tracing::warn!(
                kinds,
                resources,
                error,
                "Kinds cannot be watched; will retry (error of the first)"
            );
        } else if had_failed && failing.is_empty() {
            tracing::info!("All kinds are watched again");
        }
        if is_newly_synced {
            synced = true;
            let seconds = now.saturating_duration_since(started).as_secs();
            tracing::info!(kinds, linked, isolated, seconds, "All kinds are synced");
        }
    }
}

/// Updates the kinds that are logged as failing. Returns the names of the new ones, and the error of the first.
fn update_failing(
    failing: &mut BTreeSet<KindId>,
    sync_state: &SyncState,
    now: Instant,
) -> Option<(Vec<String>, String)> {
    let failures = sync_state.watched.iter();
    let failures = failures.filter_map(|(&id, it)| Some((id, it.name(), it.failure(now)?)));
    let failures: Vec<_> = failures.collect();
    failing.retain(|id| failures.iter().any(|(failed, ..)| failed == id));
    let new: Vec<_> = failures.into_iter().filter(|(id, ..)| !failing.contains(id)).collect();
    let first = new.iter().min_by_key(|(.., failure)| failure.since)?.2;
    if now < first.since + LOG_DELAY {
        return None;
    }
    failing.extend(new.iter().map(|(id, ..)| *id));
    Some((new.into_iter().map(|(_, name, _)| name).collect(), first.text.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::{
        graph::Graph,
        kinds::{Resource, Scope},
        sync_state::{WatchFailure, WatchedKind},
    };

    #[tokio::test(start_paused = true)]
    async fn kinds_that_fail_together_are_logged_together_and_a_short_failure_is_not() {
        let now = Instant::now();
        let at = |millis| now + Duration::from_millis(millis);
        let (mut graph, mut sync_state, mut failing) = (Graph::default(), SyncState::default(), BTreeSet::new());
        for number in 0..57 {
            let resource = Resource {
                plural: format!("kinds{number}"),
                version: "v1".to_owned(),
                scope: Scope::Namespaced,
                short_names: Vec::new(),
            };
            let mut watched = WatchedKind::new("", resource, 1);
            watched.failure = Some(WatchFailure {
                text: format!("error {number}"),
                reason: "unreachable".to_owned(),
                is_listed: false,
                since: at(number * 20),
            });
            let id = graph.kinds.id("", &format!("Kind{number}")).unwrap();
            sync_state.watched.insert(id, watched);
        }
        assert_eq!(update_failing(&mut failing, &sync_state, at(1500)), None);
        let (names, error) = update_failing(&mut failing, &sync_state, at(2500)).unwrap();
        assert_eq!((names.len(), &*error), (57, "error 0"));
        assert_eq!(update_failing(&mut failing, &sync_state, at(9000)), None);
        for watched in sync_state.watched.values_mut() {
            watched.failure = None;
        }
        assert_eq!(update_failing(&mut failing, &sync_state, at(10_000)), None);
        assert!(failing.is_empty());
    }
}
