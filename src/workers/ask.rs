//! What the map of workers can be asked, by whoever has a handle to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};

use super::kill::{Granted, Kill, Refused};
use crate::{
    model::{
        mismatch::Mismatch,
        pod::{PodUid, PodView},
        trace::Trace,
    },
    object_name::ObjectName,
    trace_recorder::TraceRecorder,
};

/// Where the map can be asked.
#[derive(Debug, Clone)]
pub struct WorkersHandle {
    questions: mpsc::Sender<Question>,
}

/// What is asked of the map; it may wait until there is one.
#[derive(Debug)]
pub struct Questions(pub(super) mpsc::Receiver<Question>);

#[derive(Debug)]
pub(super) enum Question {
    Overview(oneshot::Sender<Overview>),
    Stories {
        namespace: String,
        name: String,
        answer: oneshot::Sender<Vec<Trace>>,
    },
    Kill(Kill, oneshot::Sender<Result<Granted, Refused>>),
    TraceRecorder(PodUid, oneshot::Sender<Option<Arc<TraceRecorder>>>),
    Living(ObjectName, oneshot::Sender<Option<Arc<PodView>>>),
    AtWork(oneshot::Sender<BTreeSet<PodUid>>),
    Terminating(oneshot::Sender<BTreeMap<PodUid, Arc<PodView>>>),
    Release(PodUid, Mismatch, oneshot::Sender<bool>),
}

/// All pods that end, at one moment.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Those a worker is at, longest first.
    pub terminating: Vec<Trace>,
    /// Pods of which nothing runs and whose object stays.
    pub kept: usize,
    /// Pods that are done and whose object is still there, held by finalizers.
    pub finished: usize,
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
    pub async fn stories(&self, namespace: &str, name: &str) -> Option<Vec<Trace>> {
        let (answer, told) = oneshot::channel();
        let question = Question::Stories {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            answer,
        };
        self.questions.send(question).await.ok()?;
        told.await.ok()
    }

    /// Ends a pod; `None` while the agent stops.
    pub async fn kill(&self, kill: Kill) -> Option<Result<Granted, Refused>> {
        let (answer, told) = oneshot::channel();
        self.questions.send(Question::Kill(kill, answer)).await.ok()?;
        told.await.ok()
    }

    /// The story of a pod that ends or has ended, to be followed, if there is one; `None` while the agent stops.
    pub async fn record(&self, uid: PodUid) -> Option<Option<Arc<TraceRecorder>>> {
        let (answer, told) = oneshot::channel();
        self.questions.send(Question::TraceRecorder(uid, answer)).await.ok()?;
        told.await.ok()
    }

    /// A pod of that name that the API server shows and that no worker is at; `None` while the agent stops.
    pub async fn living(&self, name: ObjectName) -> Option<Option<Arc<PodView>>> {
        let (answer, told) = oneshot::channel();
        self.questions.send(Question::Living(name, answer)).await.ok()?;
        told.await.ok()
    }

    /// UIDs of all pods that end or have just ended; `None` while the agent stops.
    pub async fn at_work(&self) -> Option<BTreeSet<PodUid>> {
        let (answer, told) = oneshot::channel();
        self.questions.send(Question::AtWork(answer)).await.ok()?;
        told.await.ok()
    }

    /// Pods that a worker is at and that still have something on the node, by all news so far; `None` while the agent stops.
    pub async fn terminating(&self) -> Option<BTreeMap<PodUid, Arc<PodView>>> {
        let (answer, told) = oneshot::channel();
        self.questions.send(Question::Terminating(answer)).await.ok()?;
        told.await.ok()
    }

    /// Approves a mismatch about a terminating pod; whether there is such a pod. `None` while the agent stops.
    pub async fn release(&self, uid: PodUid, mismatch: Mismatch) -> Option<bool> {
        let (answer, told) = oneshot::channel();
        self.questions
            .send(Question::Release(uid, mismatch, answer))
            .await
            .ok()?;
        told.await.ok()
    }
}
