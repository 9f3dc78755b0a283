//! Reads for a diagnosis or a plan, each with a limit of time.

use std::{fmt::Display, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout, timeout_at};

use super::context::Context;
use crate::{model::pod::PodView, why::Why, words::without_error_codes};

/// Limit of one read.
pub const READ_LIMIT: Duration = Duration::from_millis(2500);
/// Limit of the read of the object, before the others.
#[cfg(feature = "agent")]
const OBJECT_LIMIT: Duration = Duration::from_millis(1500);
/// Limit of all reads of one answer. The client waits a little longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);

/// A fact, or why it could not be read.
pub type Fact<T> = Result<T, Why>;

/// The reads for one answer about a pod. All have one deadline.
pub struct Reads {
    /// It refuses effects: see [`Context::read_only`].
    pub context: Arc<Context>,
    /// The pod, with its object if that could be read.
    pub view: Arc<PodView>,
    deadline: Instant,
}

// === impl Reads ===

impl Reads {
    /// The reads of an answer that begins now.
    pub fn new(context: &Arc<Context>, view: Arc<PodView>) -> Self {
        Self {
            context: Arc::clone(context),
            view,
            deadline: Instant::now() + ANSWER_LIMIT,
        }
    }

    /// As [`Self::new`], with the object as the API server shows it now. If it does not, the object as the watch last showed it, with
    /// the reason.
    #[cfg(feature = "agent")]
    pub async fn of_current(context: &Arc<Context>, view: Arc<PodView>) -> (Self, Option<ObjectUnread>) {
        let mut reads = Self::new(context, view);
        let unread = match timeout(OBJECT_LIMIT, context.api.pod(&reads.view.pod)).await {
            Ok(Ok(Some(object))) => {
                reads.view = Arc::new(PodView::whole(object, true));
                return (reads, None);
            }
            Ok(Ok(None)) => {
                ObjectUnread::NotShown("a list by its name does not show it: it may just have been deleted".to_owned())
            }
            Ok(Err(error)) if error.code.is_some_and(|code| code < 500) => ObjectUnread::NotShown(error.to_string()),
            Ok(Err(error)) => ObjectUnread::NoAnswer(error.to_string()),
            Err(elapsed) => ObjectUnread::NoAnswer(late(OBJECT_LIMIT)(elapsed).to_string()),
        };
        (reads, Some(unread))
    }

    /// The fact, if it is read until the deadline.
    pub async fn cap<T>(&self, read: impl Future<Output = Fact<T>>) -> Fact<T> {
        timeout_at(self.deadline, read).await.map_err(late(ANSWER_LIMIT))?
    }

    /// A read with a limit of its own.
    pub async fn in_time<T, E: Display>(&self, read: impl Future<Output = Result<T, E>>) -> Fact<T> {
        self.cap(async { timeout(READ_LIMIT, read).await.map_err(late(READ_LIMIT))?.map_err(text) })
            .await
    }

    /// A read of the node, on a thread.
    pub async fn on_node<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Context, &PodView) -> Fact<T> + Send + 'static,
    ) -> Fact<T> {
        self.cap(blocking_in(READ_LIMIT, &self.context, &self.view, read)).await
    }
}

/// Why the API server did not show an object.
#[cfg(feature = "agent")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectUnread {
    /// It answered without the object.
    NotShown(String),
    /// It did not answer, or only that it cannot serve now (5xx).
    NoAnswer(String),
}

#[cfg(feature = "agent")]
impl ObjectUnread {
    /// The error.
    pub fn why(&self) -> &str {
        let (Self::NotShown(why) | Self::NoAnswer(why)) = self;
        why
    }
}

/// Runs a read on a thread. One that hangs keeps its thread, and its answer is dropped.
pub async fn blocking_in<T: Send + 'static>(
    limit: Duration,
    context: &Arc<Context>,
    view: &Arc<PodView>,
    read: impl FnOnce(&Context, &PodView) -> Fact<T> + Send + 'static,
) -> Fact<T> {
    let (on_thread, view) = (Arc::clone(context), Arc::clone(view));
    let read = context.node.reads.run_blocking(move || read(&on_thread, &view));
    timeout(limit, read).await.map_err(late(limit))?.map_err(text)?
}

pub fn late<E>(limit: Duration) -> impl Fn(E) -> Why {
    move |_| format!("no answer within {limit:?}").into()
}

pub fn text(error: impl Display) -> Why {
    without_error_codes(&error.to_string()).into()
}
