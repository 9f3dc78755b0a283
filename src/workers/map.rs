//! `podSyncStatuses`: which pods end, how far each is, and who works on it. One task owns the map; nobody locks it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, atomic::AtomicU32},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc, watch},
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep, timeout},
};
use tracing::Instrument as _;

use super::{
    ask::{Question, Questions},
    kill::Kill,
};
use crate::{
    clock::rounded,
    counters::Counters,
    handover::guard::Guard,
    journal::Journal,
    memory,
    model::{
        event::Reason,
        pod::{PodUid, PodView},
        termination::{self, Cause},
        trace::{Stage, Step},
    },
    node::checkpoint::{self, JOURNAL},
    teardown::{
        begin::{Termination, shorten},
        context::Context,
        grace::{self, RequestedGrace},
        journal::PodJournalExt as _,
        period::Period,
        priority_gate::PriorityGate,
        worker::{MAX_LARGE_KIB, Outcome, PodUpdate, RuntimeState, Worker},
    },
    trace_recorder::TraceRecorder,
    watch::{Change, Kind, RuntimePods},
};

mod absent;
mod answers;
mod checked;

use absent::Absent;

/// Stories of pods that are gone, kept to be told: enough for a drained node.
const STORIES: usize = 256;
/// After the end of so many pods there is memory worth giving back.
const MANY: usize = 16;
/// A worker that panicked is started again after this long.
const AFTER_PANIC: Duration = Duration::from_secs(10);

/// A pod whose end has begun.
struct PodSyncStatus {
    update: watch::Sender<PodUpdate>,
    period: Arc<Period>,
    record: Arc<TraceRecorder>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A worker is at it.
    Working,
    /// Nothing of it runs, the object stays: a deletion may still come.
    Kept,
    /// All done; remembered until its object is gone, so that a late update cannot revive it.
    Finished,
}

/// The map's owner.
pub struct PodWorkers {
    context: Arc<Context>,
    journal: Journal,
    counters: Arc<Counters>,
    guard: Guard,
    /// Those that live: no more than what is known of them.
    living: HashMap<PodUid, Arc<PodView>>,
    pods: HashMap<PodUid, PodSyncStatus>,
    absent: Absent,
    /// Those that are gone, and when nothing was left of them: late news must not revive them.
    ended: HashMap<PodUid, Instant>,
    workers: JoinSet<Outcome>,
    priority_gate: PriorityGate,
    large: Arc<Semaphore>,
    /// Waits for the disk before a request makes a grace period shorter.
    shortening: JoinSet<()>,
    at_work: HashMap<Id, PodUid>,
    /// How many workers have ended since memory was last given back.
    ended_since: usize,
    stories: VecDeque<Arc<TraceRecorder>>,
    changes: mpsc::Receiver<Change>,
    runtime: watch::Receiver<Arc<RuntimePods>>,
    questions: mpsc::Receiver<Question>,
}

// === impl PodWorkers ===

impl PodWorkers {
    /// An empty map that takes its news from `changes`.
    pub fn new(
        context: Arc<Context>,
        guard: Guard,
        (journal, counters): (Journal, Arc<Counters>),
        changes: mpsc::Receiver<Change>,
        runtime: watch::Receiver<Arc<RuntimePods>>,
        questions: Questions,
    ) -> Self {
        Self {
            context,
            journal,
            counters,
            guard,
            living: HashMap::new(),
            pods: HashMap::new(),
            absent: Absent::default(),
            ended: HashMap::new(),
            workers: JoinSet::new(),
            priority_gate: PriorityGate::default(),
            large: Arc::new(Semaphore::new(MAX_LARGE_KIB as usize)),
            shortening: JoinSet::new(),
            at_work: HashMap::new(),
            ended_since: 0,
            stories: VecDeque::new(),
            changes,
            runtime,
            questions: questions.0,
        }
    }

    /// Runs until no more changes can come; then pods that are being taken down may go on for `patience`.
    pub async fn run(mut self, patience: Duration) {
        loop {
            tokio::select! {
                // What workers report is bounded by their number, so it never keeps news waiting for long. News come
                // before questions, of which somebody may ask without end.
                biased;
                Some(ended) = self.workers.join_next_with_id() => self.worker_ended(ended),
                Some(found) = self.absent.checked() => self.node_is_checked(found),
                change = self.changes.recv() => match change {
                    Some(change) => self.change(change),
                    // The watch has ended, and with it the agent.
                    None => break,
                },
                Some(question) = self.questions.recv() => self.answer(question),
                Ok(()) = self.runtime.changed() => self.forget_those_who_are_gone(),
                Some(_) = self.shortening.join_next() => {}
            }
            if self.workers.is_empty() && self.ended_since >= MANY {
                self.ended_since = 0;
                memory::trim();
            }
        }
        self.context.stopping.cancel();
        let rest = async {
            while !self.workers.is_empty() {
                tokio::select! {
                    biased;
                    Some(ended) = self.workers.join_next_with_id() => self.worker_ended(ended),
                    Some(question) = self.questions.recv() => self.answer(question),
                    Some(_) = self.shortening.join_next() => {}
                    else => {}
                }
            }
        };
        if timeout(patience, rest).await.is_err() {
            tracing::warn!(pods = self.workers.len(), "Pods are left to the next start");
        }
    }

    fn change(&mut self, Change { kind, view }: Change) {
        let uid = view.pod.uid.clone();
        let removed = kind == Kind::Remove;
        if self.ended.contains_key(&uid) {
            tracing::debug!(pod.uid = %uid, pod.namespace = %view.pod.namespace, pod.name = %view.pod.name, ?kind, "Late news of a pod of which nothing is left");
        } else if self.pods.contains_key(&uid) {
            self.update(&uid, view, removed);
        } else if self.absent.is_held(&uid) {
            // Its final delete was accepted: only the end of its object is news.
            if removed {
                self.absent_is_gone(uid);
            }
        } else {
            let is_absent = self.absent.take(&uid);
            let begun = self.context.journal.knows(&uid);
            match (termination::cause(&view, removed, begun), is_absent) {
                // What has a terminal phase is never started again.
                (_, true) if removed => self.absent_is_gone(uid),
                (Some(Cause::PhaseTerminal), true) => self.absent.keep_idle(view.pod.clone()),
                (Some(Cause::PhaseTerminal | Cause::Deleted), _) if !removed && !begun && view.may_be_absent() => {
                    self.living.remove(&uid);
                    self.absent.check_later(view);
                    self.absent.check_node(&self.context, &self.journal);
                }
                (Some(cause), _) => self.begin(view, removed, cause, None),
                (None, _) if removed => drop(self.living.remove(&uid)),
                (None, _) => drop(self.living.insert(uid, view)),
            }
        }
    }

    /// Termination begins, or goes on where an earlier run of this agent left it.
    fn begin(&mut self, view: Arc<PodView>, removed: bool, cause: Cause, kill: Option<Kill>) {
        let pod = view.pod.clone();
        self.living.remove(&pod.uid);
        let (grace, imposed) = kill.map(|kill| (kill.grace, kill.imposed)).unwrap_or_default();
        let Termination {
            period,
            record,
            imposed,
        } = Termination::begin(&self.context, &view, cause, grace, imposed);
        if cause == Cause::PhaseTerminal {
            self.journal.saw(&view, true);
        }
        self.counters.teardown_begun();
        record.set_terminal_state(&view);
        let update = PodUpdate {
            view,
            removed,
            imposed: imposed.map(Arc::new),
            approvals: 0,
        };
        let status = PodSyncStatus {
            update: watch::Sender::new(update),
            record,
            period,
            state: State::Working,
        };
        self.pods.insert(pod.uid.clone(), status);
        self.start(&pod.uid, Duration::ZERO);
    }

    /// News about a pod that ends: passed on, never back in time.
    fn update(&mut self, uid: &PodUid, view: Arc<PodView>, removed: bool) {
        let Some(status) = self.pods.get_mut(uid) else { return };
        if removed {
            status.record.set_finalizers(Vec::new());
        }
        if removed && status.state == State::Finished {
            self.pods.remove(uid);
            self.ended.insert(uid.clone(), Instant::now());
            return;
        }
        if removed || view.deletion.is_some() {
            let imposed = removed.then(|| Cause::Removed.required_grace()).flatten();
            status.shorten(&self.context, RequestedGrace::of(&view, imposed));
        }
        status.record.set_terminal_state(&view);
        let ended_anyway = status.update.borrow().terminates_by_api();
        status.update.send_modify(|update| {
            update.view = view;
            update.removed |= removed;
        });
        let terminates_by_api = status.update.borrow().terminates_by_api();
        if ended_anyway && !terminates_by_api {
            // As by a store that was restored: why it was to end is not to be seen any more.
            self.context.journal.record_request(uid);
        } else if terminates_by_api && self.guard.why_no_new_work().is_none() {
            self.context.journal.confirm_request(uid);
        }
        if status.state == State::Kept {
            status.state = State::Working;
            self.start(uid, Duration::ZERO);
        }
    }

    /// A look at the runtime that began after a pod was gone has not seen it, or has seen something new.
    fn forget_those_who_are_gone(&mut self) {
        let looked = self.runtime.borrow_and_update().began;
        self.ended.retain(|_, gone| *gone >= looked);
        self.begin_queued();
    }

    fn start(&mut self, uid: &PodUid, after: Duration) {
        let Some(status) = self.pods.get(uid) else { return };
        let worker = Worker {
            context: Arc::clone(&self.context),
            updates: status.update.subscribe(),
            period: Arc::clone(&status.period),
            record: Arc::clone(&status.record),
            priority_gate: self.priority_gate.clone(),
            failed_reads: AtomicU32::new(0),
            runtime_state: RuntimeState::default(),
            large: Arc::clone(&self.large),
        };
        let pod = status.record.pod();
        let span = tracing::info_span!("pod", pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name);
        let run = async move {
            sleep(after).await;
            worker.run().await
        };
        let id = self.workers.spawn(run.instrument(span)).id();
        self.at_work.insert(id, uid.clone());
    }

    fn worker_ended(&mut self, ended: Result<(Id, Outcome), JoinError>) {
        let (id, outcome) = match ended {
            Ok((id, outcome)) => (id, Some(outcome)),
            Err(error) => (error.id(), None),
        };
        self.ended_since += 1;
        let Some(uid) = self.at_work.remove(&id) else { return };
        let Some(status) = self.pods.get_mut(&uid) else { return };
        let pod = status.record.pod().clone();
        if !matches!(outcome, Some(Outcome::Finished) | None) {
            self.absent.is_present(&uid);
        }
        match outcome {
            Some(Outcome::Stopping) => {}
            Some(Outcome::Kept) => {
                status.state = State::Kept;
                status.record.set_kept();
                // A deletion may have come while the worker was on its last steps.
                let update = status.update.borrow().clone();
                let more = update.removed || update.view.deletion.is_some();
                if more && !self.context.stopping.is_cancelled() {
                    status.state = State::Working;
                    self.start(&uid, Duration::ZERO);
                }
            }
            Some(Outcome::Finished) => {
                self.counters.teardown_finished();
                checkpoint::before(JOURNAL, &"forget");
                self.context.journal.forget(&uid);
                // Not on the disk yet: what is remembered for too long is found finished at the next start.
                checkpoint::after(JOURNAL, &"forget");
                status.state = State::Finished;
                tracing::info!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, took = ?rounded(status.record.elapsed()), "{}", if self.context.effects.is_dry_run() { "Dry run of a teardown has ended" } else { "Teardown is finished" });
                let removed = status.update.borrow().removed;
                let record = Arc::clone(&status.record);
                self.remember(record);
                if removed {
                    self.pods.remove(&uid);
                    self.ended.insert(uid.clone(), Instant::now());
                }
                self.absent_is_finished(&uid);
            }
            Some(Outcome::FinishedByKubelet) => {
                tracing::info!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "A kubelet has ended the pod; nothing is left to do");
                self.context.journal.forget(&uid);
                self.pods.remove(&uid);
                self.ended.insert(uid, Instant::now());
            }
            Some(Outcome::Cancelled) => {
                let update = status.update.borrow().clone();
                let entry = self.context.journal.pod(&uid);
                let why = cancelled(&status.record, entry.map(|entry| entry.stage));
                tracing::warn!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, why = why.as_str(), "Request to stop the pod is cancelled");
                self.counters.stop_request_cancelled();
                if !update.terminates_by_api() {
                    self.context
                        .events
                        .event(&update.view, None, Reason::TeardownGivenUp, &why);
                }
                status.record.set_cancelled(why);
                let record = Arc::clone(&status.record);
                self.remember(record);
                self.context.journal.forget(&uid);
                self.pods.remove(&uid);
                // If the API shows that it terminates, that has nothing to do with the request, and begins with its whole grace.
                let kind = if update.removed { Kind::Remove } else { Kind::Add };
                let view = match update.terminates_by_api() {
                    true => update.view,
                    false => Arc::new(update.view.without_object()),
                };
                self.change(Change { kind, view });
            }
            None => {
                self.counters.worker_panicked();
                tracing::error!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "Worker panicked; it is started again");
                self.start(&uid, AFTER_PANIC);
            }
        }
    }

    /// Keeps a story to be told.
    fn remember(&mut self, record: Arc<TraceRecorder>) {
        self.stories.push_back(record);
        if self.stories.len() > STORIES {
            self.stories.pop_front();
        }
    }
}

// === impl PodSyncStatus ===

impl PodSyncStatus {
    /// A shorter grace period takes effect at once, and a longer one not at all. Afterwards there is nothing left to
    /// shorten: what comes then is the echo of our own final delete.
    fn shorten(&mut self, context: &Context, asked: RequestedGrace) {
        let grace = grace::effective(Some(self.period.grace()), asked);
        if shorten(&self.period, &self.record, grace) {
            let pod = self.record.pod();
            context.journal.begin(pod, context.clock.now(), grace, None);
        }
    }
}

/// Why a request to stop this pod, which has come so far, is cancelled, and what of the pod is not as it was.
fn cancelled(record: &TraceRecorder, reached: Option<Stage>) -> String {
    let spans = record.trace().spans;
    let lost = if reached >= Some(Stage::Terminated) || spans.iter().any(|span| span.step == Step::Volumes) {
        "; its emptyDir volumes may have been removed"
    } else {
        ""
    };
    format!("a kubelet came before the pod had terminated, or may have, and restarts it{lost}: delete it with kubectl")
}
