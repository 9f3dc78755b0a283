//! List and watch of this node's pods. A timeout, an incomplete list, or another cluster never count as a deletion.

use std::{collections::HashSet, sync::Arc, time::Duration};

use backon::BackoffBuilder as _;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep, timeout_at},
};

use super::known::{KnownPods, ListedPod, PodSnapshot};
use crate::{
    api::{ApiClient, ApiError, RawMetadata, WatchLine},
    clock::{pauses, rounded},
    counters::Counters,
    handover::{
        cluster::{is_deleted, read_node},
        guard::Guard,
    },
    model::pod::{FULL_NODE, PodObject, PodUid, PodView},
    why::Why,
};

/// A watch without any event for this long is followed by a consistent list. A watch from a resourceVersion of another cluster gets no
/// events at all.
const MAX_SILENCE: Duration = Duration::from_secs(300);
/// How often the Node is read during a node identity mismatch.
const VERIFY_INTERVAL: Duration = Duration::from_secs(5);
/// `timeoutSeconds` of one watch.
const STREAM_LIFETIME: Duration = Duration::from_secs(1800);
/// A watch that ends sooner causes a backoff, as a failed one.
const MIN_WATCH: Duration = Duration::from_secs(1);
const MIN_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(15);

/// State of the watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum SourceState {
    /// No list yet.
    #[default]
    Connecting,
    /// Listed, and the watch is open.
    Watching,
    /// Disconnected; known pods stay known.
    Lost,
}

/// The watch in `status`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct WatchReport {
    /// State of the watch.
    pub state: SourceState,
    /// Number of pods of this node.
    pub pods: usize,
    /// The last error; `None` after a success.
    pub error: Option<String>,
    /// Why pods that a list lacks are not treated as deleted.
    pub absence_hold: Option<String>,
}

/// Requests snapshots from the watch.
#[derive(Debug, Clone)]
pub struct SnapshotHandle(mpsc::Sender<oneshot::Sender<PodSnapshot>>);

/// Lists and watches the pods of this node, and sends their changes.
pub struct PodSource {
    api: ApiClient,
    guard: Guard,
    counters: Arc<Counters>,
    known: KnownPods,
    unreadable: HashSet<String>,
    changes: mpsc::Sender<Arc<PodView>>,
    report: watch::Sender<WatchReport>,
    /// Requests wait until a complete list was applied and the watch is open.
    snapshots: mpsc::Receiver<oneshot::Sender<PodSnapshot>>,
}

// === impl SnapshotHandle ===

impl SnapshotHandle {
    /// The known pods after the next complete list; `None` when the agent stops.
    pub async fn snapshot(&self) -> Option<PodSnapshot> {
        let (answer, snapshot) = oneshot::channel();
        self.0.send(answer).await.ok()?;
        snapshot.await.ok()
    }
}

// === impl PodSource ===

impl PodSource {
    /// A source that sends to `changes`, and the handle for snapshots.
    pub fn new(
        api: ApiClient,
        guard: Guard,
        counters: Arc<Counters>,
        changes: mpsc::Sender<Arc<PodView>>,
        report: watch::Sender<WatchReport>,
    ) -> (Self, SnapshotHandle) {
        let (call, snapshots) = mpsc::channel(1);
        let mut known = KnownPods::default();
        // Their objects may have been deleted while no agent ran.
        let journal = &guard.journal;
        known.add_unfinished(journal.unfinished());
        let seen = journal.all_seen().into_iter();
        let running = seen.filter(|(uid, seen)| !seen.terminates && !journal.knows(uid));
        known.add_expected(running.map(|(uid, _)| uid));
        let source = Self {
            api,
            guard,
            counters,
            known,
            unreadable: HashSet::new(),
            changes,
            report,
            snapshots,
        };
        (source, SnapshotHandle(call))
    }

    /// Lists and watches until the receiver is closed.
    pub async fn run(mut self) {
        let changes = self.changes.clone();
        tokio::select! {
            biased;
            () = changes.closed() => {}
            () = self.run_rounds() => {}
        }
    }

    /// Never returns.
    async fn run_rounds(&mut self) {
        let backoff = pauses(MIN_BACKOFF, MAX_BACKOFF);
        let mut pauses = backoff.build();
        let mut from = None;
        loop {
            let began = Instant::now();
            match self.list_and_watch(from.take()).await {
                Ok(version) if began.elapsed() >= MIN_WATCH => (from, pauses) = (version, backoff.build()),
                Ok(version) => {
                    from = version;
                    sleep(pauses.next().unwrap_or(MAX_BACKOFF)).await;
                }
                Err(error) => {
                    let pause = error.retry_after().or_else(|| pauses.next()).unwrap_or(MAX_BACKOFF);
                    self.lost(&error, pause);
                    sleep(pause).await;
                }
            }
        }
    }

    /// Lists if there is no resourceVersion, and watches. The Node is verified first: a new connection may lead to another cluster.
    /// Returns the resourceVersion to continue from; `None` if a new list is needed.
    async fn list_and_watch(&mut self, from: Option<String>) -> Result<Option<String>, ApiError> {
        read_node(&self.guard, &self.api).await?;
        let from = match from {
            Some(from) => from,
            None => self.list().await?,
        };
        self.watch(from).await
    }

    async fn list(&mut self) -> Result<String, ApiError> {
        let (mut pods, mut unreadable, mut absent) = (Vec::new(), HashSet::new(), 0);
        let seen_before = self.guard.absence.highest();
        let api = self.api.clone();
        let each = |item: &RawValue| match self.read_listed(item) {
            Some(ListedPod::New(view, version)) => {
                // There may be thousands of pods that have nothing on the node.
                let is_absent = view.deletion.is_some() && view.may_be_absent();
                absent += usize::from(is_absent);
                let view = match view.may_be_idle() || is_absent && absent > FULL_NODE {
                    true => Box::new(view.outline()),
                    false => view,
                };
                pods.push(ListedPod::New(view, version));
            }
            Some(unchanged) => pods.push(unchanged),
            None => drop(unreadable.insert(metadata(item).uid)),
        };
        let version = api.each_pod(None, each).await?;
        // The API server may have been replaced since the Node was read.
        read_node(&self.guard, &self.api).await?;
        let comparison = self.known.compare(&pods);
        let absence = &self.guard.absence;
        let held = absence.record_list(version.parse().ok(), seen_before, Some(comparison));
        // Forget unreadable pods that are deleted: their leftovers in the runtime count like those of other pods.
        self.unreadable.retain(|uid| unreadable.contains(uid));
        tracing::info!(
            pods = pods.len(),
            resource_version = version,
            "Listed the pods of this node"
        );
        let (changes, suspects) = self.known.apply_list(pods);
        for change in changes {
            self.record(&change, change.must_terminate());
            self.changes.send(change).await.ok();
        }
        if held.is_none() {
            // An unreadable pod is listed, too.
            let absent = self.known.accept_list().into_iter();
            for uid in absent.filter(|uid| !self.unreadable.contains(uid.as_str())) {
                self.guard.journal.record_deleted(&uid);
            }
            for suspect in suspects {
                self.confirm_deleted(&suspect).await?;
            }
        }
        let pods = self.known.len();
        self.report.send_replace(WatchReport {
            state: SourceState::Watching,
            pods,
            error: None,
            absence_hold: held,
        });
        Ok(version)
    }

    /// Confirms by a list of its name that a suspect is deleted, and sends the change.
    async fn confirm_deleted(&mut self, suspect: &PodView) -> Result<(), ApiError> {
        let pod = &suspect.pod;
        if !is_deleted(&self.guard, &self.api, pod).await? {
            tracing::warn!(pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "A list lacks a pod that a list by its name shows");
            return Ok(());
        }
        if let Some(removed) = self.known.remove(&suspect.pod.uid) {
            self.record(&removed, true);
            self.changes.send(removed).await.ok();
        }
        Ok(())
    }

    async fn watch(&mut self, mut from: String) -> Result<Option<String>, ApiError> {
        let mut lines = self.api.watch_pods(&from, STREAM_LIFETIME).await?;
        self.report.send_modify(|report| {
            report.state = SourceState::Watching;
            report.error = None;
        });
        let (mut last_event, mut verified_at) = (Instant::now(), Instant::now());
        loop {
            if verified_at.elapsed() >= VERIFY_INTERVAL {
                verified_at = Instant::now();
                // A connection to the wrong cluster blocks everything; without this check no other request would be made.
                if self.guard.identity.check().is_err() {
                    read_node(&self.guard, &self.api).await.ok();
                }
            }
            let next_check = (verified_at + VERIFY_INTERVAL).min(last_event + MAX_SILENCE);
            let line = tokio::select! {
                biased;
                line = timeout_at(next_check, lines.next()) => line,
                Some(answer) = self.snapshots.recv() => {
                    // The caller may have gone away.
                    answer.send(self.known.snapshot(&self.unreadable)).ok();
                    continue;
                }
                () = self.guard.absence.wait_for_approval() => return Ok(None),
            };
            let line = match line {
                Err(_) if last_event.elapsed() >= MAX_SILENCE => {
                    tracing::debug!("Watch had no events; listing again");
                    return Ok(None);
                }
                Err(_) => continue,
                Ok(None) => return Ok(Some(from)),
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "Watch ended with an error; watching again");
                    return Ok(Some(from));
                }
                Ok(Some(Ok(line))) => line,
            };
            last_event = Instant::now();
            if !self.event(&line, &mut from).await {
                return Ok(None);
            }
        }
    }

    /// Applies one event. `false`: a new list is needed.
    async fn event(&mut self, line: &WatchLine, from: &mut String) -> bool {
        if line.kind == "ERROR" {
            tracing::info!(status = line.object.get(), "Watch ended with an error; listing again");
            return false;
        }
        let RawMetadata {
            uid, resource_version, ..
        } = metadata(&line.object);
        if !resource_version.is_empty() {
            self.guard.absence.record_version(resource_version.parse().unwrap_or(0));
            *from = resource_version;
        }
        let version = from.as_str().into();
        let change = match line.kind.as_str() {
            "ADDED" | "MODIFIED" => self
                .project(&line.object)
                .map(|view| self.known.apply_object(view, version)),
            "DELETED" => {
                let view = self.project(&line.object);
                self.unreadable.remove(&uid);
                let uid = PodUid::from(&*uid);
                match view {
                    Some(view) => Some(self.known.apply_deletion(&view)),
                    // It may have been readable before.
                    None => self.known.remove(&uid),
                }
            }
            // The resourceVersion of a bookmark is recorded above; unknown types are ignored.
            _ => None,
        };
        let pods = self.known.len();
        self.report
            .send_if_modified(|report| std::mem::replace(&mut report.pods, pods) != pods);
        if let Some(change) = change {
            self.record(&change, change.object.is_absent() || change.must_terminate());
            // A closed receiver ends [`Self::run`].
            self.changes.send(change).await.ok();
        }
        true
    }

    /// Records in the journal that the pod was seen. A pod that is terminal when first seen is recorded later, when a worker
    /// starts on it: most often nothing of it is on the node.
    fn record(&self, view: &PodView, ends: bool) {
        if !view.is_terminal_and_not_deleted() || self.guard.journal.has_seen(&view.pod.uid) {
            self.guard.journal.record_seen(view, ends);
        }
    }

    /// Reads one pod of a list. Unchanged pods are not read again, except while absence is not trusted.
    fn read_listed(&mut self, item: &RawValue) -> Option<ListedPod> {
        let metadata = metadata(item);
        let (uid, version) = (PodUid::from(&*metadata.uid), metadata.resource_version);
        if self.known.is_unchanged(&uid, &version) && self.guard.absence.hold_reason().is_none() {
            return Some(ListedPod::Unchanged(uid));
        }
        let view = self.project(item)?;
        Some(ListedPod::New(Box::new(view), version.into()))
    }

    /// Reads a pod. An unreadable one is left alone, and reported once.
    fn project(&mut self, item: &RawValue) -> Option<PodView> {
        let object = PodObject::read(item).and_then(|object| check_node(self.api.node_name(), object));
        match object {
            Ok(object) => {
                let uid = object.pod.metadata.uid.as_deref().unwrap_or_default();
                // An observer needs the object from before the termination.
                let decided = self.guard.only_observes || self.guard.journal.knows(&uid.into());
                Some(PodView::project(object, decided))
            }
            Err(error) => {
                let RawMetadata {
                    uid, namespace, name, ..
                } = metadata(item);
                if self.unreadable.insert(uid.clone()) {
                    self.counters.count(|counts| counts.pods_unreadable += 1);
                    tracing::error!(
                        pod.uid = uid,
                        pod.namespace = namespace,
                        pod.name = name,
                        %error,
                        "Pod cannot be read and is left alone"
                    );
                }
                None
            }
        }
    }

    fn lost(&self, error: &ApiError, pause: Duration) {
        tracing::warn!(%error, retry_in = ?rounded(pause), "List or watch failed; will retry");
        self.report.send_modify(|report| {
            if report.state == SourceState::Watching {
                report.state = SourceState::Lost;
            }
            report.error = Some(error.to_string());
        });
    }
}

fn metadata(item: &RawValue) -> RawMetadata {
    RawMetadata::read(item.get().as_bytes())
}

/// Rejects a pod of another node, in case a proxy drops the field selector.
fn check_node(node: &str, object: PodObject) -> Result<PodObject, Why> {
    let spec = object.pod.spec.as_ref();
    match spec.and_then(|spec| spec.node_name.as_deref()) {
        Some(name) if name == node => Ok(object),
        other => {
            let other = other.unwrap_or("none");
            Err(format!("it is bound to node {other}, and was not asked for").into())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_of_another_node_is_rejected() {
        let pod = |spec| {
            let metadata = json!({ "name": "a", "namespace": "ns", "uid": "1" });
            PodObject::from_value(&json!({ "metadata": metadata, "spec": spec })).unwrap()
        };
        assert!(check_node("n1", pod(json!({ "containers": [], "nodeName": "n1" }))).is_ok());
        let other = check_node("n1", pod(json!({ "containers": [], "nodeName": "n2" })));
        assert!(other.unwrap_err().to_string().contains("bound to node n2"));
        assert!(check_node("n1", pod(json!({ "containers": [] }))).is_err());
    }
}
