//! `podSyncStatuses`: which pods end, how far each is, and who works on it. One task owns the map; nobody locks it.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{Id, JoinError, JoinSet},
    time::{Instant, sleep, timeout},
};
use tracing::Instrument as _;

use super::{
    grace::{self, GraceAsked},
    termination::{self, Cause},
    worker::{Outcome, PodUpdate, Worker},
};
use crate::{
    clock::rounded,
    context::Context,
    events::told::Told,
    memory,
    pod::{PodUid, PodView},
    record::{Record, Stage, Story},
    watch::Change,
};

/// Stories of pods that are gone, kept to be told: enough for a drained node.
const STORIES: usize = 256;
/// After the end of so many pods there is memory worth giving back.
const MANY: usize = 16;
/// A worker that panicked is started again after this long.
const AFTER_PANIC: Duration = Duration::from_secs(10);

/// A pod that ends.
struct PodSyncStatus {
    update: watch::Sender<PodUpdate>,
    deadline: watch::Sender<Instant>,
    started: Instant,
    /// Of the grace period, before this run of the agent.
    used_before: Duration,
    grace: Duration,
    record: Arc<Record>,
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
    pods: HashMap<PodUid, PodSyncStatus>,
    workers: JoinSet<Outcome>,
    at_work: HashMap<Id, PodUid>,
    /// How many workers have ended since memory was last given back.
    ended_since: usize,
    stories: VecDeque<Arc<Record>>,
    changes: mpsc::Receiver<Change>,
    questions: mpsc::Receiver<Question>,
}

/// Where the map can be asked.
#[derive(Debug, Clone)]
pub struct WorkersHandle {
    questions: mpsc::Sender<Question>,
}

/// What is asked of the map; it may wait until there is one.
#[derive(Debug)]
pub struct Questions(mpsc::Receiver<Question>);

#[derive(Debug)]
enum Question {
    Overview(oneshot::Sender<Overview>),
    Stories {
        namespace: String,
        name: String,
        answer: oneshot::Sender<Vec<Story>>,
    },
}

/// All pods that end, at one moment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Those a worker is at, longest first.
    pub terminating: Vec<Story>,
    /// Pods of which nothing runs and whose object stays.
    pub kept: usize,
    /// Pods that are done and whose object is still there, held by finalizers.
    pub finished: usize,
}

// === impl PodWorkers ===

impl PodWorkers {
    /// An empty map that takes its news from `changes`.
    pub fn new(context: Arc<Context>, changes: mpsc::Receiver<Change>, questions: Questions) -> Self {
        Self {
            context,
            pods: HashMap::new(),
            workers: JoinSet::new(),
            at_work: HashMap::new(),
            ended_since: 0,
            stories: VecDeque::new(),
            changes,
            questions: questions.0,
        }
    }

    /// Runs until no more changes can come; then pods that are being taken down may go on for `patience`.
    pub async fn run(mut self, patience: Duration) {
        loop {
            tokio::select! {
                change = self.changes.recv() => match change {
                    Some(change) => self.change(change),
                    // The watch has ended, and with it the agent.
                    None => break,
                },
                Some(question) = self.questions.recv() => self.answer(question),
                Some(ended) = self.workers.join_next_with_id() => self.ended(ended),
            }
            if self.workers.is_empty() && self.ended_since >= MANY {
                self.ended_since = 0;
                memory::give_back();
            }
        }
        self.context.stopping.cancel();
        let rest = async {
            while !self.workers.is_empty() {
                tokio::select! {
                    Some(ended) = self.workers.join_next_with_id() => self.ended(ended),
                    Some(question) = self.questions.recv() => self.answer(question),
                    else => {}
                }
            }
        };
        if timeout(patience, rest).await.is_err() {
            tracing::warn!(pods = self.workers.len(), "Pods are left to the next start");
        }
    }

    fn change(&mut self, change: Change) {
        let (view, removed) = match change {
            Change::Seen(view) => (view, false),
            Change::Removed(view) => (view, true),
        };
        let uid = view.pod.uid.clone();
        if self.pods.contains_key(&uid) {
            self.update(&uid, view, removed);
        } else if let Some(cause) = termination::cause(&view, removed) {
            self.begin(view, removed, cause);
        }
    }

    /// Termination begins, or goes on where an earlier run of this agent left it.
    fn begin(&mut self, view: Arc<PodView>, removed: bool, cause: Cause) {
        let pod = view.pod.clone();
        let now = self.context.clock.now();
        let entry = self.context.journal.pod(&pod.uid);
        let in_force = entry.as_ref().map(|entry| entry.grace);
        let grace = grace::effective(in_force, asked(&view, cause.imposed_grace()));
        // After a reboot of the machine the whole period counts as used.
        let used_before = entry.map_or(Duration::ZERO, |entry| entry.begun.elapsed(&now).unwrap_or(grace));
        let started = Instant::now();
        self.context.journal.begin(&pod, now, grace);
        self.context.counters.teardown_begun();
        let deadline = started + grace.saturating_sub(used_before);
        tracing::info!(
            pod.uid = %pod.uid, pod.namespace = %pod.namespace, pod.name = %pod.name,
            ?cause, grace_seconds = grace.as_secs(), used_seconds = used_before.as_secs(),
            "Teardown begins"
        );
        let status = PodSyncStatus {
            update: watch::Sender::new(PodUpdate { view, removed }),
            deadline: watch::Sender::new(deadline),
            started,
            used_before,
            grace,
            record: Arc::new(Record::new(pod.clone(), grace, deadline)),
            state: State::Working,
        };
        self.pods.insert(pod.uid.clone(), status);
        self.start(&pod.uid, Duration::ZERO);
    }

    /// News about a pod that ends: passed on, never back in time, and a shorter grace takes effect at once.
    fn update(&mut self, uid: &PodUid, view: Arc<PodView>, removed: bool) {
        let Some(status) = self.pods.get_mut(uid) else { return };
        if removed && status.state == State::Finished {
            self.pods.remove(uid);
            return;
        }
        // Afterwards there is nothing left to shorten: what comes then is the echo of our own final delete.
        if (removed || view.deletion.is_some()) && status.record.stage() == Stage::Terminating {
            let imposed = removed.then(|| Cause::Removed.imposed_grace()).flatten();
            let grace = grace::effective(Some(status.grace), asked(&view, imposed));
            if grace < status.grace {
                let deadline = status.started + grace.saturating_sub(status.used_before);
                tracing::info!(pod.uid = %uid, pod.namespace = %view.pod.namespace, pod.name = %view.pod.name, grace_seconds = grace.as_secs(), "Grace period is shortened");
                status.grace = grace;
                status.record.set_grace(grace, deadline);
                self.context.journal.begin(&view.pod, self.context.clock.now(), grace);
                status.deadline.send_replace(deadline);
            }
        }
        status.update.send_modify(|update| {
            // What has begun is not taken back, and a status rests on an object.
            update.view = if view.object.is_none() && !removed {
                Arc::new(view.ending_as(&update.view))
            } else {
                view
            };
            update.removed |= removed;
        });
        if status.state == State::Kept {
            status.state = State::Working;
            self.start(uid, Duration::ZERO);
        }
    }

    fn start(&mut self, uid: &PodUid, after: Duration) {
        let Some(status) = self.pods.get(uid) else { return };
        let worker = Worker {
            context: Arc::clone(&self.context),
            updates: status.update.subscribe(),
            deadline: status.deadline.subscribe(),
            record: Arc::clone(&status.record),
            told: Told::default(),
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

    fn ended(&mut self, ended: Result<(Id, Outcome), JoinError>) {
        let (id, outcome) = match ended {
            Ok((id, outcome)) => (id, Some(outcome)),
            Err(error) => (error.id(), None),
        };
        self.ended_since += 1;
        let Some(uid) = self.at_work.remove(&id) else { return };
        let Some(status) = self.pods.get_mut(&uid) else { return };
        let pod = status.record.pod().clone();
        match outcome {
            Some(Outcome::Kept) => {
                status.state = State::Kept;
                // A deletion may have come while the worker was on its last steps.
                let update = status.update.borrow().clone();
                let more = update.removed || update.view.deletion.is_some();
                if more && !self.context.stopping.is_cancelled() {
                    status.state = State::Working;
                    self.start(&uid, Duration::ZERO);
                }
            }
            Some(Outcome::Finished) => {
                self.context.counters.teardown_finished();
                self.context.journal.forget(&uid);
                status.state = State::Finished;
                tracing::info!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, took = ?rounded(status.record.elapsed()), "{}", if self.context.effects.dry_run() { "Dry run of a teardown has ended" } else { "Teardown is finished" });
                let removed = status.update.borrow().removed;
                self.stories.push_back(Arc::clone(&status.record));
                if self.stories.len() > STORIES {
                    self.stories.pop_front();
                }
                if removed {
                    self.pods.remove(&uid);
                }
            }
            None => {
                self.context.counters.worker_panicked();
                tracing::error!(pod.uid = %uid, pod.namespace = %pod.namespace, pod.name = %pod.name, "Worker panicked; it is started again");
                self.start(&uid, AFTER_PANIC);
            }
        }
    }

    fn answer(&self, question: Question) {
        // Who no longer listens needs no answer.
        match question {
            Question::Overview(answer) => answer.send(self.overview()).ok(),
            Question::Stories {
                namespace,
                name,
                answer,
            } => answer.send(self.told(&namespace, &name)).ok().map(drop),
        };
    }

    fn overview(&self) -> Overview {
        let mut overview = Overview::default();
        for status in self.pods.values() {
            match status.state {
                State::Working => overview.terminating.push(status.record.tell()),
                State::Kept => overview.kept += 1,
                State::Finished => overview.finished += 1,
            }
        }
        overview
            .terminating
            .sort_by_key(|story| std::cmp::Reverse(story.elapsed_ms));
        overview
    }

    /// Newest last: one name may have had several pods.
    fn told(&self, namespace: &str, name: &str) -> Vec<Story> {
        let living = self
            .pods
            .values()
            .filter(|status| status.state != State::Finished)
            .map(|status| &status.record);
        let mut stories: Vec<_> = self
            .stories
            .iter()
            .chain(living)
            .filter(|record| &*record.pod().namespace == namespace && &*record.pod().name == name)
            .map(|record| record.tell())
            .collect();
        stories.sort_by_key(|story| (story.began, story.stage == Stage::Finished));
        stories
    }
}

fn asked(view: &PodView, imposed: Option<i64>) -> GraceAsked {
    GraceAsked {
        deletion: view.deletion.and_then(|deletion| deletion.grace),
        imposed,
        spec: view.spec_grace,
    }
}

// === impl WorkersHandle ===

impl WorkersHandle {
    /// A handle, and what is asked through it.
    pub fn new() -> (Self, Questions) {
        let (questions, asked) = mpsc::channel(16);
        (Self { questions }, Questions(asked))
    }

    /// All pods that end; `None` while the agent stops.
    pub async fn overview(&self) -> Option<Overview> {
        let (answer, told) = oneshot::channel();
        self.questions.send(Question::Overview(answer)).await.ok()?;
        told.await.ok()
    }

    /// Stories of the pods of this name, oldest first; `None` while the agent stops.
    pub async fn stories(&self, namespace: &str, name: &str) -> Option<Vec<Story>> {
        let (answer, told) = oneshot::channel();
        let question = Question::Stories {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            answer,
        };
        self.questions.send(question).await.ok()?;
        told.await.ok()
    }
}
