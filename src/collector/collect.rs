//! Runs the collector: discovery finds the kinds, a monitor watches each kind, and the engine sends the requests.

use std::{
    collections::{BTreeSet, HashMap},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, stream};
use serde_json::Value;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    discovery::{Discovered, Discovery, ServedKind},
    engine,
    kinds::{KindId, Resource},
    monitor::{Monitor, collection},
    shared::Shared,
    summary,
    sync_state::WatchedKind,
    wire,
};
use crate::api::{Lane, MetadataClient, escape};

const INTERVAL: Duration = Duration::from_secs(30);
/// Pause before a discovery that is needed early: minimum and maximum.
const EARLY_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
const RETRY: Duration = Duration::from_secs(2);
/// Timeout of a request that only checks whether a route exists.
const ROUTE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of pages of lists that are read at once: a page takes memory, mostly in the API server.
const MAX_PAGES: usize = 8;
/// Maximum number of lookups at once.
const MAX_LOOKUPS: usize = 8;
/// An APIService names the server of a version of a group.
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const JSON: &str = "application/json";

/// Runs the collector from an empty state until that state has to be dropped. Returns the reason.
pub async fn collect(client: MetadataClient, shared: Arc<Shared>) -> String {
    let mut restart = shared.restart_reason.subscribe();
    let store = client.follow_store();
    let mut restored = store.restored();
    let discovery = DiscoveryTask {
        client: client.clone(),
        shared: Arc::clone(&shared),
        monitors: HashMap::new(),
        pages: Arc::new(Semaphore::new(MAX_PAGES)),
    };
    let summary = summary::log_progress(Arc::clone(&shared));
    let tasks_shared = Arc::clone(&shared);
    let engine = spawn(&tasks_shared, "engine", engine::run(client, shared));
    let discovery = spawn(&tasks_shared, "discovery", discovery.run());
    let _summary = spawn(&tasks_shared, "summary", summary);
    let why = tokio::select! {
        // A list or watch shows an older resourceVersion of its kind than before.
        why = restart.wait_for(Option::is_some) => why.ok().and_then(|why| why.clone()),
        // A connection leads to an older store than before.
        why = restored.wait_for(Option::is_some) => why.ok().and_then(|why| why.clone()),
    };
    // Requests in flight must not use such a connection.
    for task in [engine, discovery] {
        task.abort();
        drop(task.await);
    }
    drop(store);
    why.unwrap_or_else(|| "the collector stopped".to_owned())
}

/// Starts a task of the collector. If it panics, the collector drops its state and restarts: a change may be half done.
fn spawn(
    shared: &Arc<Shared>,
    task: &'static str,
    run: impl Future<Output = ()> + Send + 'static,
) -> AbortOnDropHandle<()> {
    let shared = Arc::clone(shared);
    AbortOnDropHandle::new(tokio::spawn(async move {
        if AssertUnwindSafe(run).catch_unwind().await.is_err() {
            shared.restart_reason.send_replace(Some(format!("its {task} panicked")));
        }
    }))
}

struct DiscoveryTask {
    client: MetadataClient,
    shared: Arc<Shared>,
    monitors: HashMap<KindId, RunningMonitor>,
    pages: Arc<Semaphore>,
}

struct RunningMonitor {
    /// URL path of the kind.
    path: String,
    /// The smallest number that no other monitor has.
    number: usize,
    _task: AbortOnDropHandle<()>,
}

// === impl DiscoveryTask ===

impl DiscoveryTask {
    async fn run(mut self) {
        let mut discovery = Discovery::default();
        let mut is_failing = false;
        loop {
            let started = Instant::now();
            // Both confirm what the graph shows: which kinds there are, and that the watches of the known ones are alive.
            let numbers = self.monitors.values().map(|running| running.number + 1);
            let probe = self.client.probe_watch_connections(numbers.max().unwrap_or_default());
            let (discovered, ()) = tokio::join!(discovery.discover(&self.client), probe);
            match discovered {
                Ok(found) => {
                    if std::mem::take(&mut is_failing) {
                        tracing::info!("Discovery succeeded again");
                    }
                    self.apply(&found, started).await;
                    // A watch does not report that the store was restored from a backup.
                    if let Err(error) = self.client.check_store().await {
                        tracing::warn!(%error, "Store check failed; will retry");
                    }
                    self.wait_until_due(started).await;
                }
                Err(error) => {
                    self.shared.with(|core| {
                        core.counts.failed("discovery", &error);
                        core.sync_state.discovery_error = Some(error.to_string());
                    });
                    if std::mem::replace(&mut is_failing, true) {
                        tracing::debug!(%error, "Discovery still fails");
                    } else {
                        tracing::warn!(%error, "Discovery failed; will retry with the known kinds");
                    }
                    sleep(error.retry_after().unwrap_or(RETRY)).await;
                }
            }
        }
    }

    /// Waits until the next discovery is due or needed.
    async fn wait_until_due(&self, started: Instant) {
        let due = started + INTERVAL;
        // A slow discovery is repeated less often.
        let pause = (started.elapsed() * 4).clamp(EARLY_PAUSE.0, EARLY_PAUSE.1);
        let needed = async {
            sleep(pause).await;
            self.shared.discovery_needed.notified().await;
        };
        tokio::select! {
            () = sleep_until(due) => {}
            () = needed => {}
        }
    }

    async fn apply(&mut self, found: &Discovered, started: Instant) {
        let mut served_ids = BTreeSet::new();
        for served in &found.served {
            served_ids.extend(self.add_kind(served, found));
        }
        let removed: Vec<(KindId, String)> = {
            let core = self.shared.lock();
            let kinds = &core.graph.kinds;
            let is_removed = |id: &KindId| !served_ids.contains(id) && !found.failed.contains_key(kinds.group(*id));
            let removed = kinds.served().filter(|(id, _)| is_removed(id));
            removed
                .map(|(id, resource)| (id, collection(kinds.group(id), resource)))
                .collect()
        };
        self.remove_kinds(removed).await;
        self.shared
            .with(|core| core.sync_state.record_discovery(found, Instant::now()));
        self.update_aggregated(found).await;
        self.shared
            .with(|core| core.sync_state.discovery_applied(found, started));
    }

    /// Looks up which failing groups are aggregated. A failed lookup changes nothing.
    async fn update_aggregated(&self, found: &Discovered) {
        let mut failing = self.shared.lock().sync_state.failing_groups(Instant::now());
        for (group, versions) in &found.failed {
            failing.extend(versions.iter().map(|version| (group.clone(), version.clone())));
        }
        let lookups = failing.into_iter().map(|(group, version)| async move {
            let path = format!("{API_SERVICES}/{}", escape(&format!("{version}.{group}")));
            let answer = self.client.json::<Value>(Lane::Get, &path, JSON).await;
            ((group, version), answer)
        });
        let mut answers = stream::iter(lookups).buffered(MAX_LOOKUPS);
        while let Some((it, answer)) = answers.next().await {
            let is_aggregated = match answer {
                Ok(service) => service["spec"]["service"].is_object(),
                Err(error) if error.code() == Some(404) => false,
                Err(error) => {
                    tracing::debug!(%error, "APIService lookup failed; will retry");
                    continue;
                }
            };
            self.shared.with(|core| {
                if is_aggregated {
                    core.sync_state.aggregated.insert(it);
                } else {
                    core.sync_state.aggregated.remove(&it);
                }
            });
        }
    }

    /// Applies a served kind, and starts its monitor if it is collected.
    fn add_kind(&mut self, served: &ServedKind, found: &Discovered) -> Option<KindId> {
        let is_uncertain = found.failed.contains_key(&served.group);
        let id = self.shared.with(|core| {
            let id = core.graph.kinds.id(&served.group, &served.kind)?;
            let known = core.graph.kinds.resource(id).cloned();
            // The preferred version may be the one that does not answer: a working version is kept.
            if known.as_ref() == Some(&served.resource) || (known.is_some() && is_uncertain) {
                return Some(id);
            }
            core.graph.kinds.set_resource(id, Some(served.resource.clone()));
            if known.is_none_or(|known| known.scope != served.resource.scope) {
                core.graph.apply_served(id);
            }
            Some(id)
        })?;
        if served.collected && !(is_uncertain && self.monitors.contains_key(&id)) {
            self.start_monitor(id, &served.group, &served.resource);
        }
        Some(id)
    }

    fn start_monitor(&mut self, id: KindId, group: &str, resource: &Resource) {
        let path = collection(group, resource);
        if self.monitors.get(&id).is_some_and(|running| running.path == path) {
            return;
        }
        // The old monitor ends before the new one starts.
        self.monitors.remove(&id);
        let used_numbers: BTreeSet<usize> = self.monitors.values().map(|running| running.number).collect();
        let number = (0..).find(|number| !used_numbers.contains(number)).unwrap_or_default();
        self.shared.with(|core| {
            let progress = core.sync_state.watched.get(&id).map_or(0, |watched| watched.progress);
            let watched = WatchedKind::new(group, resource.clone(), progress);
            core.sync_state.watched.insert(id, watched);
        });
        let monitor = Monitor {
            client: self.client.clone(),
            shared: Arc::clone(&self.shared),
            kind: id,
            number,
            path: path.clone(),
            pages: Arc::clone(&self.pages),
        };
        let running = RunningMonitor {
            path,
            number,
            _task: spawn(&self.shared, "monitor", monitor.run()),
        };
        self.monitors.insert(id, running);
    }

    /// Handles kinds that discovery no longer reports. Discovery may omit a kind for a while, so each kind's route is queried.
    /// A kind whose route does not answer in time stays until the next discovery.
    async fn remove_kinds(&mut self, kinds: Vec<(KindId, String)>) {
        let client = &self.client;
        let lookups = kinds.into_iter().map(|(id, path)| async move {
            let route = format!("{path}?limit=1");
            let answer = timeout(ROUTE_TIMEOUT, client.stream(Lane::Get, "LIST", &route, wire::LIST)).await;
            let is_removed = matches!(answer, Ok(Err(error)) if error.code() == Some(404));
            (id, path, is_removed)
        });
        let answers: Vec<_> = stream::iter(lookups).buffered(MAX_LOOKUPS).collect().await;
        for (id, path, is_removed) in answers {
            if !is_removed {
                tracing::debug!(path, "Discovery does not report the kind, but its route may exist");
                continue;
            }
            tracing::info!(path, "Kind is no longer served");
            self.monitors.remove(&id);
            self.shared.with(|core| {
                core.sync_state.watched.remove(&id);
                core.graph.apply_unserved(id);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panicking_task_restarts_the_collector() {
        let shared = Arc::new(Shared::default());
        let mut restart = shared.restart_reason.subscribe();
        let _task = spawn(&shared, "monitor", async { panic!("expected panic") });
        let why = restart.wait_for(Option::is_some).await.unwrap().clone();
        assert_eq!(why.as_deref(), Some("its monitor panicked"));
    }
}
