//! Whether this agent may act at all: the Node is the recorded one, and no kubelet works on its pods.
//!
//! Each effect checks the guard first. As long as a fact is unknown, the answer is no.

use std::{
    collections::BTreeSet,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use tokio::{sync::Notify, time::Instant};

use crate::{
    api::{ApiClient, ApiError, Proof},
    journal::{Journal, WatchState},
    model::{pod::PodRef, problems},
    node::{
        effects::{Effects, EffectsBlocked},
        identity::Identity,
        kubelet_process::{KubeletProcess, flags::ExpectedFlags},
        process_events::ProcessEvents,
        threads::Blocking,
    },
};

mod absence;
mod activity;
mod approve;
mod gate;
pub mod holds;
mod kubelet;
mod kubelet_watch;
mod pause;
mod schedule;
pub mod work;

use absence::MissingPods;
pub use absence::{ListComparison, UnlistedPods};
use activity::Activity;
pub use activity::KubeletFault;

/// How often the highest resourceVersion is recorded. It changes with every pod; this is enough to detect a restored etcd.
const RECORD_INTERVAL: Duration = Duration::from_secs(60);

/// Taint of a Node that is lost: its pods are force-deleted and their volumes detached
/// (<https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown>).
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Why an agent that only observes allows no effect, with the remedy.
pub const ONLY_OBSERVES: &str = "this agent only observes (--mode observe, the default) and touches nothing: set \
     POD_TEARDOWN_MODE=auto in /etc/default/pod-teardown, and restart the service";

/// Why the guard of an agent on standby allows no effect, by the reason of its role.
pub fn blocked_on_standby(reason: &str) -> String {
    format!("standby: {reason}")
}

/// Cheap to clone; all clones share their state.
#[derive(Clone)]
pub struct Guard {
    machine: Arc<Identity>,
    journal: Journal,
    proc: Arc<Path>,
    blocking: Blocking,
    /// Events about the processes in `proc`, if there are any.
    process_events: Option<Arc<dyn ProcessEvents>>,
    /// The agent only observes: no effect is ever allowed.
    only_observes: bool,
    /// Settings that the flags of a kubelet are compared with.
    expected: Option<Arc<ExpectedFlags>>,
    state: Arc<Mutex<GuardState>>,
    /// A user has approved an item, and the pods have to be listed again.
    approved: Arc<Notify>,
    /// The agent has become active, or was resumed.
    unblocked: Arc<Notify>,
    /// The pause has begun, or ends at another time.
    pause_changed: Arc<Notify>,
    /// The process probe has to run now.
    probe_requested: Arc<Notify>,
    /// A process probe has run.
    probed: Arc<Notify>,
    /// No work is in progress.
    idle: Arc<Notify>,
    /// Work that waits to retry has to do so now.
    retry_requested: Arc<Notify>,
    /// Work in progress has to stop.
    cancel: Arc<Notify>,
}

#[derive(Debug)]
struct GuardState {
    identity: Result<(), IdentityMismatch>,
    /// Since when `identity` has its value.
    since: Timestamp,
    /// The Node has the taint [`OUT_OF_SERVICE`].
    is_out_of_service: bool,
    /// The kubelet of the last process probe. `Err`: the probe failed.
    kubelet: Result<Option<KubeletProcess>, String>,
    /// Begin and end of the last process probe.
    probed_during: Range<Instant>,
    /// A kubelet that any probe has found since [`Guard::take_probes`] was last called.
    seen: Option<KubeletProcess>,
    /// The last kubelet that any probe has found.
    last_kubelet: Option<KubeletProcess>,
    /// The kubelet's pid when an answer of its healthz endpoint was last checked, and when that was.
    answer_checked: Option<(i32, Instant)>,
    activity: Activity,
    watch_state: WatchState,
    recorded_at: Option<Instant>,
    /// resourceVersion of the last complete list.
    listed: Option<u64>,
    /// Known pods that the last complete list lacks.
    missing: MissingPods,
    /// Absence was approved before the first list, so the user has seen no number of missing pods. The first list is then not
    /// excused.
    approved_before_list: bool,
    /// Pods of the API server in the runtime that this API server has never shown.
    unlisted: MissingPods,
}

/// A node identity mismatch.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IdentityMismatch {
    why: String,
    /// UID of the Node, if only the UID differs from the recorded one.
    other_uid: Option<String>,
}

// === impl Guard ===

impl Guard {
    /// A guard that blocks everything until the Node has been read. It detects kubelet processes in `proc`.
    pub fn new(machine: Identity, journal: Journal, proc: PathBuf) -> Self {
        let watch_state = journal.watch_state();
        Self {
            machine: Arc::new(machine),
            journal,
            proc: proc.into(),
            blocking: Blocking::default(),
            process_events: None,
            only_observes: false,
            expected: None,
            state: Arc::new(Mutex::new(GuardState {
                identity: Err("the Node has not been seen yet".to_owned().into()),
                since: Timestamp::now(),
                is_out_of_service: false,
                kubelet: Err("it has not been searched for yet".to_owned()),
                probed_during: Instant::now()..Instant::now(),
                seen: None,
                last_kubelet: None,
                answer_checked: None,
                activity: Activity::default(),
                watch_state,
                recorded_at: None,
                listed: None,
                missing: MissingPods::default(),
                approved_before_list: false,
                unlisted: MissingPods::default(),
            })),
            approved: Arc::default(),
            unblocked: Arc::default(),
            pause_changed: Arc::default(),
            probe_requested: Arc::default(),
            probed: Arc::default(),
            idle: Arc::default(),
            retry_requested: Arc::default(),
            cancel: Arc::default(),
        }
    }

    /// Runs the process probes on these threads.
    #[must_use]
    pub fn with_blocking(self, blocking: Blocking) -> Self {
        Self { blocking, ..self }
    }

    /// Never allows an effect if the agent `only_observes`.
    #[must_use]
    pub fn with_only_observing(self, only_observes: bool) -> Self {
        Self { only_observes, ..self }
    }

    /// Whether the agent only observes, so that no effect is ever allowed.
    pub fn only_observes(&self) -> bool {
        self.only_observes
    }

    /// Logs the flags of a kubelet that differ from these settings.
    #[must_use]
    pub fn with_expected_settings(self, ours: ExpectedFlags) -> Self {
        Self {
            expected: Some(Arc::new(ours)),
            ..self
        }
    }

    /// The effects of this node. Each one passes the guard.
    pub fn effects(&self) -> Effects {
        let guard = self.clone();
        let gate = move || {
            guard
                .why_blocked()
                .map_or(Ok(()), |reason| Err(EffectsBlocked { reason }))
        };
        Effects::new(Arc::new(gate)).with_block_signal(Arc::clone(&self.cancel))
    }

    /// The effects of reports about the Node, which touch no pod: they are also allowed beside a kubelet, once the Node's identity
    /// is proven.
    pub fn node_effects(&self) -> Effects {
        let guard = self.clone();
        let gate = move || match &guard.lock().identity {
            Ok(()) => Ok(()),
            Err(mismatch) => Err(EffectsBlocked {
                reason: mismatch.why.clone(),
            }),
        };
        Effects::new(Arc::new(gate))
    }

    /// Why no effect is allowed now.
    pub fn why_blocked(&self) -> Option<String> {
        let state = self.lock();
        let mismatch = state.identity.as_ref().err().map(|mismatch| mismatch.why.clone());
        let observes = || self.only_observes.then(|| ONLY_OBSERVES.to_owned());
        mismatch.or_else(observes).or_else(|| state.why_kubelet_blocks())
    }

    /// Reads the Node again and compares it with the recorded one.
    ///
    /// # Errors
    /// [`ApiError::Blocked`] for a mismatch, else the error of the request.
    pub async fn verify(&self, api: &ApiClient) -> Result<(), ApiError> {
        self.node(api).await.map(drop)
    }

    /// Whether a complete, consistent list of the pods of this name on this node lacks this UID. The Node is read before and
    /// after it, so that the list is known to come from the right cluster.
    ///
    /// # Errors
    /// When a request fails, the Node is not the recorded one, or absence is no proof now.
    pub async fn is_deleted(&self, api: &ApiClient, pod: &PodRef) -> Result<bool, ApiError> {
        self.verify(api).await?;
        let seen_before = self.highest();
        let list = api.pods_named(pod).await?;
        if list.has_pod {
            return Ok(false);
        }
        self.verify(api).await?;
        match self.record_list(list.version, seen_before, None) {
            None => Ok(true),
            Some(cause) => Err(ApiError::Blocked {
                verb: "LIST",
                path: "/api/v1/pods".to_owned(),
                cause,
            }),
        }
    }

    /// The Node from the API server, if it is the recorded one.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub async fn node(&self, api: &ApiClient) -> Result<Node, ApiError> {
        self.check_identity(api.node().await, api.node_name()).await
    }

    /// Whether the last Node was not the recorded one, or no Node was read yet.
    pub fn has_identity_mismatch(&self) -> bool {
        self.lock().identity.is_err()
    }

    /// Checks that a new connection leads to the recorded Node's cluster.
    pub fn proof(&self, node_name: &str) -> Proof {
        let (guard, node_name) = (self.clone(), Arc::<str>::from(node_name));
        Arc::new(move |answer| {
            let (guard, node_name) = (guard.clone(), Arc::clone(&node_name));
            Box::pin(async move { guard.check_identity(answer, &node_name).await.map(drop) })
        })
    }

    /// The Node must have the recorded UID and describe this machine. An answer without a Node is a mismatch; no answer changes
    /// nothing.
    async fn check_identity(&self, answer: Result<Node, ApiError>, name: &str) -> Result<Node, ApiError> {
        let identity = match &answer {
            Ok(node) => self.check_node(node).await,
            Err(error) if matches!(error.code(), Some(403 | 404)) => Err(format!(
                "the API server shows no Node of this agent ({error}): are --kubeconfig and --node-name right?"
            )
            .into()),
            Err(_) => return answer,
        };
        self.lock().set_identity(identity.clone());
        self.lock().is_out_of_service = answer.as_ref().is_ok_and(is_out_of_service);
        identity.map_err(|mismatch| ApiError::Blocked {
            verb: "GET",
            path: format!("/api/v1/nodes/{name}"),
            cause: mismatch.why,
        })?;
        answer
    }

    async fn check_node(&self, node: &Node) -> Result<(), IdentityMismatch> {
        let name = node.metadata.name.as_deref().unwrap_or("?");
        let uid = node.metadata.uid.as_deref().filter(|uid| !uid.is_empty());
        let uid = uid.ok_or_else(|| format!("Node {name} has no UID"))?;
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let (machine_id, system_uuid) = info.map_or(("", ""), |info| (&info.machine_id, &info.system_uuid));
        let matches = self.machine.matches(machine_id, system_uuid);
        matches.map_err(|error| problems::other_machine(name, &error).to_string())?;
        if let Some(why) = self.journal.node_uid_read_error() {
            return Err(format!(
                "which Node this agent has recorded cannot be read: {why}; restart the agent once the disk can be read, \
                 or move the journal away to start without one"
            )
            .into());
        }
        match self.journal.node_uid() {
            Some(recorded) if recorded == uid => Ok(()),
            Some(recorded) => Err(IdentityMismatch {
                why: problems::other_node(name, uid, &recorded).to_string(),
                other_uid: Some(uid.to_owned()),
            }),
            None => {
                // A full disk does not block pods. This run treats the Node as recorded.
                if let Err(error) = self.journal.set_node_uid(uid).await {
                    tracing::error!(%error, uid, "Node UID cannot be recorded yet; it is lost at a restart");
                }
                Ok(())
            }
        }
    }

    /// The highest resourceVersion seen so far. A list requested from now on must reach it.
    pub fn highest(&self) -> u64 {
        self.lock().watch_state.highest
    }

    /// Records a complete list of this resourceVersion. It was requested when `seen_before` was the highest. Returns the reason
    /// if pods that it lacks must not be treated as deleted.
    pub fn record_list(
        &self,
        version: Option<u64>,
        seen_before: u64,
        comparison: Option<ListComparison>,
    ) -> Option<String> {
        let Some(version) = version else {
            return Some("the list has no resourceVersion that can be compared".to_owned());
        };
        let mut state = self.lock();
        state.listed = Some(version);
        let comparison = comparison.map(|comparison| ListComparison {
            missing: state.missing.unapproved(comparison.missing),
            needs_no_approval: state.is_out_of_service || comparison.needs_no_approval && !state.approved_before_list,
            ..comparison
        });
        // A user may have approved an older list in between.
        let seen_before = seen_before.min(state.watch_state.highest);
        let watch_state =
            absence::memory_after_list(state.watch_state.clone(), version, seen_before, comparison.as_ref());
        self.update_watch_state(&mut state, watch_state)
    }

    /// Records the pods of the runtime that no list shows. Returns the reason if they must not be treated as deleted.
    pub fn record_unlisted(&self, unlisted: UnlistedPods) -> Option<String> {
        let mut state = self.lock();
        let unapproved = state.unlisted.unapproved(unlisted.uids);
        let unlisted = UnlistedPods {
            uids: if state.is_out_of_service {
                BTreeSet::new()
            } else {
                unapproved
            },
            ..unlisted
        };
        let watch_state = state.watch_state.clone().with_absence_hold(unlisted.needs_approval());
        self.update_watch_state(&mut state, watch_state)
    }

    /// Records the resourceVersion of a watch event.
    pub fn record_version(&self, version: u64) {
        let mut state = self.lock();
        let watch_state = WatchState {
            highest: state.watch_state.highest.max(version),
            ..state.watch_state.clone()
        };
        self.update_watch_state(&mut state, watch_state);
    }

    /// Why a pod that a list lacks must not be treated as deleted now.
    pub fn absence_hold(&self) -> Option<String> {
        self.lock().watch_state.absence_hold_reason.clone()
    }

    fn update_watch_state(&self, state: &mut GuardState, mut watch_state: WatchState) -> Option<String> {
        if state.watch_state.absence_hold_reason != watch_state.absence_hold_reason {
            watch_state.since.get_or_insert_with(Timestamp::now);
            tracing::error!(
                why = watch_state.absence_hold_reason,
                "Pods that a list lacks are not treated as deleted until an operator approves it"
            );
        }
        let due = state.recorded_at.is_none_or(|at| at.elapsed() >= RECORD_INTERVAL);
        if watch_state != state.watch_state
            && (due || watch_state.absence_hold_reason != state.watch_state.absence_hold_reason)
        {
            self.journal.set_watch_state(watch_state.clone());
            state.recorded_at = Some(Instant::now());
        }
        state.watch_state = watch_state;
        state.watch_state.absence_hold_reason.clone()
    }

    fn lock(&self) -> MutexGuard<'_, GuardState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the Node has the taint [`OUT_OF_SERVICE`]. All its pods are then force-deleted at once.
fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    taints
        .unwrap_or_default()
        .iter()
        .any(|taint| taint.key == OUT_OF_SERVICE)
}

// === impl GuardState ===

impl GuardState {
    fn set_identity(&mut self, identity: Result<(), IdentityMismatch>) {
        if self.identity != identity {
            match &identity {
                Ok(()) => tracing::info!("The Node is the recorded one and describes this machine"),
                Err(mismatch) => tracing::error!(why = mismatch.why, "Node identity mismatch: no pod is touched"),
            }
            self.since = Timestamp::now();
        }
        self.identity = identity;
    }
}

// === impl IdentityMismatch ===

impl From<String> for IdentityMismatch {
    fn from(why: String) -> Self {
        Self { why, other_uid: None }
    }
}
