//! Whether this agent may act at all: in the right world, and with no other hand on the pods.
//!
//! Effects ask before each of them. What the guard does not know yet counts as "no".

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
    journal::{Journal, WatchMemory},
    model::problems,
    node::{
        effects::{Effects, Held},
        identity::Identity,
        kubelet_process::{KubeletProcess, start::Settings},
        threads::Blocking,
    },
};

mod absence;
mod gate;
pub mod held;
mod kubelet;
mod pause;
mod release;
pub mod turn;

use absence::Missing;
pub use absence::{Census, Unshown};

/// The highest resourceVersion moves with every pod; written down so often, it still tells a restored store.
const REMEMBER_EVERY: Duration = Duration::from_secs(60);

/// By this taint of a Node an operator says that it is lost for good: its pods are deleted by force, and their volumes
/// attached elsewhere.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The guard is cheap to clone; all clones are the same one.
#[derive(Clone)]
pub struct Guard {
    machine: Arc<Identity>,
    journal: Journal,
    proc: Arc<Path>,
    blocking: Blocking,
    /// What the flags of a kubelet are compared with.
    compared: Option<Arc<Settings>>,
    state: Arc<Mutex<State>>,
    /// Told when somebody has released what another list may settle.
    released: Arc<Notify>,
    /// Told when this agent stands by no more, or is resumed.
    may_begin: Arc<Notify>,
    /// Told when a kubelet is to be looked for at once, as when something is under way, and nothing was.
    look_now: Arc<Notify>,
    /// Told when that was done, and when a look has shown something else than the one before.
    has_looked: Arc<Notify>,
    /// Told when nothing is under way.
    at_rest: Arc<Notify>,
    /// Told when what rests between two attempts is to make one more.
    once_more: Arc<Notify>,
    /// Told when what is under way is to be let go.
    lets_go: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    world: Result<(), Wrong>,
    /// Since when the world is as it is.
    since: Timestamp,
    /// Somebody has said of the Node that it is lost, and its pods with it.
    is_out_of_service: bool,
    /// The kubelet that was seen; an error while it is not known whether there is one.
    kubelet: Result<Option<KubeletProcess>, String>,
    /// When the last look for a kubelet that has ended was begun, and when it has ended.
    looked: Range<Instant>,
    /// When a look was asked for that has not come yet.
    look_asked: Option<Instant>,
    /// One that was seen, though perhaps not at the last look, since somebody has asked.
    seen: Option<KubeletProcess>,
    turn: turn::Turn,
    store: WatchMemory,
    remembered: Option<Instant>,
    /// Version of the last complete list.
    listed: Option<u64>,
    /// What the last complete list of all pods lacked.
    vanished: Missing,
    /// Somebody has released what a list lacks before there was one: they were shown no number, and nothing is excused.
    unnumbered: bool,
    /// What the runtime held at the last look, made by the word of an API server, and this one never showed.
    unshown: Missing,
}

/// Why this is the wrong world.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wrong {
    why: String,
    /// UID of the Node, where nothing else is wrong.
    other_uid: Option<String>,
}

// === impl Guard ===

impl Guard {
    /// A guard that lets nothing pass until the Node has been seen, and that looks for a kubelet in `proc`.
    pub fn new(machine: Identity, journal: Journal, proc: PathBuf) -> Self {
        let store = journal.watch_memory();
        Self {
            machine: Arc::new(machine),
            journal,
            proc: proc.into(),
            blocking: Blocking::default(),
            compared: None,
            state: Arc::new(Mutex::new(State {
                world: Err("the Node has not been seen yet".to_owned().into()),
                since: Timestamp::now(),
                is_out_of_service: false,
                kubelet: Err("it has not been looked for yet".to_owned()),
                looked: Instant::now()..Instant::now(),
                look_asked: None,
                seen: None,
                turn: turn::Turn::default(),
                store,
                remembered: None,
                listed: None,
                vanished: Missing::default(),
                unnumbered: false,
                unshown: Missing::default(),
            })),
            released: Arc::default(),
            may_begin: Arc::default(),
            look_now: Arc::default(),
            has_looked: Arc::default(),
            at_rest: Arc::default(),
            once_more: Arc::default(),
            lets_go: Arc::default(),
        }
    }

    /// The same, whose looks are done there.
    #[must_use]
    pub fn looking(self, blocking: Blocking) -> Self {
        Self { blocking, ..self }
    }

    /// The same, which logs the flags of a kubelet that disagree with these settings.
    #[must_use]
    pub fn comparing(self, ours: Settings) -> Self {
        Self {
            compared: Some(Arc::new(ours)),
            ..self
        }
    }

    /// The gate that all effects pass.
    pub fn effects(&self, dry_run: bool) -> Effects {
        let guard = self.clone();
        let gate = move || guard.why_held().map_or(Ok(()), |reason| Err(Held { reason }));
        Effects::new(dry_run, Arc::new(gate)).told(Arc::clone(&self.lets_go))
    }

    /// Why nothing may be touched at the moment.
    pub fn why_held(&self) -> Option<String> {
        let state = self.lock();
        let wrong = state.world.as_ref().err().map(|wrong| wrong.why.clone());
        wrong.or_else(|| state.why_a_kubelet())
    }

    /// Looks at the Node anew.
    pub async fn verify(&self, api: &ApiClient) -> Result<(), ApiError> {
        self.node(api).await.map(drop)
    }

    /// The Node as it is now, if it is the recorded one.
    pub async fn node(&self, api: &ApiClient) -> Result<Node, ApiError> {
        self.judge(api.node().await, api.node_name()).await
    }

    /// Whether the Node was last seen to be another one, or not at all.
    pub fn is_wrong_world(&self) -> bool {
        self.lock().world.is_err()
    }

    /// What proves of a connection where it leads.
    pub fn proof(&self, node_name: &str) -> Proof {
        let (guard, node_name) = (self.clone(), Arc::<str>::from(node_name));
        Arc::new(move |answer| {
            let (guard, node_name) = (guard.clone(), Arc::clone(&node_name));
            Box::pin(async move { guard.judge(answer, &node_name).await.map(drop) })
        })
    }

    /// The Node must be the one this journal was made for, and its machine this one. An answer without a Node is the
    /// wrong world, too; no answer proves nothing.
    async fn judge(&self, answer: Result<Node, ApiError>, name: &str) -> Result<Node, ApiError> {
        let world = match &answer {
            Ok(node) => self.check_node(node).await,
            Err(error) if matches!(error.code(), Some(403 | 404)) => Err(format!(
                "the API server shows no Node of this agent ({error}): are --kubeconfig and --node-name right?"
            )
            .into()),
            Err(_) => return answer,
        };
        self.set_world(world.clone());
        self.lock().is_out_of_service = answer.as_ref().is_ok_and(is_out_of_service);
        world.map_err(|wrong| ApiError::Held {
            verb: "GET",
            path: format!("/api/v1/nodes/{name}"),
            cause: wrong.why,
        })?;
        answer
    }

    fn set_world(&self, world: Result<(), Wrong>) {
        let mut state = self.lock();
        if state.world != world {
            match &world {
                Ok(()) => tracing::info!("The Node is the recorded one, and does not speak of another machine"),
                Err(wrong) => tracing::error!(why = wrong.why, "Wrong world: nothing is touched"),
            }
            state.since = Timestamp::now();
        }
        state.world = world;
    }

    async fn check_node(&self, node: &Node) -> Result<(), Wrong> {
        let name = node.metadata.name.as_deref().unwrap_or("?");
        let uid = node.metadata.uid.as_deref().filter(|uid| !uid.is_empty());
        let uid = uid.ok_or_else(|| format!("Node {name} has no UID"))?;
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let (machine_id, system_uuid) = info.map_or(("", ""), |info| (&info.machine_id, &info.system_uuid));
        let matches = self.machine.matches(machine_id, system_uuid);
        matches.map_err(|error| problems::other_machine(name, &error).to_string())?;
        if let Some(why) = self.journal.unread() {
            return Err(format!(
                "which Node this agent has recorded cannot be read: {why}; start the agent again once the disk gives it, or \
                 move the journal away to begin anew"
            )
            .into());
        }
        match self.journal.node_uid() {
            Some(recorded) if recorded == uid => Ok(()),
            Some(recorded) => Err(Wrong {
                why: problems::other_node(name, uid, &recorded).to_string(),
                other_uid: Some(uid.to_owned()),
            }),
            None => {
                // A full disk keeps no pod from ending. In this run the Node counts as recorded from now on.
                if let Err(error) = self.journal.set_node_uid(uid).await {
                    tracing::error!(%error, uid, "Which Node this is cannot be recorded yet: a restart would not know it");
                }
                Ok(())
            }
        }
    }

    /// The highest resourceVersion seen so far: what a list must reach that is asked for from now on.
    pub fn highest(&self) -> u64 {
        self.lock().store.highest
    }

    /// A complete list of this version has come, which was asked for when `seen_before` was the highest. Says why nothing
    /// may be concluded from what it lacks, if so.
    pub fn listed(&self, version: Option<u64>, seen_before: u64, census: Option<Census>) -> Option<String> {
        let Some(version) = version else {
            return Some("the list has no resourceVersion that can be compared".to_owned());
        };
        let mut state = self.lock();
        state.listed = Some(version);
        let census = census.map(|census| Census {
            vanished: state.vanished.doubted(census.vanished),
            is_excused: state.is_out_of_service || census.is_excused && !state.unnumbered,
            ..census
        });
        // Somebody may have said meanwhile that an older one is right.
        let seen_before = seen_before.min(state.store.highest);
        let store = absence::after_list(state.store.clone(), version, seen_before, census.as_ref());
        self.remember(&mut state, store)
    }

    /// What a look at the runtime shows that no list shows. Says why nothing may be concluded from that, if so.
    pub fn sighted(&self, unshown: Unshown) -> Option<String> {
        let mut state = self.lock();
        let doubted = state.unshown.doubted(unshown.uids);
        let unshown = Unshown {
            uids: if state.is_out_of_service {
                BTreeSet::new()
            } else {
                doubted
            },
            ..unshown
        };
        let store = WatchMemory {
            held: state.store.held.clone().or_else(|| unshown.is_not_believed()),
            ..state.store.clone()
        };
        self.remember(&mut state, store)
    }

    /// An event of this version has come.
    pub fn seen(&self, version: u64) {
        let mut state = self.lock();
        let store = WatchMemory {
            highest: state.store.highest.max(version),
            ..state.store.clone()
        };
        self.remember(&mut state, store);
    }

    /// Why absence proves nothing at the moment.
    pub fn why_absence_proves_nothing(&self) -> Option<String> {
        self.lock().store.held.clone()
    }

    fn remember(&self, state: &mut State, mut store: WatchMemory) -> Option<String> {
        if state.store.held != store.held {
            store.since = Some(Timestamp::now());
            tracing::error!(
                why = store.held,
                "Nothing is concluded from what a list lacks, until the operator releases it"
            );
        }
        let due = state.remembered.is_none_or(|at| at.elapsed() >= REMEMBER_EVERY);
        if store != state.store && (due || store.held != state.store.held) {
            self.journal.remember_watch(store.clone());
            state.remembered = Some(Instant::now());
        }
        state.store = store;
        state.store.held.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether its pods are deleted by force, all of them, since nobody believes that they run.
fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    taints
        .unwrap_or_default()
        .iter()
        .any(|taint| taint.key == OUT_OF_SERVICE)
}

// === impl Wrong ===

impl From<String> for Wrong {
    fn from(why: String) -> Self {
        Self { why, other_uid: None }
    }
}
