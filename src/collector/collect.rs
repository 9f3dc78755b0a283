//! Runs the collector: discovery finds the kinds, a monitor watches each kind, and the engine sends the requests.

use std::{
    collections::{BTreeSet, HashMap},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, stream};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{
    discovery::{Discovery, Failed, Found, Served},
    engine::Engine,
    kinds::{KindId, Resource},
    monitor::{Monitor, collection},
    shared::Shared,
    sight::Watched,
    summary,
    turns::{LISTS, Turns},
    wire::{self, PageReader},
};
use crate::api::{ApiError, Lane, MetadataClient, escape};

/// Interval of discovery.
const PERIOD: Duration = Duration::from_secs(30);
/// Pause before a discovery that is needed early: minimum and maximum.
const SOON: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Pause after a failed discovery.
const AGAIN: Duration = Duration::from_secs(2);
/// A consistent list that every API server has. It shows the store's current resourceVersion.
const NAMESPACES: &str = "/api/v1/namespaces?limit=1";
const PIECE: Duration = Duration::from_secs(60);
/// Timeout of a request that only checks whether a route exists.
const ROUTE: Duration = Duration::from_secs(5);
/// An APIService says which server serves a version of a group.
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const JSON: &str = "application/json";

/// Runs the collector from an empty state until that state has to be dropped. Returns the reason.
pub async fn collect(client: MetadataClient, shared: Arc<Shared>) -> String {
    let mut lost = shared.lost.subscribe();
    let store = client.follow_store();
    let mut put_back = store.put_back();
    let discovery = Round {
        client: client.clone(),
        shared: Arc::clone(&shared),
        turns: Arc::default(),
        monitors: HashMap::new(),
        discovered: BTreeSet::new(),
    };
    let teller = summary::tell(Arc::clone(&shared));
    let of_all = Arc::clone(&shared);
    let engine = Engine { client, shared };
    let engine = spawn(&of_all, "engine", engine.run());
    let discovery = spawn(&of_all, "discovery", discovery.run());
    let _teller = spawn(&of_all, "summary", teller);
    let why = tokio::select! {
        // A list or watch shows an older resourceVersion of its kind than before.
        why = lost.wait_for(Option::is_some) => why.ok().and_then(|why| why.clone()),
        // A connection leads to an older store than before.
        why = put_back.wait_for(Option::is_some) => why.ok().and_then(|why| why.clone()),
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
            shared.lost.send_replace(Some(format!("its {task} panicked")));
        }
    }))
}

/// Applies the results of discovery.
struct Round {
    client: MetadataClient,
    shared: Arc<Shared>,
    turns: Arc<Turns>,
    monitors: HashMap<KindId, Running>,
    /// Groups that were once reported completely.
    discovered: BTreeSet<String>,
}

struct Running {
    /// URL path of the kind.
    path: String,
    /// The smallest number that no other monitor has.
    number: usize,
    _task: AbortOnDropHandle<()>,
}

// === impl Round ===

impl Round {
    async fn run(mut self) {
        let mut discovery = Discovery::default();
        let mut fails = false;
        let mut store_seen: Option<Instant> = None;
        loop {
            let begun = Instant::now();
            match discovery.ask(&self.client).await {
                Ok(found) => {
                    if std::mem::take(&mut fails) {
                        tracing::info!("Discovery succeeded again");
                    }
                    self.follow(&found, begun).await;
                    if store_seen.is_none_or(|seen| begun >= seen + PERIOD) {
                        store_seen = Some(begun);
                        self.look_at_store().await;
                    }
                    self.until_next(begun).await;
                }
                Err(error) => {
                    self.shared.with(|core| {
                        core.counts.failed("discovery", &error);
                        core.sight.undiscovered(error.to_string());
                    });
                    if std::mem::replace(&mut fails, true) {
                        tracing::debug!(%error, "Discovery still fails");
                    } else {
                        tracing::warn!(%error, "Discovery failed; will retry with the known kinds");
                    }
                    sleep(error.retry_after().unwrap_or(AGAIN)).await;
                }
            }
        }
    }

    /// Waits until the next discovery is due or needed.
    async fn until_next(&self, begun: Instant) {
        let due = begun + PERIOD;
        // A slow discovery is repeated less often.
        let pause = (begun.elapsed() * 4).clamp(SOON.0, SOON.1);
        let needed = async {
            sleep(pause).await;
            self.shared.discover.notified().await;
        };
        tokio::select! {
            () = sleep_until(due) => {}
            () = needed => {}
        }
    }

    async fn follow(&mut self, found: &Found, begun: Instant) {
        let mut there = BTreeSet::new();
        for served in &found.served {
            if let Some(id) = self.serve(served, found) {
                there.insert(id);
            }
        }
        let vanished: Vec<(KindId, String)> = {
            let core = self.shared.lock();
            let kinds = &core.graph.kinds;
            let certain = |id: &KindId| !there.contains(id) && !found.failed.contains_key(kinds.group(*id));
            let gone = kinds.served().filter(|(id, _)| certain(id));
            gone.map(|(id, resource)| (id, collection(kinds.group(id), resource)))
                .collect()
        };
        self.vanish(vanished).await;
        let told = found.served.iter().map(|served| &served.group);
        let in_full = told.filter(|group| !found.failed.contains_key(*group)).cloned();
        self.discovered.extend(in_full);
        let unknown = |(group, _): &(&String, &Failed)| !self.discovered.contains(*group);
        let unknown = found.failed.iter().filter(unknown);
        let unknown = unknown.map(|(group, it)| (&**group, it.versions.clone(), it.why.clone()));
        self.shared.with(|core| core.sight.set_unknown(unknown, Instant::now()));
        self.learn_aggregated(found).await;
        self.shared.with(|core| {
            // Kinds that a built-in group has got since it failed are unknown. It will be reported again soon.
            let sight = &core.sight;
            let is_aggregated = |(group, it): (&String, &Failed)| {
                let mut versions = it.versions.iter();
                versions.all(|version| sight.is_aggregated(group, version))
            };
            let known = found
                .failed
                .iter()
                .filter(|(group, _)| self.discovered.contains(*group));
            if known.into_iter().all(is_aggregated) {
                core.sight.discovered(begun);
            }
        });
    }

    /// Looks up which failing groups are aggregated. A failed lookup changes nothing.
    async fn learn_aggregated(&self, found: &Found) {
        let mut troubled = self.shared.lock().sight.troubled(Instant::now());
        for (group, failed) in &found.failed {
            let versions = failed.versions.iter();
            troubled.extend(versions.map(|version| (group.clone(), version.clone())));
        }
        let asked = troubled.into_iter().map(|(group, version)| async move {
            let path = format!("{SERVICES}/{}", escape(&format!("{version}.{group}")));
            let answer = self.client.json(Lane::Question, &path, JSON).await;
            ((group, version), answer)
        });
        let mut answers = stream::iter(asked).buffered(LISTS);
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
                    core.sight.aggregated.insert(it);
                } else {
                    core.sight.aggregated.remove(&it);
                }
            });
        }
    }

    /// Applies a served kind, and starts its monitor if it is collected.
    fn serve(&mut self, served: &Served, found: &Found) -> Option<KindId> {
        let is_uncertain = found.failed.contains_key(&served.group);
        let id = self.shared.with(|core| {
            let id = core.graph.kinds.id(&served.group, &served.kind)?;
            core.graph.kinds.set_short_names(id, &served.short_names);
            let known = core.graph.kinds.resource(id).cloned();
            // The preferred version may be the one that does not answer: a working version is kept.
            if known.as_ref() == Some(&served.resource) || (known.is_some() && is_uncertain) {
                return Some(id);
            }
            core.graph.kinds.set_resource(id, Some(served.resource.clone()));
            if known.is_none_or(|known| known.scope != served.resource.scope) {
                core.graph.served(id);
            }
            Some(id)
        })?;
        if served.collected && !(is_uncertain && self.monitors.contains_key(&id)) {
            self.watch(id, &served.group, &served.resource);
        }
        Some(id)
    }

    fn watch(&mut self, id: KindId, group: &str, resource: &Resource) {
        let path = collection(group, resource);
        if self.monitors.get(&id).is_some_and(|running| running.path == path) {
            return;
        }
        // The old monitor ends before the new one starts.
        self.monitors.remove(&id);
        let taken: BTreeSet<usize> = self.monitors.values().map(|running| running.number).collect();
        let number = (0..).find(|number| !taken.contains(number)).unwrap_or_default();
        self.shared.with(|core| {
            let progress = core.sight.watched.get(&id).map_or(0, |watched| watched.progress);
            let watched = Watched {
                group: group.to_owned(),
                resource: resource.clone(),
                begun: Instant::now(),
                synced: false,
                progress,
                told: None,
                trouble: None,
            };
            core.sight.watched.insert(id, watched);
        });
        let monitor = Monitor {
            client: self.client.clone(),
            shared: Arc::clone(&self.shared),
            kind: id,
            number,
            path: path.clone(),
            group: group.into(),
            turns: Arc::clone(&self.turns),
        };
        let running = Running {
            path,
            number,
            _task: spawn(&self.shared, "monitor", monitor.run()),
        };
        self.monitors.insert(id, running);
    }

    /// Handles kinds that discovery no longer reports. Discovery may omit a kind for a while, so each kind's route is queried.
    /// A kind whose route does not answer in time stays until the next discovery.
    async fn vanish(&mut self, kinds: Vec<(KindId, String)>) {
        let client = &self.client;
        let asked = kinds.into_iter().map(|(id, path)| async move {
            let asked = format!("{path}?limit=1");
            let answer = timeout(ROUTE, client.pieces(Lane::Question, "LIST", &asked, wire::LIST)).await;
            let is_gone = matches!(answer, Ok(Err(error)) if error.code() == Some(404));
            (id, path, is_gone)
        });
        let answers: Vec<_> = stream::iter(asked).buffered(LISTS).collect().await;
        for (id, path, is_gone) in answers {
            if !is_gone {
                tracing::debug!(path, "Discovery does not report the kind, but its route may exist");
                continue;
            }
            tracing::info!(path, "Kind is no longer served");
            self.monitors.remove(&id);
            self.shared.with(|core| {
                core.sight.watched.remove(&id);
                core.graph.unserved(id);
            });
        }
    }

    /// Checks the store's resourceVersion. A watch does not report that the store was restored from a backup.
    async fn look_at_store(&self) {
        // An event during the request may be younger than its answer.
        let (before, told) = (self.client.store_was_at(), self.shared.told_of("namespaces"));
        match self.store_version().await {
            Ok(version) => {
                self.client.store_is_at(version, before);
                self.shared.store_is_at("namespaces", version, told);
            }
            Err(error) => tracing::debug!(%error, "Store version check failed; will retry"),
        }
    }

    async fn store_version(&self) -> Result<u64, ApiError> {
        let mut pieces = self
            .client
            .pieces(Lane::Question, "LIST", NAMESPACES, wire::LIST)
            .await?;
        let mut page = PageReader::new(pieces.is_protobuf);
        while let Some(piece) = pieces.next(PIECE).await? {
            page.read(&piece, |_| ()).map_err(|error| pieces.unreadable(error))?;
        }
        let end = page.finish(|_| ()).map_err(|error| pieces.unreadable(error))?;
        end.version.parse().map_err(|error| pieces.unreadable(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::Unsynced;

    #[tokio::test]
    async fn a_task_that_panics_has_the_collector_begin_anew() {
        let shared = Arc::new(Shared::new(Unsynced::Hold));
        let mut lost = shared.lost.subscribe();
        let _task = spawn(&shared, "monitor", async { panic!("expected panic") });
        let why = lost.wait_for(Option::is_some).await.unwrap().clone();
        assert_eq!(why.as_deref(), Some("its monitor panicked"));
    }
}
