//! List and watch of this node's pods. A timeout, an incomplete list, or another cluster never count as a deletion.

use std::{collections::HashSet, sync::Arc, time::Duration};

use backon::BackoffBuilder as _;
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, timeout_at},
};

use super::{
    PodSnapshot, RuntimePods,
    known::{KnownPods, ListedPod, TerminalPod},
    snapshot::{SnapshotHandle, SnapshotRequests},
};
use crate::{
    api::{ApiClient, ApiError, WatchLine},
    clock::{pauses, rounded},
    counters::Counters,
    handover::guard::Guard,
    journal::Journal,
    model::pod::{FULL_NODE, PodObject, PodRef, PodUid, PodView},
    teardown::journal::PodJournalExt as _,
};

mod item;
mod unlisted_pods;

use item::{Metadata, check_node, resource_version};

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
    /// Unmanaged pods: the runtime has them, and nothing proves that they came from the API server. They are left alone.
    #[serde(default)]
    pub unmanaged: Vec<String>,
}

/// Lists and watches the pods of this node, and sends their changes.
pub struct PodSource {
    api: ApiClient,
    guard: Guard,
    journal: Journal,
    counters: Arc<Counters>,
    known: KnownPods,
    runtime: watch::Receiver<Arc<RuntimePods>>,
    unreadable: HashSet<String>,
    /// Pods whose unreadable fields were reported.
    reported: HashSet<PodUid>,
    changes: mpsc::Sender<Arc<PodView>>,
    report: watch::Sender<WatchReport>,
    snapshots: SnapshotRequests,
}

/// What follows a watch.
enum NextRound {
    /// Watch again from this resourceVersion.
    Resume(String),
    /// List again.
    Relist,
}

/// Why a round failed.
#[derive(Debug)]
enum RoundError {
    /// The receiver of the changes is closed.
    Closed,
    /// The API server refused a request or did not answer it.
    Api(ApiError),
}

// === impl RoundError ===

impl From<ApiError> for RoundError {
    fn from(error: ApiError) -> Self {
        Self::Api(error)
    }
}

// === impl PodSource ===

impl PodSource {
    /// A source that sends to `changes`, and the handle for snapshots.
    pub fn new(
        api: ApiClient,
        guard: Guard,
        journal: Journal,
        counters: Arc<Counters>,
        runtime: watch::Receiver<Arc<RuntimePods>>,
        changes: mpsc::Sender<Arc<PodView>>,
        report: watch::Sender<WatchReport>,
    ) -> (Self, SnapshotHandle) {
        let (call, snapshots) = SnapshotHandle::new();
        let mut known = KnownPods::default();
        // Their objects may have been deleted while no agent ran.
        known.add_unfinished(journal.unfinished());
        let seen = journal.all_seen().into_iter();
        let running = seen.filter(|(uid, seen)| !seen.terminates && !journal.knows(uid));
        known.add_expected(running.map(|(uid, _)| uid));
        let source = Self {
            api,
            guard,
            journal,
            counters,
            known,
            runtime,
            unreadable: HashSet::new(),
            reported: HashSet::new(),
            changes,
            report,
            snapshots,
        };
        (source, call)
    }

    /// Lists and watches until the receiver is closed.
    pub async fn run(mut self) {
        let backoff = pauses(MIN_BACKOFF, MAX_BACKOFF);
        let mut pauses = backoff.build();
        let mut from = None;
        while !self.changes.is_closed() {
            let began = Instant::now();
            match self.list_and_watch(from.take()).await {
                Ok(next) => {
                    from = match next {
                        NextRound::Resume(version) => Some(version),
                        NextRound::Relist => None,
                    };
                    if began.elapsed() < MIN_WATCH {
                        sleep(pauses.next().unwrap_or(MAX_BACKOFF)).await;
                    } else {
                        pauses = backoff.build();
                    }
                }
                Err(RoundError::Closed) => return,
                Err(RoundError::Api(error)) => {
                    let pause = error.retry_after().or_else(|| pauses.next()).unwrap_or(MAX_BACKOFF);
                    self.lost(&error, pause);
                    sleep(pause).await;
                }
            }
        }
    }

    /// Lists if there is no resourceVersion, and watches. The Node is verified first: a new connection may lead to another cluster.
    async fn list_and_watch(&mut self, from: Option<String>) -> Result<NextRound, RoundError> {
        self.guard.verify(&self.api).await?;
        let from = match from {
            Some(from) => from,
            None => self.list().await?,
        };
        self.watch(from).await
    }

    async fn list(&mut self) -> Result<String, RoundError> {
        let (mut pods, mut unreadable, mut absent) = (Vec::new(), HashSet::new(), 0);
        let seen_before = self.guard.highest();
        let api = self.api.clone();
        let each = |item: &RawValue| match self.read_listed(item) {
            Some(ListedPod::New(view, version)) if view.deletion.is_some() && view.may_be_absent() => {
                absent += 1;
                // There may be thousands.
                let view = if absent > FULL_NODE {
                    Box::new(view.outline())
                } else {
                    view
                };
                pods.push(ListedPod::New(view, version));
            }
            Some(listed) => pods.push(listed),
            None => drop(unreadable.insert(Metadata::read(item).uid)),
        };
        let version = api.each_pod(None, each).await?;
        // The API server may have been replaced since the Node was read.
        self.guard.verify(&self.api).await?;
        let comparison = self.known.compare(&pods);
        let held = self
            .guard
            .record_list(version.parse().ok(), seen_before, Some(comparison));
        // Forget unreadable pods that are deleted: their leftovers in the runtime count like those of other pods.
        self.unreadable.retain(|uid| unreadable.contains(uid));
        tracing::info!(
            pods = pods.len(),
            resource_version = version,
            "Listed the pods of this node"
        );
        let (changes, suspects) = self.known.apply_list(pods);
        self.reported.retain(|uid| self.known.contains(uid));
        for change in changes {
            self.record(&change, change.must_terminate());
            self.send(Some(change)).await?;
        }
        match &held {
            Some(why) => tracing::error!(
                missing = suspects.len(),
                why,
                "Pods that the list lacks are not treated as deleted"
            ),
            None => {
                for uid in self.known.accept_list() {
                    self.journal.record_deleted(&uid);
                }
                for suspect in suspects {
                    self.confirm_deleted(&suspect).await?;
                }
            }
        }
        let pods = self.known.len();
        self.report.send_modify(|report| {
            *report = WatchReport {
                state: SourceState::Watching,
                pods,
                error: None,
                absence_hold: held,
                unmanaged: std::mem::take(&mut report.unmanaged),
            };
        });
        Ok(version)
    }

    /// Confirms by a list of its name that a suspect is deleted, and sends the change.
    async fn confirm_deleted(&mut self, suspect: &PodView) -> Result<(), RoundError> {
        if !self.is_deleted(&suspect.pod).await? {
            return Ok(());
        }
        let removed = self.known.remove(&suspect.pod.uid);
        if let Some(removed) = &removed {
            self.record(removed, true);
        }
        self.send(removed).await
    }

    async fn is_deleted(&self, pod: &PodRef) -> Result<bool, ApiError> {
        let is_deleted = self.guard.is_deleted(&self.api, pod).await?;
        if !is_deleted {
            tracing::warn!(pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "A list lacks a pod that a list by its name shows");
        }
        Ok(is_deleted)
    }

    async fn watch(&mut self, mut from: String) -> Result<NextRound, RoundError> {
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
                if self.guard.has_identity_mismatch() {
                    self.guard.verify(&self.api).await.ok();
                }
            }
            let next_check = (verified_at + VERIFY_INTERVAL).min(last_event + MAX_SILENCE);
            let line = tokio::select! {
                biased;
                line = timeout_at(next_check, lines.next()) => line,
                Ok(()) = self.runtime.changed() => {
                    self.compare_with_runtime().await?;
                    continue;
                }
                // Pods that were left to a kubelet until now.
                () = self.guard.wait_until_unblocked() => {
                    self.compare_with_runtime().await?;
                    continue;
                }
                Some(answer) = self.snapshots.0.recv() => {
                    // The caller may have gone away.
                    answer.send(self.snapshot()).ok();
                    continue;
                }
                () = self.guard.wait_for_absence_approval() => return Ok(NextRound::Relist),
            };
            let line = match line {
                Err(_) if last_event.elapsed() >= MAX_SILENCE => {
                    tracing::debug!("Watch had no events; listing again");
                    return Ok(NextRound::Relist);
                }
                Err(_) => continue,
                Ok(None) => return Ok(NextRound::Resume(from)),
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "Watch ended with an error; watching again");
                    return Ok(NextRound::Resume(from));
                }
                Ok(Some(Ok(line))) => line,
            };
            last_event = Instant::now();
            if !self.event(&line, &mut from).await? {
                return Ok(NextRound::Relist);
            }
        }
    }

    /// Applies one event. `false`: a new list is needed.
    async fn event(&mut self, line: &WatchLine, from: &mut String) -> Result<bool, RoundError> {
        if line.kind == "ERROR" {
            tracing::info!(status = line.object.get(), "Watch ended with an error; listing again");
            return Ok(false);
        }
        if let Some(version) = resource_version(&line.object) {
            self.guard.record_version(version.parse().unwrap_or(0));
            *from = version;
        }
        let version = from.as_str().into();
        let change = match line.kind.as_str() {
            "ADDED" | "MODIFIED" => self
                .project(&line.object)
                .map(|view| self.known.apply_object(view, version)),
            "DELETED" => {
                let view = self.project(&line.object);
                let uid = Metadata::read(&line.object).uid;
                self.unreadable.remove(&uid);
                self.reported.remove(&PodUid::from(&*uid));
                match view {
                    Some(view) => Some(self.known.apply_deletion(&view)),
                    // It may have been readable before.
                    None => self.known.remove(&PodUid::from(&*uid)),
                }
            }
            // The resourceVersion of a bookmark is recorded above; unknown types are ignored.
            _ => None,
        };
        if let Some(change) = &change {
            self.record(change, change.object.is_absent() || change.must_terminate());
        }
        let pods = self.known.len();
        self.report
            .send_if_modified(|report| std::mem::replace(&mut report.pods, pods) != pods);
        self.send(change).await?;
        Ok(true)
    }

    /// Records in the journal that the pod was seen. A pod that is terminal when first seen is recorded later, when a worker
    /// starts on it: most often nothing of it is on the node.
    fn record(&self, view: &PodView, ends: bool) {
        if !view.is_terminal_and_not_deleted() || self.journal.has_seen(&view.pod.uid) {
            self.journal.record_seen(view, ends);
        }
    }

    fn snapshot(&self) -> PodSnapshot {
        let unreadable = self.unreadable.iter().map(|uid| PodUid::from(uid.as_str()));
        PodSnapshot {
            pods: self.known.uids().cloned().chain(unreadable).collect(),
            has_api_pods: self.known.api_pod_count() > 0,
        }
    }

    async fn send(&self, change: Option<Arc<PodView>>) -> Result<(), RoundError> {
        match change {
            Some(change) => self.changes.send(change).await.map_err(|_| RoundError::Closed),
            None => Ok(()),
        }
    }

    /// Reads one pod of a list. Unchanged pods are not read again, except while absence is not trusted.
    fn read_listed(&mut self, item: &RawValue) -> Option<ListedPod> {
        let Metadata { uid, version, .. } = Metadata::read(item);
        let uid = PodUid::from(&*uid);
        if self.known.is_unchanged(&uid, &version) && self.guard.absence_hold().is_none() {
            return Some(ListedPod::Unchanged(uid));
        }
        let view = self.project(item)?;
        Some(match TerminalPod::of(&view) {
            Some(terminal) => ListedPod::TerminalPod(terminal, version.into()),
            None => ListedPod::New(Box::new(view), version.into()),
        })
    }

    /// Reads a pod. An unreadable pod is left alone, unreadable fields are unknown; both are reported once.
    fn project(&mut self, item: &RawValue) -> Option<PodView> {
        let object = PodObject::read(item).and_then(|object| check_node(self.api.node_name(), object));
        match object {
            Ok(mut object) => {
                let fields = std::mem::take(&mut object.unreadable);
                let uid = object.pod.metadata.uid.as_deref().unwrap_or_default();
                // An observer needs the object from before the termination.
                let decided = self.guard.only_observes() || self.journal.knows(&uid.into());
                let view = PodView::project(object, decided);
                if !fields.is_empty() && self.reported.insert(view.pod.uid.clone()) {
                    self.counters.pod_unreadable();
                    let PodRef { uid, namespace, name } = &view.pod;
                    tracing::error!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, fields = fields.join(","), "Pod has fields that cannot be read; they count as unknown");
                }
                Some(view)
            }
            Err(error) => {
                let Metadata {
                    uid, namespace, name, ..
                } = Metadata::read(item);
                if self.unreadable.insert(uid.clone()) {
                    self.counters.pod_unreadable();
                    tracing::error!(
                        pod.uid = uid,
                        pod.namespace = namespace,
                        pod.name = name,
                        error,
                        "Pod cannot be read and is left alone"
                    );
                }
                None
            }
        }
    }

    fn lost(&self, error: &ApiError, pause: Duration) {
        let is_logged = self.guard.has_identity_mismatch() || self.guard.absence_hold().is_some();
        log_lost(error, rounded(pause), is_logged);
        self.report.send_modify(|report| {
            if report.state == SourceState::Watching {
                report.state = SourceState::Lost;
            }
            report.error = Some(error.to_string());
        });
    }
}

/// `is_logged`: the guard has logged why it blocks.
fn log_lost(error: &ApiError, retry_in: Duration, is_logged: bool) {
    match error {
        ApiError::Blocked { .. } if is_logged => tracing::debug!(%error, ?retry_in, "List is blocked; will retry"),
        ApiError::Blocked { .. } => tracing::warn!(%error, ?retry_in, "List is blocked; will retry"),
        error => tracing::warn!(%error, ?retry_in, "List or watch failed; will retry"),
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        sync::Mutex,
    };

    use super::*;

    #[test]
    fn blocked_list_is_logged_with_its_reason_unless_the_guard_has_logged_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(Mutex::new(File::create(&path).unwrap()))
            .finish();
        let error = ApiError::Blocked {
            verb: "LIST",
            path: "/api/v1/pods".to_owned(),
            cause: "the list has no resourceVersion".to_owned(),
        };
        tracing::subscriber::with_default(subscriber, || {
            log_lost(&error, Duration::from_secs(1), true);
            assert_eq!(fs::read_to_string(&path).unwrap(), "");
            log_lost(&error, Duration::from_secs(1), false);
        });
        let log = fs::read_to_string(&path).unwrap();
        assert!(log.contains("WARN") && log.contains("no resourceVersion"), "{log:?}");
        assert!(!log.contains("identity"), "{log}");
    }
}
