//! The list+watch of this node's pods. Nothing is concluded from silence, from half a list, or from the wrong world.

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
    Change, Kind, Roll, RuntimePods,
    known::{Ended, KnownPods, Listed},
    roll::{RollCall, RollCalls},
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

mod orphans;

/// A watch that says nothing for so long is checked against a consistent list. A resourceVersion from another world
/// makes a watch that is silent for ever.
const SILENCE: Duration = Duration::from_secs(300);
/// How often the Node is looked at while it is not the right one.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// How long the server may keep one stream.
const STREAM_LIFETIME: Duration = Duration::from_secs(1800);
/// A round that ends sooner is as good as failed: a server that cuts every stream is not asked without pause.
const SHORT: Duration = Duration::from_secs(1);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// Where the watch stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceState {
    /// No list yet.
    #[default]
    Connecting,
    /// Listed, and watching.
    Watching,
    /// Lost; what was known stays known.
    Lost,
}

/// What `status` says of the watch.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchReport {
    /// Where it stands.
    pub state: SourceState,
    /// Pods of this node.
    pub pods: usize,
    /// Last error, while it has not been made good.
    pub error: Option<String>,
    /// What absence is not concluded from, and why.
    pub held: Option<String>,
    /// What the runtime holds and nobody can prove to have been a pod of the API server: it is left alone.
    #[serde(default)]
    pub strangers: Vec<String>,
}

/// The source of all changes.
pub struct PodSource {
    api: ApiClient,
    guard: Guard,
    journal: Journal,
    counters: Arc<Counters>,
    known: KnownPods,
    runtime: watch::Receiver<Arc<RuntimePods>>,
    unreadable: HashSet<String>,
    /// Pods of which unreadable fields were reported.
    reported: HashSet<PodUid>,
    changes: mpsc::Sender<Change>,
    report: watch::Sender<WatchReport>,
    calls: RollCalls,
}

/// Why a round ended.
enum RoundEnd {
    /// Go on watching from here.
    Resume(String),
    /// List again.
    Relist,
}

/// Nobody listens any more: the agent stops.
struct Closed;

// === impl PodSource ===

impl PodSource {
    /// A source that sends to `changes`, and where it can be asked for the roll.
    pub fn new(
        api: ApiClient,
        guard: Guard,
        journal: Journal,
        counters: Arc<Counters>,
        runtime: watch::Receiver<Arc<RuntimePods>>,
        changes: mpsc::Sender<Change>,
        report: watch::Sender<WatchReport>,
    ) -> (Self, RollCall) {
        let (call, calls) = RollCall::new();
        let mut known = KnownPods::default();
        // Their objects may have gone while no agent ran.
        known.remember(journal.unfinished());
        let seen = journal.all_seen().into_iter();
        let lived = seen.filter(|(uid, seen)| !seen.ends && !journal.knows(uid));
        known.expect(lived.map(|(uid, _)| uid));
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
            calls,
        };
        (source, call)
    }

    /// Lists and watches until nobody listens any more.
    pub async fn run(mut self) {
        let backoff = pauses(FIRST_PAUSE, LONGEST_PAUSE);
        let mut pauses = backoff.build();
        let mut from = None;
        while !self.changes.is_closed() {
            let began = Instant::now();
            match self.round(from.take()).await {
                Ok(Ok(ended)) => {
                    from = match ended {
                        RoundEnd::Resume(version) => Some(version),
                        RoundEnd::Relist => None,
                    };
                    if began.elapsed() < SHORT {
                        sleep(pauses.next().unwrap_or(LONGEST_PAUSE)).await;
                    } else {
                        pauses = backoff.build();
                    }
                }
                Ok(Err(Closed)) => return,
                Err(error) => {
                    let pause = error.retry_after().or_else(|| pauses.next()).unwrap_or(LONGEST_PAUSE);
                    self.lost(&error, pause);
                    sleep(pause).await;
                }
            }
        }
    }

    /// Who we are is checked first: after each reconnect this may be another world, and nothing is learnt from it.
    async fn round(&mut self, from: Option<String>) -> Result<Result<RoundEnd, Closed>, ApiError> {
        self.guard.verify(&self.api).await?;
        let from = match from {
            Some(from) => from,
            None => match self.list().await? {
                Ok(version) => version,
                Err(Closed) => return Ok(Err(Closed)),
            },
        };
        self.watch(from).await
    }

    async fn list(&mut self) -> Result<Result<String, Closed>, ApiError> {
        let (mut pods, mut unreadable, mut absent) = (Vec::new(), HashSet::new(), 0);
        let seen_before = self.guard.highest();
        let api = self.api.clone();
        let each = |item: &RawValue| match self.listed(item) {
            Some(Listed::New(view, version)) if view.deletion.is_some() && view.may_be_absent() => {
                absent += 1;
                // There may be thousands.
                let view = if absent > FULL_NODE {
                    Box::new(view.outline())
                } else {
                    view
                };
                pods.push(Listed::New(view, version));
            }
            Some(listed) => pods.push(listed),
            None => drop(unreadable.insert(Names::of(item).uid)),
        };
        let version = api.each_pod(None, each).await?;
        // A server may have been replaced by another one since the Node was looked at.
        self.guard.verify(&self.api).await?;
        let census = self.known.census(&pods);
        let held = self.guard.listed(version.parse().ok(), seen_before, Some(census));
        // Whose object is gone was a pod like others: what is left of it in the runtime is looked at like theirs.
        self.unreadable.retain(|uid| unreadable.contains(uid));
        tracing::info!(
            pods = pods.len(),
            resource_version = version,
            "Listed the pods of this node"
        );
        let (changes, suspects) = self.known.listed(pods);
        self.reported.retain(|uid| self.known.holds(uid));
        for change in changes {
            self.saw(&change.view, change.view.ends());
            if self.changes.send(change).await.is_err() {
                return Ok(Err(Closed));
            }
        }
        match &held {
            Some(why) => tracing::error!(
                missing = suspects.len(),
                why,
                "Nothing is concluded from pods that the list lacks"
            ),
            None => {
                for uid in self.known.believe() {
                    self.journal.saw_vanish(&uid);
                }
                for suspect in suspects {
                    if let Err(Closed) = self.confirm_gone(&suspect).await? {
                        return Ok(Err(Closed));
                    }
                }
            }
        }
        let pods = self.known.len();
        self.report.send_modify(|report| {
            *report = WatchReport {
                state: SourceState::Watching,
                pods,
                error: None,
                held,
                strangers: std::mem::take(&mut report.strangers),
            };
        });
        Ok(Ok(version))
    }

    /// Absence is asked for once more, by name.
    async fn confirm_gone(&mut self, suspect: &PodView) -> Result<Result<(), Closed>, ApiError> {
        if !self.is_gone(&suspect.pod).await? {
            return Ok(Ok(()));
        }
        let removed = self.known.gone(&suspect.pod.uid);
        if let Some(removed) = &removed {
            self.saw(&removed.view, true);
        }
        self.pass_on(removed).await
    }

    async fn is_gone(&self, pod: &PodRef) -> Result<bool, ApiError> {
        let gone = self.guard.is_gone(&self.api, pod).await?;
        if !gone {
            tracing::warn!(pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "A list lacks a pod that a list by its name shows");
        }
        Ok(gone)
    }

    async fn watch(&mut self, mut from: String) -> Result<Result<RoundEnd, Closed>, ApiError> {
        let mut lines = self.api.watch_pods(&from, STREAM_LIFETIME).await?;
        self.report.send_modify(|report| {
            report.state = SourceState::Watching;
            report.error = None;
        });
        let (mut heard, mut looked) = (Instant::now(), Instant::now());
        loop {
            if looked.elapsed() >= LOOK_AGAIN {
                looked = Instant::now();
                // One connection that led astray holds everything; while it is held nobody opens another.
                if self.guard.is_wrong_world() {
                    self.guard.verify(&self.api).await.ok();
                }
            }
            let look = (looked + LOOK_AGAIN).min(heard + SILENCE);
            let line = tokio::select! {
                biased;
                line = timeout_at(look, lines.next()) => line,
                Ok(()) = self.runtime.changed() => {
                    if let Err(Closed) = self.compare_with_runtime().await? {
                        return Ok(Err(Closed));
                    }
                    continue;
                }
                // What was left alone until now comes first.
                () = self.guard.may_begin() => {
                    if let Err(Closed) = self.compare_with_runtime().await? {
                        return Ok(Err(Closed));
                    }
                    continue;
                }
                Some(answer) = self.calls.0.recv() => {
                    // Who no longer listens needs no answer.
                    answer.send(self.roll()).ok();
                    continue;
                }
                () = self.guard.absence_is_released() => return Ok(Ok(RoundEnd::Relist)),
            };
            let line = match line {
                Err(_) if heard.elapsed() >= SILENCE => {
                    tracing::debug!("Watch was silent; listing to make sure");
                    return Ok(Ok(RoundEnd::Relist));
                }
                Err(_) => continue,
                Ok(None) => return Ok(Ok(RoundEnd::Resume(from))),
                Ok(Some(Err(error))) => {
                    tracing::debug!(%error, "Watch was cut");
                    return Ok(Ok(RoundEnd::Resume(from)));
                }
                Ok(Some(Ok(line))) => line,
            };
            heard = Instant::now();
            match self.event(&line, &mut from).await? {
                Ok(true) => {}
                Ok(false) => return Ok(Ok(RoundEnd::Relist)),
                Err(Closed) => return Ok(Err(Closed)),
            }
        }
    }

    /// `false`: the server wants a new list.
    async fn event(&mut self, line: &WatchLine, from: &mut String) -> Result<Result<bool, Closed>, ApiError> {
        if line.kind == "ERROR" {
            tracing::info!(status = line.object.get(), "Watch ended with an error; listing again");
            return Ok(Ok(false));
        }
        if let Some(version) = resource_version(&line.object) {
            self.guard.seen(version.parse().unwrap_or(0));
            *from = version;
        }
        let version = from.as_str().into();
        let change = match line.kind.as_str() {
            "ADDED" | "MODIFIED" => self.project(&line.object).map(|view| self.known.seen(view, version)),
            "DELETED" => {
                let view = self.project(&line.object);
                let uid = Names::of(&line.object).uid;
                self.unreadable.remove(&uid);
                self.reported.remove(&PodUid::from(&*uid));
                match view {
                    Some(view) => Some(self.known.deleted(view)),
                    // It may have been understood before.
                    None => self.known.gone(&PodUid::from(&*uid)),
                }
            }
            // A bookmark has done its work; what is not known cannot be acted on.
            _ => None,
        };
        if let Some(change) = &change {
            self.saw(&change.view, change.kind == Kind::Remove || change.view.ends());
        }
        let pods = self.known.len();
        self.report
            .send_if_modified(|report| std::mem::replace(&mut report.pods, pods) != pods);
        Ok(self.pass_on(change).await?.map(|()| true))
    }

    /// Records in the journal that the pod was seen. A pod that is terminal when first seen is recorded later, when a worker
    /// starts on it: most often nothing of it is on the node.
    fn saw(&self, view: &PodView, ends: bool) {
        if !view.has_only_ended() || self.journal.has_seen(&view.pod.uid) {
            self.journal.saw(view, ends);
        }
    }

    fn roll(&self) -> Roll {
        let unreadable = self.unreadable.iter().map(|uid| PodUid::from(uid.as_str()));
        Roll {
            pods: self.known.uids().cloned().chain(unreadable).collect(),
            any_of_the_api: self.known.of_the_api() > 0,
        }
    }

    async fn pass_on(&self, change: Option<Change>) -> Result<Result<(), Closed>, ApiError> {
        match change {
            Some(change) => Ok(self.changes.send(change).await.map_err(|_| Closed)),
            None => Ok(Ok(())),
        }
    }

    /// Most pods of a list are as they were: they need not be understood once more. Of a store that is doubted, everything
    /// is.
    fn listed(&mut self, item: &RawValue) -> Option<Listed> {
        let Names { uid, version, .. } = Names::of(item);
        let uid = PodUid::from(&*uid);
        if self.known.is_same(&uid, &version) && self.guard.why_absence_proves_nothing().is_none() {
            return Some(Listed::Same(uid));
        }
        let view = self.project(item)?;
        Some(match Ended::of(&view) {
            Some(ended) => Listed::Ended(ended, version.into()),
            None => Listed::New(Box::new(view), version.into()),
        })
    }

    /// What cannot be read is reported once: a pod, which is then left alone, or fields of it, which then count as unknown.
    fn project(&mut self, item: &RawValue) -> Option<PodView> {
        let object = PodObject::read(item).and_then(|object| bound_to(self.api.node_name(), object));
        match object {
            Ok(mut object) => {
                let fields = std::mem::take(&mut object.unreadable);
                let uid = object.pod.metadata.uid.as_deref().unwrap_or_default();
                let decided = self.journal.knows(&uid.into());
                let view = PodView::project(object, decided);
                if !fields.is_empty() && self.reported.insert(view.pod.uid.clone()) {
                    self.counters.pod_unreadable();
                    let PodRef { uid, namespace, name } = &view.pod;
                    tracing::error!(pod.uid = %uid, pod.namespace = %namespace, pod.name = %name, ?fields, "Pod has fields that cannot be read; they count as unknown");
                }
                Some(view)
            }
            Err(error) => {
                let Names {
                    uid, namespace, name, ..
                } = Names::of(item);
                if self.unreadable.insert(uid.clone()) {
                    self.counters.pod_unreadable();
                    tracing::error!(
                        pod.uid = uid,
                        pod.namespace = namespace,
                        pod.name = name,
                        error,
                        "Pod cannot be understood and is left alone"
                    );
                }
                None
            }
        }
    }

    fn lost(&self, error: &ApiError, pause: Duration) {
        let retry_in = rounded(pause);
        match error {
            // The guard has told it.
            ApiError::Held { .. } => tracing::debug!(%error, ?retry_in, "Nothing is listed in a wrong world"),
            error => tracing::warn!(%error, ?retry_in, "API server is not to be had; what is known stays known"),
        }
        self.report.send_modify(|report| {
            if report.state == SourceState::Watching {
                report.state = SourceState::Lost;
            }
            report.error = Some(error.to_string());
        });
    }
}

/// A selector that got lost on the way would show the pods of all nodes.
fn bound_to(node: &str, object: PodObject) -> Result<PodObject, String> {
    let spec = object.pod.spec.as_ref();
    match spec.and_then(|spec| spec.node_name.as_deref()) {
        Some(name) if name == node => Ok(object),
        other => Err(format!(
            "it is bound to node {}, and was not asked for",
            other.unwrap_or("none")
        )),
    }
}

/// What tells an object from others without understanding it.
#[derive(Debug, Default, Deserialize)]
struct Names {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    #[serde(default, rename = "resourceVersion")]
    version: String,
}

// === impl Names ===

impl Names {
    fn of(item: &RawValue) -> Self {
        #[derive(Deserialize)]
        struct Object {
            #[serde(default)]
            metadata: Names,
        }
        serde_json::from_str::<Object>(item.get())
            .map(|object| object.metadata)
            .unwrap_or_default()
    }
}

fn resource_version(item: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Object {
        metadata: Meta,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Meta {
        resource_version: String,
    }
    serde_json::from_str::<Object>(item.get())
        .ok()
        .map(|object| object.metadata.resource_version)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_of_another_node_is_not_ours_whoever_shows_it() {
        let pod = |spec| {
            let metadata = json!({ "name": "a", "namespace": "ns", "uid": "1" });
            PodObject::from_value(&json!({ "metadata": metadata, "spec": spec })).unwrap()
        };
        assert!(bound_to("n1", pod(json!({ "containers": [], "nodeName": "n1" }))).is_ok());
        let other = bound_to("n1", pod(json!({ "containers": [], "nodeName": "n2" })));
        assert!(other.unwrap_err().contains("bound to node n2"));
        assert!(bound_to("n1", pod(json!({ "containers": [] }))).is_err());
    }
}
